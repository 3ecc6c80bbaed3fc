"""Operators that move elements, and make tensors of sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.errors import ModelError
from edgecompile.onnx_import.elements import DTYPES, check_elements
from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.sizes import SYMBOLS, Known
from edgecompile.onnx_import.table import operator

#: What files write for "up to the end".
_END = 2**31 - 1
_LAST = 2**63 - 1


def check_sizes(node: Node, sizes: Any) -> list[Any]:
    """Sizes that a file states, which may be absurd.

    Raises:
        ModelError: they are.
    """
    sizes = list(sizes)
    check_elements((s for s in sizes if isinstance(s, int)), f"the result of the ONNX node {node}")
    return sizes


@operator("Reshape", until=4)
def _reshape_fixed(node: Node, x: Tensor) -> Tensor:
    return _reshape(node, x, node.get("shape"))


@operator("Reshape", since=5, numbers=(1,))
def _reshape(node: Node, x: Tensor, shape: list[Any]) -> Tensor:
    keeps = not node.get("allowzero", 0)
    sizes = [
        x.shape[place] if keeps and isinstance(size, int) and size == 0 else size
        for place, size in enumerate(shape)
    ]
    return x.reshape(sizes)


@operator("Flatten")
def _flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    rows = math.prod(x.shape[:axis])
    return x.reshape(rows, math.prod(x.shape[axis:]))


@operator("Transpose")
def _transpose(node: Node, x: Tensor) -> Tensor:
    return x.permute(node.get("perm") or tuple(reversed(range(x.dim()))))


@operator("Unsqueeze", numbers=(1,))
def _unsqueeze(node: Node, x: Tensor, axes: list[int] | None = None) -> Tensor:
    places = node.get("axes") if axes is None else axes
    rank = x.dim() + len(places)
    for place in sorted(int(axis) % rank for axis in places):
        x = x.unsqueeze(place)
    return x


@operator("Squeeze", numbers=(1,))
def _squeeze(node: Node, x: Tensor, axes: list[int] | None = None) -> Tensor:
    places = node.get("axes") if axes is None else axes
    if places is None:
        return x.squeeze()
    for place in sorted((int(axis) % x.dim() for axis in places), reverse=True):
        x = x.squeeze(place)
    return x


@operator("Expand", numbers=(1,))
def _expand(node: Node, x: Tensor, shape: list[Any]) -> Tensor:
    sizes = check_sizes(node, shape)
    rank = max(x.dim(), len(sizes))
    own = [1] * (rank - x.dim()) + list(x.shape)
    asked = [1] * (rank - len(sizes)) + sizes
    return x.expand(
        [a if isinstance(b, int) and b == 1 else b for a, b in zip(own, asked, strict=True)]
    )


@operator("Tile", since=6, numbers=(1,))
def _tile(node: Node, x: Tensor, repeats: list[Any]) -> Tensor:
    check_sizes(node, [a * b for a, b in zip(x.shape, repeats, strict=True)])
    return x.repeat(repeats)


@operator("Concat")
def _concat(node: Node, *parts: Tensor) -> Tensor:
    return torch.cat(parts, node.get("axis", 1))


@operator("Split", numbers=(1,))
def _split(node: Node, x: Tensor, sizes: list[Any] | None = None) -> list[Tensor]:
    axis, count = node.get("axis", 0), len(node.outputs)
    listed = node.get("split") if sizes is None else sizes
    if listed is None:
        return list(x.split(-(-x.shape[axis] // count), axis))
    return list(x.split(list(listed), axis))


@operator("Slice", until=9)
def _slice_fixed(node: Node, x: Tensor) -> Tensor:
    return _slice(node, x, node.get("starts"), node.get("ends"), node.get("axes"))


@operator("Slice", since=10, numbers=(1, 2, 3, 4))
def _slice(
    node: Node,
    x: Tensor,
    starts: list[Any],
    ends: list[Any],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> Tensor:
    places = range(len(starts)) if axes is None else axes
    strides = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, places, strides, strict=True):
        x = _along(x, start, end, int(axis) % x.dim(), int(step))
    return x


def _along(x: Tensor, start: Any, end: Any, axis: int, step: int) -> Tensor:
    if step > 0:
        end = _LAST if isinstance(end, int) and end >= _END else end
        if isinstance(start, int) and start < 0 and not isinstance(x.shape[axis], torch.SymInt):
            start = max(start, -x.shape[axis])
        return x[(slice(None),) * axis + (slice(start, end, step),)]
    size = x.shape[axis]
    first = start + size if isinstance(start, int) and start < 0 else start
    first = torch.sym_min(first, size - 1)
    if isinstance(start, int) and start < -1:
        first = torch.sym_max(first, 0)
    if isinstance(end, int) and end <= -_END:
        last: Any = -1
    else:
        last = end + size if isinstance(end, int) and end < 0 else end
        last = torch.sym_min(torch.sym_max(last, -1), first)
    places = torch.arange(first, last, step)
    return x.index_select(axis, places)


@operator("Pad", until=10)
def _pad_fixed(node: Node, x: Tensor) -> Tensor:
    return _pad(node, x, node.get("pads"), node.get("value", 0.0))


@operator("Pad", since=11, numbers=(1, 3), scalars=(2,))
def _pad(
    node: Node, x: Tensor, pads: list[Any], value: Any = None, axes: list[int] | None = None
) -> Tensor:
    places = list(range(x.dim())) if axes is None else [int(axis) % x.dim() for axis in axes]
    mode, half = node.get("mode", "constant"), len(pads) // 2
    around = {axis: (pads[i], pads[i + half]) for i, axis in enumerate(places)}
    check_sizes(node, [s + sum(around.get(i, (0, 0))) for i, s in enumerate(x.shape)])
    if mode == "constant":
        flat = [number for axis in reversed(range(x.dim())) for number in around.get(axis, (0, 0))]
        fill = 0 if value is None else value
        if isinstance(fill, Tensor):
            raise ModelError(f"the ONNX node {node} pads with a value that depends on inputs")
        return functional.pad(x, flat, value=fill)
    for axis, (before, after) in around.items():
        if not (isinstance(before, int) and isinstance(after, int) and before == after == 0):
            x = _pad_along(x, axis, before, after, mode)
    return x


def _pad_along(x: Tensor, axis: int, before: Any, after: Any, mode: str) -> Tensor:
    size = x.shape[axis]
    places = torch.arange(-before, size + after)
    if mode == "edge":
        places = places.clamp(0, size - 1)
    elif mode == "wrap":
        places = places.remainder(size)
    elif mode == "reflect":
        places = (size - 1) - (places.abs() - (size - 1)).abs()
    else:
        raise ValueError(f"it has the mode {mode}")
    return x.index_select(axis, places)


@operator("ConstantOfShape", numbers=(0,))
def _filled(node: Node, shape: list[Any]) -> Tensor:
    value = node.get("value")
    fill, dtype = (0.0, torch.float32) if value is None else (value.numbers[0], value.dtype)
    return torch.full(check_sizes(node, shape), fill, dtype=dtype)


@operator("Range", known=(0, 1, 2))
def _range(node: Node, start: Any, limit: Any, delta: Any) -> Tensor:
    if not all(isinstance(part, Known) for part in (start, limit, delta)):
        raise ModelError(f"the ONNX node {node} has limits that depend on values of inputs")
    first, last, step = (part.numbers[0] for part in (start, limit, delta))
    if not any(isinstance(number, SYMBOLS) for number in (first, last, step)):
        check_sizes(node, [max(0, math.ceil((last - first) / step))])
    return torch.arange(first, last, step, dtype=start.dtype)


@operator("EyeLike")
def _eye(node: Node, x: Tensor) -> Tensor:
    dtype = x.dtype if node.get("dtype") is None else DTYPES[node.get("dtype")]
    rows, columns = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None]
    return (columns - rows == node.get("k", 0)).to(dtype)


@operator("Trilu", numbers=(1,))
def _triangle(node: Node, x: Tensor, k: list[int] | None = None) -> Tensor:
    diagonal = int(k[0]) if k else 0
    return torch.triu(x, diagonal) if node.get("upper", 1) else torch.tril(x, diagonal)


@operator("DepthToSpace")
def _depth_to_space(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(x, b)
    parts = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // (b * b), h * b, w * b)


@operator("SpaceToDepth")
def _space_to_depth(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        return functional.pixel_unshuffle(x, b)
    parts = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * b * b, h // b, w // b)


@operator("Shape", "Size")
def _sizes(node: Node, *_: Any) -> Tensor:
    raise AssertionError("sizes are known")
