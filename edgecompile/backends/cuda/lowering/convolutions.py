"""Convolutions as those that Inductor has a template for: in two or three dimensions, not transposed,
without dilation.

In one dimension there is a second one of size 1. A transposed convolution becomes an ordinary one with
as many times the channels as it has phases, which are then put side by side: no zero is multiplied.
A dilated one becomes a product of the taps' inputs, which are put together, or where it is of groups,
an ordinary one whose weights have zeros between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.convolution_ops import Geometry
from edgecompile.backends.lowering.constants import PACKED_PREFIX
from edgecompile.backends.lowering.convolutions import Match, bias_node, constant_node
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import erase_chain

aten = torch.ops.aten


def emit_convolution(gm: GraphModule, match: Match, last: Node) -> None:
    """Puts operators in place of a convolution and of the norm that was folded into it."""
    g, weight = match.geometry, match.weight.tensor
    dilated = any(d > 1 for d in g.dilation)
    if g.transposed:
        made = _phases(_spread(weight, g), g)
    elif dilated and g.groups == 1:
        made = weight.movedim(1, -1).flatten(1)
    else:
        made = _spread(weight, g) if dilated else weight
        made = made.unsqueeze(2) if made.dim() == 3 else made
    with gm.graph.inserting_before(match.node):
        if match.weight.plain and made is weight:
            operand = match.weight.node(gm)
        else:
            prefix = PACKED_PREFIX + "conv_"
            operand = constant_node(gm, prefix, match.weight, made.contiguous(), repr(g))
        bias = bias_node(gm, match.bias)
    operands = [match.x, operand, *([] if bias is None else [bias])]

    def run(x: Tensor, w: Tensor, *biases: Tensor) -> Tensor:
        b = biases[0] if biases else None
        if g.transposed:
            return _transposed(x, w, b, g)
        if dilated and g.groups == 1:
            return _gathered(x, w, b, g)
        return _plain(_padded(x, g.begins, g.ends), w, b, g.stride, g.groups)

    (result,) = inline(gm, match.node, run, operands, symbolic=True)
    result.meta = dict(last.meta)
    last.replace_all_uses_with(result)
    erase_chain(gm, match.node, last)


def _plain(x: Tensor, w: Tensor, b: Tensor | None, stride: Sequence[int], groups: int) -> Tensor:
    """A convolution without padding; ``w`` has two spatial dimensions at least."""
    lift = x.dim() < w.dim()
    if lift:
        x, stride = x.unsqueeze(2), (1, *stride)
    convolve: Any = aten.conv2d if x.dim() == 4 else aten.conv3d
    y: Tensor = convolve(x, w, b, list(stride), [0], [1], groups)
    return y.squeeze(2) if lift else y


def _padded(x: Tensor, begins: Sequence[int], ends: Sequence[int]) -> Tensor:
    """With zeros around; negative widths cut off."""
    pairs = zip(reversed(begins), reversed(ends), strict=True)
    widths = [width for pair in pairs for width in pair]
    return aten.constant_pad_nd(x, widths, 0.0) if any(widths) else x


def _spread(weight: Tensor, g: Geometry) -> Tensor:
    """The weight with zeros between its taps, as a dilation of 1 wants it."""
    spans = [d * (k - 1) + 1 for k, d in zip(g.kernel, g.dilation, strict=True)]
    wide = weight.new_zeros(*weight.shape[:2], *spans)
    wide[(slice(None), slice(None), *(slice(None, None, d) for d in g.dilation))] = weight
    return wide


def _phases(weight: Tensor, g: Geometry) -> Tensor:
    """The ordinary convolution's weight: its outputs are, for each of these, one for each phase."""
    n, taps = weight.shape[0], [-(-k // s) for k, s in zip(weight.shape[2:], g.stride, strict=True)]
    sizes = [t * s for t, s in zip(taps, g.stride, strict=True)]
    short = [size - k for size, k in zip(sizes, weight.shape[2:], strict=True)]
    weight = _padded(weight, [0] * len(short), short)
    split = weight.reshape(n, -1, *(d for pair in zip(taps, g.stride, strict=True) for d in pair))
    count = len(taps)
    order = [0, *(3 + 2 * i for i in range(count)), 1, *(2 + 2 * i for i in range(count))]
    made = split.permute(order).flatten(0, count).flip(list(range(2, 2 + count)))
    return made.unsqueeze(2) if count == 1 else made


def _transposed(x: Tensor, w: Tensor, b: Tensor | None, g: Geometry) -> Tensor:
    count, stride = len(g.kernel), g.stride
    taps = list(w.shape[-count:])
    spans = [d * (k - 1) + 1 for k, d in zip(g.kernel, g.dilation, strict=True)]
    # Outputs that no input reaches, which an output padding may ask for.
    more = [
        max(0, -(-(span - end - tap * s) // s))
        for span, end, tap, s in zip(spans, g.ends, taps, stride, strict=True)
    ]
    ends = [tap - 1 + extra for tap, extra in zip(taps, more, strict=True)]
    y = _plain(_padded(x, [tap - 1 for tap in taps], ends), w, None, [1] * count, g.groups)
    steps = y.shape[2:]
    y = y.reshape(y.shape[0], -1, *stride, *steps)
    order = [0, 1, *(d for i in range(count) for d in (2 + count + i, 2 + i))]
    y = y.permute(order).reshape(
        y.shape[0], y.shape[1], *(n * s for n, s in zip(steps, stride, strict=True))
    )
    for i in range(count):
        full = (x.shape[2 + i] - 1) * stride[i] + spans[i]
        y = aten.slice(y, 2 + i, g.begins[i], full - g.ends[i])
    return y if b is None else y + b.reshape(-1, *[1] * count)


def _gathered(x: Tensor, w: Tensor, b: Tensor | None, g: Geometry) -> Tensor:
    """As a product of the rows that all taps of an output read."""
    x, count = _padded(x, g.begins, g.ends), len(g.kernel)
    rows = x.movedim(1, -1)
    parts = []
    for tap in product(*map(range, g.kernel)):
        part = rows
        for i in range(count):
            start = tap[i] * g.dilation[i]
            size = (x.shape[2 + i] - g.dilation[i] * (g.kernel[i] - 1) - 1) // g.stride[i] + 1
            part = aten.slice(part, 1 + i, start, start + (size - 1) * g.stride[i] + 1, g.stride[i])
        parts.append(part)
    assert len(parts) == math.prod(g.kernel)
    return torch.nn.functional.linear(torch.cat(parts, -1), w, b).movedim(-1, 1)
