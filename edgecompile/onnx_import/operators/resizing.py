"""Resize and Upsample, by ONNX's own formulas along one dimension after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.operators.shapes import check_sizes
from edgecompile.onnx_import.table import operator

#: More than the sides of most images.
_MOST_COMPARED = 8192


@operator("Upsample", since=7, until=8)
def _upsample_fixed(node: Node, x: Tensor) -> Tensor:
    return _resize_by(node, x, node.get("scales"))


@operator("Upsample", "Resize", since=9, until=10, numbers=(1,))
def _resize_by(node: Node, x: Tensor, scales: list[float]) -> Tensor:
    return _resize(node, x, None, list(scales))


@operator("Resize", since=11, numbers=(2, 3))
def _resize(
    node: Node,
    x: Tensor,
    roi: Any,
    scales: list[float] | None = None,
    sizes: list[Any] | None = None,
) -> Tensor:
    if (
        node.get("antialias", 0)
        or node.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    ):
        raise ValueError("antialias and tf_crop_and_resize aren't supported")
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ValueError("keep_aspect_ratio_policy isn't supported")
    axes = [axis % x.dim() for axis in node.get("axes") or range(x.dim())]
    factors: list[Any] = list(scales) if scales else [None] * len(axes)
    asked = [
        sizes[place] if sizes and factors[place] is None else _scaled(x.shape[axis], factors[place])
        for place, axis in enumerate(axes)
    ]
    check_sizes(node, (*asked, *(n for axis, n in enumerate(x.shape) if axis not in axes)))
    for axis, wanted, factor in zip(axes, asked, factors, strict=True):
        size = x.shape[axis]
        if (factor is not None and factor == 1) or (factor is None and _same(wanted, size)):
            continue
        x = _along(node, x, axis, wanted, wanted / size if factor is None else factor)
    return x


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a == b


def _scaled(size: Any, factor: Any) -> Any:
    """A size times a factor, rounded to float32 and then down, as ONNX Runtime calculates."""
    if not isinstance(factor, float):
        return math.floor(size * factor)
    if isinstance(size, int):
        return int(np.float32(size) * np.float32(factor))
    part = _fraction(factor)
    return size * part.numerator // part.denominator


@cache
def _fraction(factor: float) -> Fraction:
    """The fraction that gives symbols the sizes that a factor of float32 gives numbers."""
    sizes = np.arange(_MOST_COMPARED)
    wanted = (sizes.astype(np.float32) * np.float32(factor)).astype(np.int64)
    for part in (Fraction(factor).limit_denominator(1000), Fraction(factor)):
        if [
            size * part.numerator // part.denominator for size in sizes.tolist()
        ] == wanted.tolist():
            return part
    raise ValueError(f"sizes that vary can't be multiplied by {factor:.9g} as float32 does it")


def _along(node: Node, x: Tensor, axis: int, wanted: Any, scale: Any) -> Tensor:
    mode, size = node.get("mode", "nearest"), x.shape[axis]
    places = _coordinates(node, size, wanted, scale)
    if mode == "nearest":
        return x.index_select(axis, _nearest(node, places, scale).clamp(0, size - 1))
    if mode not in ("linear", "cubic"):
        raise ValueError(f"the mode {mode} isn't supported")
    below = torch.floor(places)
    part = places - below
    first = below.to(torch.int64)
    if mode == "linear":
        taps = [(0, 1 - part), (1, part)]
    else:
        taps = [
            (step, _cubic(part - step, node.get("cubic_coeff_a", -0.75))) for step in (-1, 0, 1, 2)
        ]
    if node.get("exclude_outside", 0):
        taps = [
            (step, torch.where((first + step >= 0) & (first + step < size), weight, 0))
            for step, weight in taps
        ]
        total = sum((weight for _, weight in taps), torch.zeros_like(part))
        taps = [(step, weight / total) for step, weight in taps]
    shape = [-1 if dim == axis else 1 for dim in range(x.dim())]
    result: Any = None
    for step, weight in taps:
        picked = x.index_select(axis, (first + step).clamp(0, size - 1))
        term = picked * weight.reshape(shape).to(x.dtype)
        result = term if result is None else result + term
    return result


def _coordinates(node: Node, size: Any, wanted: Any, scale: Any) -> Tensor:
    """The place in the input of each element of the output."""
    places = torch.arange(wanted).to(torch.float32)
    usual = "asymmetric" if node.operator == "Upsample" or node.opset < 11 else "half_pixel"
    how = node.get("coordinate_transformation_mode", usual)
    if how == "asymmetric":
        return places / scale
    if how == "align_corners":
        return places * ((size - 1) / torch.sym_max(wanted - 1, 1))
    if how == "pytorch_half_pixel" and isinstance(wanted, int) and wanted <= 1:
        return torch.zeros_like(places)
    if how == "half_pixel_symmetric":
        whole = wanted / scale / size if not isinstance(scale, float) else wanted / (scale * size)
        centre = size / 2
        return centre * (1 - whole) + (places + 0.5) / scale - 0.5
    if how not in ("half_pixel", "pytorch_half_pixel"):
        raise ValueError(f"the coordinate_transformation_mode {how} isn't supported")
    return (places + 0.5) / scale - 0.5


_ROUND: dict[str, Callable[[Tensor], Tensor]] = {
    "round_prefer_floor": lambda x: torch.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: torch.floor(x + 0.5),
    "floor": torch.floor,
    "ceil": torch.ceil,
}


def _nearest(node: Node, places: Tensor, scale: Any) -> Tensor:
    usual = "round_prefer_floor"
    if node.opset < 11:  # which left it open: ONNX Runtime does this
        usual = "ceil" if scale < 1 else "floor"
    return _ROUND[node.get("nearest_mode", usual)](places).to(torch.int64)


def _cubic(distance: Tensor, a: float) -> Tensor:
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0))
