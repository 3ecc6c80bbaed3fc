"""Convolutions to the kernels of ours, with a sum and an activation behind them.

In one dimension there is a second one of size 1. A transposed convolution becomes an ordinary one with
as many times the channels as it has phases, which are then put side by side: no zero is multiplied.
Those in three dimensions go to Inductor's template, which knows no dilation: a dilated one becomes a
product of the taps' inputs, which are put together, or where it is of groups, an ordinary one whose
weights have zeros between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.cpu.lowering.activations import activation_of
from edgecompile.backends.cuda.kernels.convolution import CONVOLUTION, packed_weight
from edgecompile.backends.cuda.lowering.tiles import convolution_tile
from edgecompile.backends.lowering.constants import PACKED_PREFIX, constant_of, value_of
from edgecompile.backends.lowering.convolutions import Match, bias_node, constant_node
from edgecompile.backends.lowering.in_place import ChangesInPlace
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, erase_chain
from edgecompile.backends.operators.convolution import Geometry
from edgecompile.targets.gpu import GpuFacts

aten = torch.ops.aten

#: Until :func:`finish_convolutions` knows more.
_TILE = [32, 32, 32, 4, 2, 1]

#: Computes an ordinary convolution with zeros around: strides, begins and ends of every dimension.
_Convolve = Callable[[Sequence[int], Sequence[int], Sequence[int]], Tensor]


def emit_convolution(gm: GraphModule, match: Match, last: Node) -> None:
    """Puts operators in place of a convolution and of the norm that was folded into it."""
    g, weight = match.geometry, match.weight.tensor
    solid = len(g.kernel) == 3
    gathered = solid and not g.transposed and g.groups == 1 and max(g.dilation) > 1
    spread = g.transposed or solid
    constant = _spread(weight, g) if spread and not gathered and max(g.dilation) > 1 else weight
    if g.transposed:
        constant = _phases(constant, g)
    kernel, dilation = list(constant.shape[2:]), [1] * len(g.kernel) if spread else list(g.dilation)
    if gathered:
        constant = weight.movedim(1, -1).flatten(1)
    elif not solid:
        constant = packed_weight(
            constant.unsqueeze(2) if constant.dim() == 3 else constant, g.groups
        )
    with gm.graph.inserting_before(match.node):
        if match.weight.plain and constant is weight:
            operand = match.weight.node(gm)
        else:
            prefix = PACKED_PREFIX + "conv_"
            operand = constant_node(gm, prefix, match.weight, constant.contiguous, repr(g))
        bias = bias_node(gm, match.bias)
    operands = [match.x, operand, *([] if bias is None else [bias])]

    def run(x: Tensor, w: Tensor, *biases: Tensor) -> Tensor:
        b = biases[0] if biases else None
        if gathered:
            return _gathered(x, w, b, g)

        def convolve(
            b: Tensor | None, stride: Sequence[int], begins: Sequence[int], ends: Sequence[int]
        ) -> Tensor:
            if solid:
                y: Tensor = aten.conv3d(
                    _padded(x, begins, ends), w, b, list(stride), [0], [1], g.groups
                )
                return y
            flat = [1] * (4 - x.dim())
            zero = [0] * len(flat)
            y = CONVOLUTION(
                x.unsqueeze(2) if flat else x, w, b, None,
                [*flat, *kernel], [*flat, *stride], [*zero, *begins, *zero, *ends],
                [*flat, *dilation], g.groups, 0, _TILE,
            )  # fmt: skip
            return y.squeeze(2) if flat else y

        if g.transposed:
            y = _transposed(x, kernel, g, partial(convolve, None))
            return y if b is None else y + b.reshape(-1, *[1] * len(kernel))
        return convolve(b, g.stride, g.begins, g.ends)

    (result,) = inline(gm, match.node, run, operands, symbolic=True)
    result.meta = dict(last.meta)
    last.replace_all_uses_with(result)
    erase_chain(gm, match.node, last)


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
    return split.permute(order).flatten(0, count).flip(list(range(2, 2 + count)))


def _transposed(x: Tensor, taps: Sequence[int], g: Geometry, convolve: _Convolve) -> Tensor:
    """The phases' convolution, of ``taps`` each, side by side; without a bias."""
    count, stride = len(g.kernel), g.stride
    spans = [d * (k - 1) + 1 for k, d in zip(g.kernel, g.dilation, strict=True)]
    # Outputs that no input reaches, which an output padding may ask for.
    more = [
        max(0, -(-(span - end - tap * s) // s))
        for span, end, tap, s in zip(spans, g.ends, taps, stride, strict=True)
    ]
    ends = [tap - 1 + extra for tap, extra in zip(taps, more, strict=True)]
    y = convolve([1] * count, [tap - 1 for tap in taps], ends)
    steps = y.shape[2:]
    y = y.reshape(y.shape[0], -1, *stride, *steps)
    order = [0, 1, *(d for i in range(count) for d in (2 + count + i, 2 + i))]
    y = y.permute(order).reshape(
        y.shape[0], y.shape[1], *(n * s for n, s in zip(steps, stride, strict=True))
    )
    for i in range(count):
        full = (x.shape[2 + i] - 1) * stride[i] + spans[i]
        y = aten.slice(y, 2 + i, g.begins[i], full - g.ends[i])
    return y


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


def finish_convolutions(low: Lowering, gpu: GpuFacts, hints: Mapping[Any, Any]) -> None:
    """Takes over sums and activations behind convolutions, and chooses their tiles.

    Args:
        low: the graph, in the target's precision.
        gpu: the GPU that it is for.
        hints: the assumed value of each varying size, by symbol.
    """
    gm, changes, counts = low.gm, ChangesInPlace(low.gm), low.report.counts
    for node in [n for n in gm.graph.nodes if n.target is CONVOLUTION]:
        new, end = node, _end_of(node)
        residual = None if activation_of(end) else _residual(end)
        if residual is not None and not changes.between(node, residual[0]):
            new = _add(gm, node, end, *residual)
            end = _end_of(new)
            counts["residuals"] += 1
        behind = activation_of(end)
        if behind is not None:
            user, code = behind
            new.args = (*new.args[:9], code, new.args[10])
            user.replace_all_uses_with(end)
            gm.graph.erase_node(user)
            counts["convolved_activations"] += 1
        x, w, y = value_of(new.args[0]), constant_of(gm, new.args[1]), value_of(new)
        assert x is not None and w is not None and y is not None
        groups: Any = new.args[8]
        tile = convolution_tile(x, w, y, groups, gpu, hints)
        new.args = (*new.args[:10], tile)


def _end_of(node: Node) -> Node:
    """The convolution's node, or the one that takes its second dimension of size 1 away."""
    user = next(iter(node.users), None)
    lifted = len(node.users) == 1 and user is not None and user.target is aten.squeeze.dim
    return user if lifted else node  # type: ignore[return-value]


def _residual(node: Node) -> tuple[Node, Node] | None:
    """The sum that alone reads a node, and what is added there, of the same sizes and dtype."""
    user = next(iter(node.users), None)
    if user is None or len(node.users) != 1 or len(user.args) != 2 or user.kwargs:
        return None
    swapped = user.args[1] is node
    # A sum in place changes what its first operand is.
    if user.target is not aten.add.Tensor and (user.target is not aten.add_.Tensor or swapped):
        return None
    other = user.args[0 if swapped else 1]
    mine, value = value_of(node), value_of(other)
    if other is node or mine is None or value is None or mine.dtype != value.dtype:
        return None
    return (user, other) if str(mine.shape) == str(value.shape) else None  # type: ignore[return-value]


def _add(gm: GraphModule, node: Node, end: Node, total: Node, other: Node) -> Node:
    """The convolution, at the place of the sum behind it, with what is added there."""
    with gm.graph.inserting_before(total):
        if end is not node:
            lifted = gm.graph.call_function(aten.unsqueeze.default, (other, 2))
            value = value_of(other)
            assert value is not None
            lifted.meta = {**other.meta, "val": value.unsqueeze(2)}
            other = lifted
        new = gm.graph.call_function(CONVOLUTION, (*node.args[:3], other, *node.args[4:]))
        new.meta = dict(node.meta)
        result = new
        if end is not node:
            result = gm.graph.call_function(aten.squeeze.dim, (new, 2))
            result.meta = dict(end.meta)
    total.replace_all_uses_with(result)
    for old in dict.fromkeys((total, end, node)):
        gm.graph.erase_node(old)
    return new
