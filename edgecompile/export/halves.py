"""Half precision within a model's forward, such as a region of autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from edgecompile.models.double import HALVES
from edgecompile.precision import TOLERANCES
from edgecompile.runtime.format.schema import Tolerance


def is_half(value: Any) -> bool:
    """Whether a value is a tensor of bfloat16 or float16."""
    return isinstance(value, Tensor) and value.dtype in HALVES


def tolerance_of(precision: str, *modules: torch.nn.Module) -> Tolerance:
    """The tolerance of a precision; that of bf16 at least, where an exported graph itself computes in half.

    A sum in another order may round to the next number of the narrower type, and what doesn't round is as right.
    """
    names = [precision, *(["bf16"] if any(map(computes_in_halves, modules)) else [])]
    return max((TOLERANCES[name] for name in names), key=lambda tolerance: tolerance.rtol)


def computes_in_halves(module: torch.nn.Module) -> bool:
    """Whether an exported graph, or one within it, has results of half precision.

    Its rounding is thousands of times coarser than that of float32, so results that are as right
    differ by as much.
    """
    return any(
        node.op == "call_function" and is_half(node.meta.get("val"))
        for part in module.modules()
        if isinstance(part, GraphModule)
        for node in part.graph.nodes
    )
