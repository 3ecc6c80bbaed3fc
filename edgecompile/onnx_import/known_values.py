"""Operators on known numbers: the arithmetic with sizes, without a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from edgecompile.onnx_import.elements import DTYPES
from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.sizes import (
    ELEMENTWISE,
    MOST,
    SYMBOLS,
    Known,
    as_type,
    cast,
    each,
    known,
    of_shape,
)

#: The largest power of a size of an input.
_MOST_POWER = 8


def compute_known(node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """The results of a node that gives known numbers; None: it has to be computed with tensors."""
    if node.domain:
        return None
    if node.operator in ("Shape", "Size"):
        return (_sizes(node, inputs[0]),)
    if node.operator == "Constant":
        return (_constant(node),)
    given = [value for value in inputs if value is not None]
    if not given or not all(isinstance(value, Known) for value in given):
        return None
    if node.operator in ELEMENTWISE:
        function, truth = ELEMENTWISE[node.operator]
        if node.operator in ("Floor", "Ceil", "Pow", "Mod") and not _plain(given, node):
            return None
        arrays, dtype = [value.array for value in given], given[0].dtype
        result = arrays[0] if len(arrays) == 1 and node.operator in ("Min", "Max") else None
        if result is None and len(arrays) > 2:
            result = arrays[0]
            for array in arrays[1:]:
                result = each(function, result, array)
        elif result is None:
            result = each(function, *arrays)
        dtype = torch.bool if truth else dtype
        return _limited(Known(each(lambda number: as_type(number, dtype), result), dtype))
    moved = _MOVES.get(node.operator)
    if moved is None:
        return None
    result = moved(node, *inputs)
    if result is None:
        return None
    return result if isinstance(result, list) else _limited(result)


def _limited(value: Known) -> Sequence[Any]:
    return (value if value.array.size <= MOST else value.tensor(),)


def _plain(given: Sequence[Known], node: Node) -> bool:
    """Whether Python computes what ONNX means: no fmod, no root of a negative number, no endless power."""
    if node.operator != "Pow":
        return not node.get("fmod")
    base, power = given
    return not power.symbolic and all(
        isinstance(n, SYMBOLS) or (n >= 0 and (n <= _MOST_POWER or not base.symbolic))
        for value in given
        for n in value.numbers
    )


def _sizes(node: Node, value: Any) -> Known:
    sizes = value.array.shape if isinstance(value, Known) else value.shape
    if node.operator == "Size":
        return known([math.prod(sizes)], (), torch.int64)
    return of_shape(list(sizes)[node.get("start", 0) : node.get("end")])


def _constant(node: Node) -> Any:
    for name in ("value", "value_int", "value_ints", "value_float", "value_floats"):
        value = node.get(name)
        if value is None:
            continue
        if isinstance(value, (Known, torch.Tensor)):
            return value
        dtype = torch.int64 if name.startswith("value_int") else torch.float32
        numbers = value if isinstance(value, list) else [value]
        return known(numbers, (len(numbers),) if isinstance(value, list) else (), dtype)
    raise ValueError("it has no value")


def _cast(node: Node, x: Known) -> Known | None:
    dtype = DTYPES.get(node.get("to"))
    if dtype is None:
        return None
    name = "float32" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")
    if not x.symbolic:  # numpy rounds and wraps as tensors do
        with np.errstate(all="ignore"):
            numbers = np.array(x.numbers).astype(name).tolist()
        return known(numbers, x.array.shape, dtype)
    return Known(each(lambda number: as_type(cast(number, dtype), dtype), x.array), dtype)


def _gather(node: Node, x: Known, places: Known) -> Known | None:
    if places.symbolic:
        return None
    indices = places.array.astype(np.int64)
    result = np.take(x.array, indices, axis=node.get("axis", 0))
    return Known(_object(result), x.dtype)


def _object(value: Any) -> Any:
    """numpy gives a single number, not an array, where no dimension is left."""
    if isinstance(value, np.ndarray):
        return value
    result = np.empty((), object)
    result[()] = value
    return result


def _slice(node: Node, x: Known, *parts: Known | None) -> Known | None:
    if node.opset < 10:
        starts, ends = node.get("starts"), node.get("ends")
        axes, steps = node.get("axes") or range(len(starts)), [1] * len(starts)
    else:
        if any(part is not None and part.symbolic for part in parts):
            return None
        lists: list[Any] = [None if part is None else part.numbers for part in parts]
        lists += [None] * (4 - len(lists))
        starts, ends = lists[0], lists[1]
        axes = range(len(starts)) if lists[2] is None else lists[2]
        steps = [1] * len(starts) if lists[3] is None else lists[3]
    where = [slice(None)] * x.array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # Behind the first element, going down, numpy's end is None.
        low = end < -x.array.shape[axis] and step < 0
        where[axis] = slice(start, None if low else end, step)
    return Known(x.array[tuple(where)], x.dtype)


def _concat(node: Node, *parts: Known) -> Known:
    arrays = [part.array for part in parts]
    return Known(np.concatenate(arrays, axis=node.get("axis", 0)), parts[0].dtype)


def _axes(node: Node, axes: Known | None) -> list[int] | None:
    if axes is not None:
        return [int(axis) for axis in axes.numbers]
    listed = node.get("axes")
    return None if listed is None else list(listed)


def _unsqueeze(node: Node, x: Known, axes: Known | None = None) -> Known:
    places = _axes(node, axes) or []
    return Known(np.expand_dims(x.array, tuple(places)), x.dtype)


def _squeeze(node: Node, x: Known, axes: Known | None = None) -> Known:
    places = _axes(node, axes)
    return Known(_object(np.squeeze(x.array, None if places is None else tuple(places))), x.dtype)


def _reshape(node: Node, x: Known, shape: Known | None = None) -> Known | None:
    listed = node.get("shape") if shape is None else shape.numbers
    if shape is not None and shape.symbolic:
        return None
    sizes = [
        x.array.shape[place] if size == 0 and not node.get("allowzero") else int(size)
        for place, size in enumerate(listed)
    ]
    return Known(x.array.reshape(sizes), x.dtype)


def _transpose(node: Node, x: Known) -> Known:
    return Known(np.transpose(x.array, node.get("perm")), x.dtype)


def _where(node: Node, condition: Known, a: Known, b: Known) -> Known:
    return Known(each(lambda c, x, y: x if c else y, condition.array, a.array, b.array), a.dtype)


def _filled(node: Node, shape: Known) -> Known | None:
    value = node.get("value")
    fill = known([0.0], (1,), torch.float32) if value is None else value
    if shape.symbolic or math.prod(shape.numbers) > MOST or shape.array.size > 2:
        return None
    sizes = tuple(int(size) for size in shape.numbers)
    return known(fill.numbers * math.prod(sizes), sizes, fill.dtype)


def _range(node: Node, start: Known, limit: Known, delta: Known) -> Known | None:
    if any(part.symbolic for part in (start, limit, delta)) or start.dtype.is_floating_point:
        return None
    numbers = range(start.numbers[0], limit.numbers[0], delta.numbers[0])
    return known(numbers, (len(numbers),), start.dtype) if len(numbers) <= MOST else None


def _expand(node: Node, x: Known, shape: Known) -> Known | None:
    if shape.symbolic or math.prod(shape.numbers) > MOST:
        return None
    sizes = np.broadcast_shapes(x.array.shape, tuple(int(size) for size in shape.numbers))
    return Known(np.broadcast_to(x.array, sizes).copy(), x.dtype)


def _split(node: Node, x: Known, parts: Known | None = None) -> list[Known] | None:
    axis, count = node.get("axis", 0), len(node.outputs)
    sizes = node.get("split") if parts is None else parts.numbers
    if sizes is None:
        each_one = -(-x.array.shape[axis] // count)
        sizes = [each_one] * (count - 1)
    elif any(not isinstance(size, int) for size in sizes):
        return None
    else:
        sizes = sizes[:-1]
    return [Known(p, x.dtype) for p in np.split(x.array, np.cumsum(sizes).tolist(), axis)]


def _reduce(function: Callable[[Any, Any], Any]) -> Callable[..., Known | None]:
    def reduce(node: Node, x: Known, axes: Known | None = None) -> Known | None:
        if x.array.ndim != 1 or x.array.size == 0 or node.get("noop_with_empty_axes"):
            return None
        result = x.numbers[0]
        for number in x.numbers[1:]:
            result = as_type(function(result, number), x.dtype)
        return known([result], (1,) if node.get("keepdims", 1) else (), x.dtype)

    return reduce


_MOVES: dict[str, Callable[..., Any]] = {
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Where": _where,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Expand": _expand,
    "Split": _split,
    "ReduceProd": _reduce(lambda a, b: a * b),
    "ReduceSum": _reduce(lambda a, b: a + b),
    "ReduceMax": _reduce(torch.sym_max),
    "ReduceMin": _reduce(torch.sym_min),
}
