"""Half precision within a model's forward, such as a region of autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.export.operators.cache_rows import QUANTIZE_ROWS
from edgecompile.models.double import HALVES
from edgecompile.precision import STORED, TOLERANCES
from edgecompile.runtime.format.manifest.schema import Tolerance

aten = torch.ops.aten

_CONVERSIONS = (aten.to.dtype, aten._to_copy.default)
_VIEWS = (aten.transpose.int, aten.unsqueeze.default)
_STORE, _ASSERTION = aten.index_copy_.default, aten._assert_tensor_metadata.default


def is_half(value: Any) -> bool:
    """Whether a value is a tensor of bfloat16 or float16."""
    return isinstance(value, Tensor) and value.dtype in HALVES


def tolerance_of(precision: str, *modules: torch.nn.Module) -> Tolerance:
    """The tolerance of a precision; that of bf16 at least, where an exported graph itself computes in half.

    A sum in another order may round to the next number of the narrower type, and what doesn't round is as right.
    Where a graph only stores keys and values in half or int8, few become the next number, and most are equal.
    """
    found = [TOLERANCES[precision]]
    if any(map(computes_in_halves, modules)):
        found.append(TOLERANCES["bf16"])
    elif any(map(stores_rounded, modules)):
        found.append(STORED)
    return max(found, key=lambda tolerance: tolerance.rtol)


def computes_in_halves(module: torch.nn.Module) -> bool:
    """Whether an exported graph, or one within it, has results of half precision.

    Its rounding is thousands of times coarser than that of float32, so results that are as right
    differ by as much.
    """
    return any(not _is_stored(node) for node in _halves(module))


def stores_rounded(module: torch.nn.Module) -> bool:
    """Whether an exported graph, or one within it, has results of half precision or rows of int8, if only to store them."""
    return any(node.target is QUANTIZE_ROWS for node in _calls(module)) or any(
        True for _ in _halves(module)
    )


def _halves(module: torch.nn.Module) -> Iterator[Node]:
    return (node for node in _calls(module) if is_half(node.meta.get("val")))


def _calls(module: torch.nn.Module) -> Iterator[Node]:
    for part in module.modules():
        if isinstance(part, GraphModule):
            yield from (node for node in part.graph.nodes if node.op == "call_function")


def _is_stored(node: Node) -> bool:
    """Whether a result is what is written to a cache, or a view of that cache."""
    if node.target in _CONVERSIONS:
        return all(user.target in (_STORE, _ASSERTION) for user in node.users)
    while node.target in _VIEWS and isinstance(node.args[0], Node):
        node = node.args[0]
    return node.target is _STORE
