"""Arguments that several functions read alike: options in groups, targets."""

from __future__ import annotations

import os
from typing import Any

from edgecompile import checks
from edgecompile.models.options import LoadOptions
from edgecompile.planning.options import BuildOptions, PlanOptions

__all__ = [
    "BuildOptions",
    "LoadOptions",
    "PlanOptions",
    "read_target",
]


def read_target(target: Any) -> str:
    """The name of a target, or the path of its profile, as text.

    Raises:
        UsageError: it is neither.
    """
    checks.given_path("target", target, 'a name, such as "cpu-x86-64", or a TOML file')
    return os.fsdecode(target)
