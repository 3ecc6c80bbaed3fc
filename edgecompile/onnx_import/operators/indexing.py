"""Operators that look elements up by place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.operators.shapes import check_sizes
from edgecompile.onnx_import.sizes import Known
from edgecompile.onnx_import.table import OWN, operator


def _from_start(places: Tensor, size: Any) -> Tensor:
    """Places that count from the end as ones that count from the start."""
    return torch.where(places < 0, places + size, places)


@operator("Gather", known=(1,))
def _gather(node: Node, x: Tensor, places: Any) -> Tensor:
    axis = node.get("axis", 0) % x.dim()
    if isinstance(places, Known):
        if places.array.ndim == 0:
            return x.select(axis, places.numbers[0])
        places = places.tensor()
    if axis == 0 and x.dim() == 2 and isinstance(x, nn.Parameter):
        return functional.embedding(_from_start(places.to(torch.int64), x.shape[0]), x)
    places = places.to(torch.int64)
    if places.dim() == 0:  # torch would read the number back
        return x.index_select(axis, _from_start(places, x.shape[axis]).reshape(1)).squeeze(axis)
    return x[(slice(None),) * axis + (places,)]


@operator("Embedding", domain=OWN)
def _embedding(node: Node, x: Tensor, places: Tensor) -> Tensor:
    """A Gather by an input: the bundle's bounds keep negative places away."""
    return functional.embedding(places.to(torch.int64), x)


@operator("GatherElements")
def _gather_elements(node: Node, x: Tensor, places: Tensor) -> Tensor:
    axis = node.get("axis", 0) % x.dim()
    return torch.gather(x, axis, _from_start(places.to(torch.int64), x.shape[axis]))


@operator("GatherND")
def _gather_tuples(node: Node, x: Tensor, places: Tensor) -> Tensor:
    return x[_tuples(node, x, places, node.get("batch_dims", 0))]


def _tuples(node: Node, x: Tensor, places: Tensor, shared: int) -> tuple[Tensor, ...]:
    inner = places.to(torch.int64).unbind(-1)
    rank = places.dim() - 1
    outer = []
    for dim in range(shared):
        line = torch.arange(x.shape[dim])
        outer.append(line.reshape([-1 if place == dim else 1 for place in range(rank)]))
    return (*outer, *inner)


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements", "Scatter")
def _scatter(node: Node, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    axis, how = node.get("axis", 0) % x.dim(), node.get("reduction", "none")
    places = _from_start(places.to(torch.int64), x.shape[axis])
    if how == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[how])


@operator("ScatterND")
def _scatter_tuples(node: Node, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    how, depth = node.get("reduction", "none"), places.shape[-1]
    if how in ("none", "add"):
        where = places.to(torch.int64).unbind(-1)
        return x.index_put(where, updates, accumulate=how == "add")
    # One place in the flattened front dimensions for each tuple.
    flat, place = x.reshape(-1, *x.shape[depth:]), torch.zeros_like(places[..., 0])
    for dim in range(depth):
        place = place * x.shape[dim] + _from_start(places[..., dim], x.shape[dim])
    rows = updates.reshape(-1, *x.shape[depth:])
    index = place.reshape([-1] + [1] * (rows.dim() - 1)).expand_as(rows)
    return flat.scatter_reduce(0, index, rows, _REDUCTIONS[how]).reshape(x.shape)


@operator("OneHot", numbers=(1,))
def _one_hot(node: Node, places: Tensor, depth: list[Any], values: Tensor) -> Tensor:
    size, axis = int(depth[0]), node.get("axis", -1)
    check_sizes(node, [size, *places.shape])
    rank = places.dim() + 1
    axis = axis % rank
    wide = _from_start(places.to(torch.int64), size).unsqueeze(axis)
    line = torch.arange(size).reshape([-1 if dim == axis else 1 for dim in range(rank)])
    return torch.where(wide == line, values[1], values[0])


@operator("NonZero")
def _non_zero(node: Node, x: Tensor) -> Tensor:
    return torch.nonzero(x).transpose(0, 1)


@operator("TopK", since=10, numbers=(1,))
def _top(node: Node, x: Tensor, k: list[Any]) -> tuple[Tensor, Tensor]:
    axis, largest = node.get("axis", -1), bool(node.get("largest", 1))
    # torch.topk leaves the order of equal numbers open; ONNX takes the first.
    values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k[0]), places.narrow(axis, 0, k[0])


@operator("ArgMax", "ArgMin")
def _extreme_place(node: Node, x: Tensor) -> Tensor:
    axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
    find = torch.argmax if node.operator == "ArgMax" else torch.argmin
    if node.get("select_last_index", 0):
        return x.shape[axis] - 1 - find(x.flip(axis), axis, keepdim=keep)
    return find(x, axis, keepdim=keep)


@operator("ReverseSequence")
def _reverse(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    rank = x.dim()
    line = torch.arange(x.shape[time]).reshape([-1 if d == time else 1 for d in range(rank)])
    ends = lengths.to(torch.int64).reshape([-1 if d == batch else 1 for d in range(rank)])
    places = torch.where(line < ends, ends - 1 - line, line)
    return torch.gather(x, time, places.expand(x.shape))
