"""The operator for convolutions that graph lowering emits, and the layout of its packed weights.

A weight is taken in the form ``[out, in of a group, *kernel]``, transposed convolutions' as well
(:func:`canonical_weight`), and read as rows ``[out][K]`` with K in the order tap, channel
(:func:`tap_order`), which are packed as :func:`edgecompile.backends.operators.ops.pack_weight` packs: all
groups as one matrix where a group has few outputs (:func:`is_channel_wise`), else each group by
itself, one group's panels after the other's. ``native/kernels/convolution/convolution.h`` reads the same.

A weight of 3×3 may be packed for Winograd's tiles instead (:func:`choose_tile`): in place of nine
taps are the points of a tile, 16 or 36. The number of elements tells which it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgecompile.backends.operators import ops

_Sizes = Sequence[int]
_CHANNEL_WISE = 8  # outputs of a group up to which vectors run over channels

#: Where the polynomials of Winograd's tiles are evaluated beside infinity, by the outputs along a
#: tile's side. ``convolution_winograd.cpp`` has the same.
_POINTS = {2: (0, 1, -1), 4: (0, 0.75, -0.75, 1.5, -1.5)}
# Channels in from which tiles pay, and up to which a block of them stays in the second cache.
_TILED_CHANNELS = {2: range(16, 1025), 4: range(16, 513)}
# Outputs of an image from which tiles pay. Their weights take 16/9 and 4 times the memory, and
# reading those costs more than multiplications save where few outputs share them.
_TILED_OUTPUTS = {2: 64, 4: 512}
# What taps multiply must be this many times what tiles do: 2.25 and 4 times if tiles are full, fewer
# where they reach beyond the image.
_TILED_SAVING = {2: 1.5, 4: 2.5}


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution; one number for each spatial dimension.

    Attributes:
        kernel, stride, dilation: torch's arguments of these names.
        begins, ends: zeros before the first element and behind the last; of a transposed
            convolution what is cut off there, or appended where it is negative (torch's
            ``output_padding`` is less cut off at the end).
        transposed: whether it is one.
        groups: their number.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    groups: int = 1

    @classmethod
    def of(
        cls, kernel: _Sizes, stride: _Sizes, padding: _Sizes, dilation: _Sizes, *rest: Any
    ) -> Geometry:
        """From the arguments of the operator; ``padding`` has all begins, then all ends."""
        half = len(kernel)
        begins, ends = padding[:half], padding[half:]
        sizes: Any = map(tuple, (kernel, stride, begins, ends, dilation))
        return cls(*sizes, *rest)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments that :meth:`of` reads."""
        sizes = self.kernel, self.stride, (*self.begins, *self.ends), self.dilation
        return *map(list, sizes), self.transposed, self.groups

    @property
    def pointwise(self) -> bool:
        """Whether each output reads all channels of one pixel, the one at its own place."""
        if self.groups != 1 or self.transposed:
            return False
        ones, zeros = (1,) * len(self.kernel), (0,) * len(self.kernel)
        return (self.kernel, self.stride, self.begins, self.ends) == (ones, ones, zeros, zeros)

    @property
    def tileable(self) -> bool:
        """Whether Winograd's tiles can compute it."""
        if self.groups != 1 or self.transposed:
            return False
        return (self.kernel, self.stride, self.dilation) == ((3, 3), (1, 1), (1, 1))


def is_channel_wise(groups: int, n: int) -> bool:
    """Whether a convolution with ``n`` outputs in all is computed channel by channel."""
    return groups > 1 and n // groups <= _CHANNEL_WISE


def canonical_weight(weight: Tensor, transposed: bool, groups: int) -> Tensor:
    """``[out, in of a group, *kernel]`` of a weight as torch has it."""
    if not transposed:
        return weight
    inputs, outputs = weight.shape[:2]
    split = weight.reshape(groups, inputs // groups, outputs, *weight.shape[2:])
    return split.transpose(1, 2).reshape(groups * outputs, inputs // groups, *weight.shape[2:])


def _at(tap: tuple[int, ...]) -> Any:
    """The index of a tap's ``[out, in of a group]`` in a canonical weight."""
    return slice(None), slice(None), *tap


def tap_order(geometry: Geometry) -> list[tuple[int, ...]]:
    """The kernel's places in the order in which packed weights have them.

    Of a transposed convolution, output ``o`` gets tap ``t`` where ``o - t·dilation + begin`` is a
    multiple of the stride: the remainder of ``o`` names the phase, and those follow each other.
    """
    axes = []
    for kernel, stride, begin, dilation in zip(
        geometry.kernel, geometry.stride, geometry.begins, geometry.dilation, strict=True
    ):
        taps = range(kernel)
        if geometry.transposed:
            phases = [(t * dilation - begin) % stride for t in taps]
            axes.append([[t for t in reversed(taps) if phases[t] == r] for r in range(stride)])
        else:
            axes.append([list(taps)])
    return [tap for phases in product(*axes) for tap in product(*phases)]


def packed_order(geometry: Geometry) -> tuple[object, ...]:
    """What :func:`pack_convolution` reads of a geometry: where it is equal, packed weights are, too."""
    return tap_order(geometry), geometry.transposed, geometry.groups


def choose_tile(channels: int, uses: Sequence[tuple[Geometry, _Sizes]]) -> int:
    """The outputs along the side of the tile that pays for a weight; 0: none.

    Args:
        channels: the number of channels in.
        uses: the convolutions that read the weight, each with the sizes of its result behind the
            channels. It is stored once, so all get the same tile.
    """
    if not all(geometry.tileable for geometry, _ in uses):
        return 0
    outputs = sum(math.prod(sizes) for _, sizes in uses)
    for tile in (4, 2):
        tiles = sum(math.prod(-(-size // tile) for size in sizes) for _, sizes in uses)
        shared = outputs >= _TILED_OUTPUTS[tile] * len(uses)
        saving = 9 * outputs >= _TILED_SAVING[tile] * tiles * (tile + 2) ** 2
        if channels in _TILED_CHANNELS[tile] and shared and saving:
            return tile
    return 0


def _weight_transform(tile: int) -> Tensor:
    """Float64 ``[tile + 2, 3]``: three taps of one axis to a tile's points, infinity the last."""
    points = np.array(_POINTS[tile])
    apart = points[:, None] - points + np.eye(len(points))
    rows = np.vander(points, 3, increasing=True) / apart.prod(axis=1, keepdims=True)
    return torch.from_numpy(np.vstack([rows, [0, 0, 1]]))


def pack_convolution(weight: Tensor, geometry: Geometry, tile: int = 0) -> Tensor:
    """Packs a canonical weight ``[out, in of a group, *kernel]``: float32 ``[panels, K, 32]``.

    Args:
        weight: the weight.
        geometry: the convolution.
        tile: what :func:`choose_tile` gives; 0: the taps as they are.
    """
    n, groups = weight.shape[0], geometry.groups
    if tile:
        g = _weight_transform(tile)
        points = torch.einsum("pi,qj,ncij->npqc", g, g, weight.double())
        return ops.pack_weight(points.reshape(n, -1).float())
    taps = [weight[_at(tap)] for tap in tap_order(geometry)]
    rows = torch.stack(taps, 1).reshape(n, -1)
    if groups == 1 or is_channel_wise(groups, n):
        return ops.pack_weight(rows)
    return torch.cat([ops.pack_weight(part) for part in rows.chunk(groups)])


def _unpack(packed: Tensor, geometry: Geometry, n: int, width: int) -> Tensor:
    """The canonical weight that :func:`pack_convolution` packed; ``width`` channels in a group."""
    order = tap_order(geometry)
    k, groups = len(order) * width, geometry.groups
    for tile in _POINTS if geometry.tileable else ():
        if packed.shape[1] == (tile + 2) ** 2 * width:
            points = ops.unpack_weight(packed, n, (tile + 2) ** 2 * width).double()
            inverse = torch.linalg.pinv(_weight_transform(tile))
            points = points.reshape(n, tile + 2, tile + 2, width)
            return torch.einsum("ip,jq,npqc->ncij", inverse, inverse, points).float()
    if groups == 1 or is_channel_wise(groups, n):
        rows = ops.unpack_weight(packed, n, k)
    else:
        parts = packed.chunk(groups)
        rows = torch.cat([ops.unpack_weight(part, n // groups, k) for part in parts])
    weight = rows.new_empty(n, width, *geometry.kernel)
    for i, tap in enumerate(order):
        weight[_at(tap)] = rows[:, i * width : (i + 1) * width]
    return weight


def _convolution_cpu(
    x: Tensor, w_packed: Tensor, bias: Tensor | None, residual: Tensor | None, *rest: Any
) -> Tensor:
    *settings, n, act = rest
    g = Geometry.of(*settings)
    weight = _unpack(w_packed, g, n, x.shape[1] // g.groups)
    functional: Any = torch.nn.functional
    dims = len(g.kernel)
    sign = -1 if g.transposed else 1
    pairs = zip(reversed(g.begins), reversed(g.ends), strict=True)
    widths = [sign * width for pair in pairs for width in pair]
    if g.transposed:
        plain = weight.reshape(g.groups, n // g.groups, -1, *g.kernel).transpose(1, 2)
        transpose = getattr(functional, f"conv_transpose{dims}d")
        y = transpose(x, plain.flatten(0, 1), None, g.stride, groups=g.groups, dilation=g.dilation)
        y = functional.pad(y, widths)
        if bias is not None:
            y = y + bias.reshape(-1, *[1] * dims)
    else:
        convolve = getattr(functional, f"conv{dims}d")
        y = convolve(functional.pad(x, widths), weight, bias, g.stride, 0, g.dilation, g.groups)
    return _channels_last(x, y.shape[2:], n).copy_(ops.finish(y, residual, act))


def _convolution_fake(
    x: Tensor, w_packed: Tensor, bias: Tensor | None, residual: Tensor | None, *rest: Any
) -> Tensor:
    *settings, n, _ = rest
    g = Geometry.of(*settings)
    sizes = []
    for i, size in enumerate(x.shape[2:]):
        span = g.dilation[i] * (g.kernel[i] - 1)
        pads = g.begins[i] + g.ends[i]
        if g.transposed:
            sizes.append((size - 1) * g.stride[i] - pads + span + 1)
        else:
            sizes.append((size + pads - span - 1) // g.stride[i] + 1)
    return _channels_last(x, sizes, n)


def _channels_last(x: Tensor, sizes: Sequence[int], n: int) -> Tensor:
    """An empty result in the memory order of the operator's contract."""
    return x.new_empty((x.shape[0], *sizes, n)).movedim(-1, 1)


CONVOLUTION = ops.define(
    "ec_convolution(Tensor x, Tensor w_packed, Tensor? bias, Tensor? residual, int[] kernel, int[] stride, "
    "int[] padding, int[] dilation, bool transposed, int groups, int n, int act) -> Tensor",
    _convolution_cpu,
    _convolution_fake,
)
