"""The operator for convolutions that graph lowering emits, and the layout of its packed weights.

A weight is taken in the form ``[out, in of a group, *kernel]``, transposed convolutions' as well
(:func:`canonical_weight`), and read as rows ``[out][K]`` with K in the order tap, channel
(:func:`tap_order`), which are packed as :func:`edgecompile.backends.ops.pack_weight` packs: all
groups as one matrix where a group has few outputs (:func:`is_channel_wise`), else each group by
itself, one group's panels after the other's. ``native/kernels/convolution/convolution.h`` reads the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from edgecompile.backends import ops

__all__ = [
    "CONVOLUTION",
    "Geometry",
    "canonical_weight",
    "is_channel_wise",
    "pack_convolution",
    "tap_order",
]

_CHANNEL_WISE = 8  # outputs of a group up to which vectors run over channels


@dataclass(frozen=True)
class Geometry:
    """What a convolution does to sizes; one number for each spatial dimension.

    Attributes:
        kernel, stride, dilation: as torch has them.
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

    @property
    def pointwise(self) -> bool:
        """Whether each output reads all channels of one pixel, the one at its own place."""
        if self.groups != 1 or self.transposed:
            return False
        ones, zeros = (1,) * len(self.kernel), (0,) * len(self.kernel)
        return (self.kernel, self.stride, self.begins, self.ends) == (ones, ones, zeros, zeros)


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


def pack_convolution(weight: Tensor, geometry: Geometry) -> Tensor:
    """Packs a canonical weight ``[out, in of a group, *kernel]``: float32 ``[panels, K, 32]``."""
    n, groups = weight.shape[0], geometry.groups
    taps = [weight[_at(tap)] for tap in tap_order(geometry)]
    rows = torch.stack(taps, 1).reshape(n, -1)
    if groups == 1 or is_channel_wise(groups, n):
        return ops.pack_weight(rows)
    return torch.cat([ops.pack_weight(part) for part in rows.chunk(groups)])


def _unpack(packed: Tensor, geometry: Geometry, n: int, width: int) -> Tensor:
    """The canonical weight that :func:`pack_convolution` packed; ``width`` channels in a group."""
    order = tap_order(geometry)
    k, groups = len(order) * width, geometry.groups
    if groups == 1 or is_channel_wise(groups, n):
        rows = ops.unpack_weight(packed, n, k)
    else:
        parts = packed.chunk(groups)
        rows = torch.cat([ops.unpack_weight(part, n // groups, k) for part in parts])
    weight = rows.new_empty(n, width, *geometry.kernel)
    for i, tap in enumerate(order):
        weight[_at(tap)] = rows[:, i * width : (i + 1) * width]
    return weight


def _geometry(
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> Geometry:
    half = len(kernel)
    begins, ends = tuple(padding[:half]), tuple(padding[half:])
    return Geometry(tuple(kernel), tuple(stride), begins, ends, tuple(dilation), transposed, groups)


def _channels_last(x: Tensor) -> Tensor:
    """The same values in the memory order of the operator's contract."""
    sizes = x.movedim(1, -1).shape
    return x.new_empty(sizes).movedim(-1, 1).copy_(x)


def _convolution_cpu(
    x: Tensor,
    w_packed: Tensor,
    bias: Tensor | None,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
    n: int,
    act: int,
) -> Tensor:
    g = _geometry(kernel, stride, padding, dilation, transposed, groups)
    weight = _unpack(w_packed, g, n, x.shape[1] // groups)
    functional = torch.nn.functional
    sign = -1 if transposed else 1
    widths = [
        sign * w for pair in zip(reversed(g.begins), reversed(g.ends), strict=True) for w in pair
    ]
    dims = len(g.kernel) - 1
    if transposed:
        outputs = n // groups
        plain = weight.reshape(groups, outputs, -1, *g.kernel).transpose(1, 2)
        transpose: Any = (
            functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d
        )[dims]  # fmt: skip
        y = transpose(x, plain.flatten(0, 1), None, g.stride, groups=groups, dilation=g.dilation)
        y = functional.pad(y, widths)
        if bias is not None:
            y = y + bias.reshape(-1, *[1] * len(g.kernel))
    else:
        convolve: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[dims]
        y = convolve(functional.pad(x, widths), weight, bias, g.stride, 0, g.dilation, groups)
    return _channels_last(ops.activate(y, act))


def _convolution_fake(
    x: Tensor,
    w_packed: Tensor,
    bias: Tensor | None,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
    n: int,
    act: int,
) -> Tensor:
    sizes = []
    for i, size in enumerate(x.shape[2:]):
        span = dilation[i] * (kernel[i] - 1)
        pads = padding[i] + padding[len(kernel) + i]
        if transposed:
            sizes.append((size - 1) * stride[i] - pads + span + 1)
        else:
            sizes.append((size + pads - span - 1) // stride[i] + 1)
    return x.new_empty((x.shape[0], *sizes, n)).movedim(-1, 1)


CONVOLUTION = ops.define(
    "ec_convolution(Tensor x, Tensor w_packed, Tensor? bias, int[] kernel, int[] stride, "
    "int[] padding, int[] dilation, bool transposed, int groups, int n, int act) -> Tensor",
    _convolution_cpu,
    _convolution_fake,
    "AOTITorchError aoti_torch_cpu_ec_convolution(AtenTensorHandle, AtenTensorHandle, "
    "AtenTensorHandle*, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, "
    "const int64_t*, int64_t, int32_t, int64_t, int64_t, int64_t, AtenTensorHandle*)",
)
