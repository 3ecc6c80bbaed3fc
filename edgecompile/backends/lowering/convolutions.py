"""Graph lowering of convolutions to the runtime's operator, with the operators around them.

Weights are packed at build time, computed ones (weight norm) too; a batch norm behind is folded
into weight and bias, padding with zeros before and an activation behind become part of the
operator. Pointwise convolutions become linears over the channels, for
:mod:`edgecompile.backends.cpu.lowering.lower` to pack. What isn't recognised stays as it is, and the runtime's
general kernel computes it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.utils import fuse_conv_bn_weights

from edgecompile.backends.cpu.lowering.activations import OUT_OF_PLACE, activation_of
from edgecompile.backends.lowering.constants import (
    PACKED_PREFIX,
    Folded,
    attribute_name,
    fold_constant,
    value_of,
)
from edgecompile.backends.lowering.in_place import ChangesInPlace
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    arguments_of,
    erase_chain,
    is_float32,
    replace,
)
from edgecompile.backends.operators.convolution import (
    CONVOLUTION,
    Geometry,
    canonical_weight,
    choose_tile,
    pack_convolution,
    packed_order,
)

aten = torch.ops.aten

_TRANSPOSED = {
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
}
_CONVOLUTIONS = _TRANSPOSED | {
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
    aten.convolution.default,
}
_PADS = {aten.pad.default, aten.constant_pad_nd.default}


@dataclass(frozen=True)
class Match:
    """A convolution with a constant weight, in the canonical form."""

    node: Node
    x: Node
    weight: Folded
    bias: Folded | None
    geometry: Geometry


#: Puts a convolution in place of the nodes from the match's to the one given.
Emit = Callable[[GraphModule, Match, Node], None]


def lower_convolutions(low: Lowering, emit: Emit | None = None, *, tiles: bool = True) -> None:
    """Rewrites convolutions; the linears that it leaves are ``aten.linear``.

    Args:
        low: the graph.
        emit: writes those that aren't linears; None: the native runtime's operator, which takes over
            an activation behind.
        tiles: whether that operator may compute in Winograd's tiles. In these a value bears on
            outputs whose taps don't read it.
    """
    changes = ChangesInPlace(low.gm)
    views: dict[Node, Node] = {}
    emitted: list[tuple[Node, Match]] = []
    for node in list(low.gm.graph.nodes):
        if node.target not in _CONVOLUTIONS:
            continue
        match = _match(low.gm, node)
        if isinstance(match, str):
            low.report.plain_convolutions[node.name] = match
            continue
        match = _take_padding(match, changes, low.report.counts)
        last, match = _fold_norm(low.gm, match, low.report.counts)
        if match.geometry.pointwise:
            _emit_linear(low.gm, match, last, views)
            low.report.counts["pointwise"] += 1
        elif emit is not None:
            emit(low.gm, match, last)
            low.report.counts["convolutions"] += 1
        else:
            fused = activation_of(last)
            low.report.counts["convolved_activations"] += fused is not None
            emitted.append((_emit_convolution(low.gm, match, *(fused or (last, 0))), match))
            low.report.counts["convolutions"] += 1
    _pack_weights(low.gm, emitted, tiles)


def _numbers(value: Any, count: int) -> tuple[int, ...] | None:
    """One whole number for each dimension, of a list or of one for all; None if they aren't."""
    if not isinstance(value, (int, list, tuple)):
        return None
    numbers = [value] * count if isinstance(value, int) else list(value)
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count or not all(type(number) is int for number in numbers):
        return None
    return tuple(numbers)


def _match(gm: GraphModule, node: Node) -> Match | str:
    """A convolution with constants for a weight and a bias, or why it isn't one."""
    arguments = arguments_of(node)
    arguments.setdefault("transposed", node.target in _TRANSPOSED)
    arguments.setdefault("output_padding", 0)
    x, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    value = value_of(x)
    folded = fold_constant(gm, weight)
    folded_bias = fold_constant(gm, bias) if bias is not None else None
    if folded is None or (bias is not None and folded_bias is None):
        return "weight or bias is computed from the inputs"
    tensors = [value, folded.tensor, *([folded_bias.tensor] if folded_bias else [])]
    if value is None or not all(map(is_float32, tensors)):
        return "input, weight or bias isn't float32"
    if value.dim() != folded.tensor.dim():
        return "the input has no batch dimension"
    geometry = _geometry(arguments, folded.tensor)
    if geometry is None:
        return "stride, padding or dilation isn't constant"
    plain = canonical_weight(folded.tensor, geometry.transposed, geometry.groups)
    return Match(node, x, dataclasses.replace(folded, tensor=plain), folded_bias, geometry)


def _geometry(arguments: dict[str, Any], weight: Tensor) -> Geometry | None:
    kernel = tuple(weight.shape[2:])
    count = len(kernel)
    stride, dilation, extra = (
        _numbers(arguments[name], count) for name in ("stride", "dilation", "output_padding")
    )
    groups = arguments["groups"]
    if stride is None or dilation is None or extra is None or type(groups) is not int:
        return None
    padding = arguments["padding"]
    if isinstance(padding, str):
        spans = [
            d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)
        ]
        begins = tuple(span // 2 for span in spans)  # the odd zero is the last
        ends = tuple(span - span // 2 for span in spans)
    else:
        numbers = _numbers(padding, count)
        if numbers is None:
            return None
        begins = ends = numbers
    transposed = bool(arguments["transposed"])
    if transposed:
        ends = tuple(end - more for end, more in zip(ends, extra, strict=True))
    return Geometry(kernel, stride, begins, ends, dilation, transposed, groups)


def _take_padding(match: Match, changes: ChangesInPlace, counts: Counter[str]) -> Match:
    """Takes over zeros that are put around the input before."""
    pad = match.x
    if pad.target not in _PADS or match.geometry.transposed:
        return match
    named = arguments_of(pad)
    widths: Sequence[Any] = named["pad"]
    spatial = len(match.geometry.kernel)
    source = pad.args[0]
    if (
        named.get("mode", "constant") != "constant"
        or named["value"] not in (0, None)
        or len(widths) > 2 * spatial
        or not all(type(width) is int for width in widths)
        or not isinstance(source, Node)
        or changes.between(pad, match.node)
    ):
        return match
    begins, ends = list(match.geometry.begins), list(match.geometry.ends)
    if min(widths, default=0) < 0 and any(begins + ends):
        return match  # what is cut off doesn't come back as zeros
    for i in range(len(widths) // 2):  # the last dimension comes first
        begins[-1 - i] += widths[2 * i]
        ends[-1 - i] += widths[2 * i + 1]
    counts["pads"] += 1
    geometry = dataclasses.replace(match.geometry, begins=tuple(begins), ends=tuple(ends))
    return dataclasses.replace(match, x=source, geometry=geometry)


def _fold_norm(gm: GraphModule, match: Match, counts: Counter[str]) -> tuple[Node, Match]:
    """Folds a batch norm that alone reads the result; the node that then stands for both."""
    node = match.node
    norm = next(iter(node.users), None)
    if norm is None or len(node.users) != 1 or norm.target is not aten.batch_norm.default:
        return node, match
    bound = arguments_of(norm)
    if bound["training"] or bound["input"] is not node:
        return node, match
    folded: list[Any] = []
    for name in ("running_mean", "running_var", "weight", "bias"):
        constant = None if bound[name] is None else fold_constant(gm, bound[name])
        absent = bound[name] is None and name in ("weight", "bias")
        if not absent and not (constant and is_float32(constant.tensor)):
            return node, match
        folded.append(constant)
    # In float64, so that the folded weights are rounded once.
    vectors: Any = [item and item.tensor.double() for item in (match.bias, *folded)]
    bias, mean, variance, gamma, beta = vectors
    weight, shift = fuse_conv_bn_weights(
        match.weight.tensor.double(), bias, mean, variance, float(bound["eps"]), gamma, beta
    )
    label, key = match.weight.label, [match.weight.key, f"batch_norm({bound['eps']})"]
    key += [item.key if item else None for item in (*folded, match.bias)]
    counts["batch_norms"] += 1
    return norm, dataclasses.replace(
        match,
        weight=Folded(weight.detach().float(), label, key),
        bias=Folded(shift.detach().float(), label + "_shift", [*key, "shift"]),
    )


def constant_node(
    gm: GraphModule, prefix: str, folded: Folded, make: Callable[[], Tensor], *key: object
) -> Node:
    """Reads a constant of the module, which is made if it isn't there; inserts where one is."""
    attr = attribute_name(prefix, folded.label, (folded.key, *key))
    if not hasattr(gm, attr):
        gm.register_buffer(attr, make())
    return gm.graph.get_attr(attr)


def bias_node(gm: GraphModule, bias: Folded | None) -> Node | None:
    if bias is None:
        return None
    return bias.node(gm) if bias.plain else constant_node(gm, "ecfold_", bias, lambda: bias.tensor)


def _emit_convolution(gm: GraphModule, match: Match, last: Node, activation: int) -> Node:
    """Emits the runtime's operator, without its weight."""
    g, n = match.geometry, int(match.weight.tensor.shape[0])
    with gm.graph.inserting_before(match.node):
        args = (match.x, None, bias_node(gm, match.bias), None, *g.arguments, n, activation)
    return replace(gm, match.node, CONVOLUTION, args, last)


def _pack_weights(gm: GraphModule, emitted: Sequence[tuple[Node, Match]], tiles: bool) -> None:
    """Gives convolutions their packed weights; those that share one get the same.

    Programs of other buckets may have other sizes and so another tile: a bundle stores those
    weights as often.
    """
    sharing: dict[str, list[tuple[Node, Match]]] = {}
    for node, match in emitted:
        key = repr((match.weight.key, packed_order(match.geometry)))
        sharing.setdefault(key, []).append((node, match))
    for key, uses in sharing.items():
        weight, geometry, tile = uses[0][1].weight, uses[0][1].geometry, 0
        if tiles:
            sizes = [(match.geometry, _least_sizes(node)) for node, match in uses]
            tile = choose_tile(int(weight.tensor.shape[1]), sizes)
        make = partial(pack_convolution, weight.tensor, geometry, tile)
        for node, _ in uses:
            with gm.graph.inserting_before(node):
                packed = constant_node(gm, PACKED_PREFIX, weight, make, key, tile)
            node.update_arg(1, packed)


def _least_sizes(node: Node) -> list[int]:
    """The smallest sizes of a convolution's result, behind the channels, that its program serves."""
    value = value_of(node)
    sizes: list[Any] = [] if value is None else list(value.shape[2:])
    for i, size in enumerate(sizes):
        if not isinstance(size, int):
            lower = size.node.shape_env.bound_sympy(size.node.expr).lower
            sizes[i] = int(lower) if lower.is_finite and lower > 0 else 1
    return sizes


def permutation(node: Any) -> list[int] | None:
    """The order of dimensions that a ``permute`` or ``transpose`` makes."""
    value = value_of(node)
    if value is None or node.target not in (aten.permute.default, aten.transpose.int):
        return None
    if node.target is aten.permute.default:
        return [int(dim) % value.dim() for dim in node.args[1]]
    order = list(range(value.dim()))
    first, second = (int(dim) % value.dim() for dim in node.args[1:3])
    order[first], order[second] = second, first
    return order


def permuted(gm: GraphModule, node: Node, order: list[int]) -> Node:
    """The node with its dimensions in this order; what undoes another order is left out."""
    inner = permutation(node)
    if inner is not None and [inner[dim] for dim in order] == sorted(order):
        source = node.args[0]
        assert isinstance(source, Node)
        return source
    new = gm.graph.call_function(aten.permute.default, (node, order))
    value = value_of(node)
    new.meta = {**node.meta, "val": None if value is None else value.permute(order)}
    return new


def replace_permuted(gm: GraphModule, node: Node, order: list[int], new: Node) -> None:
    """Puts ``new`` in place of what has the node's dimensions in this order."""
    for user in list(node.users):
        if permutation(user) == order:
            user.replace_all_uses_with(new)
            gm.graph.erase_node(user)


def _emit_linear(gm: GraphModule, match: Match, last: Node, views: dict[Node, Node]) -> None:
    """Emits a linear over the channels, which are last meanwhile."""
    spatial = len(match.geometry.kernel)
    behind = [0, *range(2, spatial + 2), 1]
    before = [0, spatial + 1, *range(1, spatial + 1)]
    conv, weight = match.node, match.weight
    result = value_of(conv)
    assert result is not None
    with gm.graph.inserting_before(conv):
        if match.x not in views:
            views[match.x] = permuted(gm, match.x, behind)
        if weight.plain:
            flat = gm.graph.call_function(aten.flatten.using_ints, (weight.node(gm), 1))
        else:
            flat = constant_node(
                gm, "ecfold_", weight, lambda: weight.tensor.flatten(1).contiguous(), "flat"
            )
        bias = bias_node(gm, match.bias)
        new = gm.graph.call_function(aten.linear.default, (views[match.x], flat, bias))
        new.meta = {**conv.meta, "val": result.permute(behind)}
        fused = activation_of(last)
        if fused is not None:
            last, linear = fused[0], new
            activate = OUT_OF_PLACE.get(last.target, last.target)
            new = gm.graph.call_function(activate, (linear, *last.args[1:]), dict(last.kwargs))
            new.meta = dict(linear.meta)
        back = permuted(gm, new, before)
    replace_permuted(gm, last, behind, new)
    last.replace_all_uses_with(back)
    if not back.users:
        gm.graph.erase_node(back)
    erase_chain(gm, conv, last)
