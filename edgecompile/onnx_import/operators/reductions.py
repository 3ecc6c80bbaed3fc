"""Operators that reduce dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.table import operator

_Reduce = Callable[[Tensor, list[int], bool], Tensor]


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=keep)
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    return torch.div(_sum(x, axes, keep), count, rounding_mode="trunc")


def _amax(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.amax(axes, keepdim=keep)


def _amin(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.amin(axes, keepdim=keep)


_REDUCTIONS: dict[str, _Reduce] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _amax,
    "ReduceMin": _amin,
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keep: _sum(x.abs(), axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.sqrt(_sum(x * x, axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: torch.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}


def _enter() -> None:
    for name in _REDUCTIONS:
        operator(name, numbers=(1,))(_reduce)


def _reduce(node: Node, x: Tensor, axes: list[int] | None = None) -> Tensor:
    listed = node.get("axes") if axes is None else axes
    if not listed:
        # Nothing is reduced, but what is done to each element is done all the same.
        kept = bool(node.get("noop_with_empty_axes", 0))
        if kept:
            return _REDUCTIONS[node.operator](x.unsqueeze(0), [0], False)
        listed = range(x.dim())
    places = [int(axis) for axis in listed]
    if not places:
        return _REDUCTIONS[node.operator](x.unsqueeze(0), [0], False)
    return _REDUCTIONS[node.operator](x, places, bool(node.get("keepdims", 1)))


_enter()
