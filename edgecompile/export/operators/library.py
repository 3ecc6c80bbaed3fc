"""The torch library ``edgecompile``, which holds all operators of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# torch.library's functions carry no annotations.
_LIBRARY: Any = torch.library.Library("edgecompile", "DEF")  # type: ignore[no-untyped-call]


def define(schema: str, cpu: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Adds an operator.

    Args:
        schema: the operator's name, arguments and results, as torch.library writes them.
        cpu: computes it with torch's own operators.
        fake: a function that gives results of the same shapes, strides and dtypes without values.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, cpu, "CPU")
    torch.library.register_fake(f"edgecompile::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.edgecompile, name).default
