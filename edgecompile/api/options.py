"""Arguments that several functions read alike: options in groups, batch sizes, targets."""

from __future__ import annotations

import os
from typing import Any

from edgecompile import checks
from edgecompile.errors import UsageError
from edgecompile.models.options import LoadOptions
from edgecompile.planning.options import BuildOptions, PlanOptions

__all__ = [
    "BuildOptions",
    "LoadOptions",
    "PlanOptions",
    "read_batch",
    "read_target",
]


def read_batch(batch: Any) -> tuple[int, int]:
    """A batch size or a range of them as (smallest, largest).

    Raises:
        UsageError: it is neither.
    """
    sizes = tuple(batch) if isinstance(batch, (tuple, list)) else (batch, batch)
    ok = len(sizes) == 2 and None not in sizes
    low, high = (checks.whole("batch", size) or 0 for size in sizes) if ok else (0, 0)
    if not 1 <= low <= high:
        raise UsageError(
            f"batch is {batch!r}", hint="give a size from 1 up, or (smallest, largest)"
        )
    return low, high


def read_target(target: Any) -> str:
    """The name of a target, or the path of its profile, as text.

    Raises:
        UsageError: it is neither.
    """
    if not isinstance(target, (str, os.PathLike)):
        raise UsageError(
            f"target is {target!r}", hint='give a name, such as "cpu-x86-64", or a TOML file'
        )
    return os.fsdecode(target)
