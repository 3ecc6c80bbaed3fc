"""Graph lowering: rewrites an exported graph's linears and attentions to the runtime's operators.

Works on the GraphModule of an ExportedProgram, before Inductor sees it, where parameters are
``get_attr`` nodes and ``linear``/``scaled_dot_product_attention`` are still whole. What it doesn't
recognise stays as it is: Inductor generates code for it or calls the runtime's generic kernels.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends import ops
from edgecompile.backends.lowering.activations import activation_of
from edgecompile.backends.lowering.arithmetic import lower_arithmetic
from edgecompile.backends.lowering.attention import lower_attention
from edgecompile.backends.lowering.complex import lower_complex
from edgecompile.backends.lowering.constants import (
    constant_of,
    drop_unused_constants,
    make_constants_contiguous,
    packed_name,
    value_of,
)
from edgecompile.backends.lowering.convolutions import ConvolutionReport, lower_convolutions
from edgecompile.backends.lowering.equal_nodes import merge_equal_nodes
from edgecompile.backends.lowering.grouped import lower_grouped
from edgecompile.backends.lowering.in_place import ChangesInPlace
from edgecompile.backends.lowering.recurrences import lower_recurrences, split_recurrences
from edgecompile.backends.lowering.residuals import fuse_residuals, lower_layer_norms
from edgecompile.precision import FP32, Precision

aten = torch.ops.aten

#: Views that need a certain order in memory, with what makes a copy where the order is another one.
_COPYING_VIEWS = {
    aten.view.default: aten.reshape.default,
    aten.view_as.default: aten.reshape_as.default,
}


@dataclass
class LoweringReport:
    """What was rewritten, for the build log and for tests.

    Attributes:
        linears: number of ``ec_linear`` calls emitted.
        merged: number of linears that were merged into a wider one because they share an input.
        activations: number of activations fused into a linear.
        exact: number of remainders, floored quotients and variances done as torch's kernels do them.
        equal: number of nodes that computed what another one does.
        residuals: number of sums fused into a linear.
        norms: number of ``ec_layer_norm`` calls emitted.
        attentions: number of ``ec_attention`` calls emitted.
        convolutions: what became of convolutions.
        recurrences: number of ``ec_recurrence`` calls emitted.
        grouped: number of products of groups of rows (mixtures of experts).
        kept: reasons, by node name, why a candidate was left to Inductor.
        packed: names of the weights behind each packed one, by the attribute of the latter.
        narrowed: precision of each weight that isn't stored in fp32, by its name.
    """

    linears: int = 0
    merged: int = 0
    activations: int = 0
    exact: int = 0
    equal: int = 0
    residuals: int = 0
    norms: int = 0
    attentions: int = 0
    convolutions: ConvolutionReport = field(default_factory=ConvolutionReport)
    recurrences: int = 0
    grouped: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    packed: dict[str, list[str]] = field(default_factory=dict)
    narrowed: dict[str, str] = field(default_factory=dict)


def lower_graph(gm: GraphModule, precision: Precision = FP32) -> LoweringReport:
    """Rewrites ``gm`` in place, with the linears' weights in ``precision``.

    Constants that are only read through packed weights are removed from the module; every
    constant that remains is contiguous, so that the weights file can hold it as it is.
    """
    report = LoweringReport()
    _drop_dropout(gm)
    split_recurrences(gm)
    lower_complex(gm, report.kept)
    report.exact = lower_arithmetic(gm)
    report.equal = merge_equal_nodes(gm)
    report.convolutions = lower_convolutions(gm)

    def pack(name: str, weight: Tensor) -> str:
        return _packed_constant(gm, name, weight, report, precision)

    def pack_exactly(name: str, weight: Tensor) -> str:
        # What a step rounds, all that follow it get: recurrent weights stay as they are.
        return _packed_constant(gm, name, weight, report, FP32)

    report.recurrences = lower_recurrences(gm, pack_exactly, report.kept)
    report.grouped = lower_grouped(gm, pack, report.kept)
    _lower_linears(gm, report, precision)
    report.residuals = fuse_residuals(gm)
    report.norms = lower_layer_norms(gm)
    report.attentions = lower_attention(gm, report.kept, precision.name != "fp32")
    _let_views_copy(gm)
    gm.graph.eliminate_dead_code()
    drop_unused_constants(gm)
    make_constants_contiguous(gm)
    gm.graph.lint()
    gm.recompile()
    return report


def _drop_dropout(gm: GraphModule) -> None:
    """Removes dropout nodes of evaluation mode, so that they don't hide patterns."""
    for node in list(gm.graph.nodes):
        if node.target is aten.dropout.default and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)


def _let_views_copy(gm: GraphModule) -> None:
    """Makes reshapes of views.

    What our operators return lies in memory in another order than what torch's do (a convolution's
    channels are last), so a view that export took for possible may not be.
    """
    for node in gm.graph.nodes:
        node.target = _COPYING_VIEWS.get(node.target, node.target)


@dataclass(frozen=True)
class _Linear:
    """A linear with constant weight: ``y = x · weightᵀ + bias``; weight is ``[N, K]``."""

    node: Node
    x_position: int
    weight_name: str
    weight: Tensor
    bias: Node | None

    @property
    def x(self) -> Node:
        """The input; asked of the node each time, since rewriting its producer replaces it."""
        x = self.node.args[self.x_position]
        assert isinstance(x, Node)
        return x


def _match_linear(gm: GraphModule, node: Node, report: LoweringReport) -> _Linear | None:
    """Recognises ``linear``, ``addmm`` and ``mm`` whose weight is a constant float32 matrix."""
    if node.op != "call_function":
        return None
    x: Any
    weight: Any
    bias: Any = None
    transposed = False  # whether the constant is [K, N]
    flattened = False
    if node.target is aten.linear.default:
        x, weight = node.args[:2]
        bias = node.args[2] if len(node.args) > 2 else None
    elif node.target is aten.addmm.default:
        if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
            report.kept[node.name] = "addmm with alpha or beta"
            return None
        bias, x, weight = node.args[:3]
        transposed = True
    elif node.target is aten.mm.default or node.target is aten.matmul.default:
        x, weight = node.args[:2]
        transposed = True
    else:
        return None
    # A pointwise convolution's weight, [N, K, 1, …], is a matrix as well.
    if isinstance(weight, Node) and weight.target is aten.flatten.using_ints:
        source = constant_of(gm, weight.args[0])
        if source is not None and source.dim() > 2 and weight.args[1:] == (1,):
            weight = weight.args[0]
            flattened = True
    # t()/permute/transpose of a constant is the same constant, read the other way round.
    while isinstance(weight, Node) and weight.target in (
        aten.t.default,
        aten.permute.default,
        aten.transpose.int,
    ):
        source = constant_of(gm, weight.args[0])
        if source is None or source.dim() != 2:
            break
        swapped = _swaps_dimensions(weight)
        transposed = transposed != swapped
        weight = weight.args[0]
    constant = constant_of(gm, weight)
    if constant is None:
        return None
    if flattened:
        constant = constant.flatten(1)
    x_value = value_of(x)
    if constant.dim() != 2 or constant.dtype != torch.float32:
        report.kept[node.name] = f"weight {tuple(constant.shape)} {constant.dtype}"
        return None
    if x_value is None or x_value.dtype != torch.float32 or x_value.dim() < 1:
        report.kept[node.name] = "input isn't a float32 tensor"
        return None
    matrix = constant.t() if transposed else constant
    if bias is not None:
        bias_value = constant_of(gm, bias)
        if bias_value is None or tuple(bias_value.shape) != (matrix.shape[0],):
            report.kept[node.name] = "bias isn't a constant vector"
            return None
        if bias_value.dtype != torch.float32:
            report.kept[node.name] = f"bias is {bias_value.dtype}"
            return None
    name = str(weight.target) + (".t" if transposed else "")
    position = 1 if node.target is aten.addmm.default else 0
    return _Linear(node, position, name, matrix, bias)


def _swaps_dimensions(node: Node) -> bool:
    """Whether a ``t``, ``permute`` or ``transpose`` of a matrix exchanges its two dimensions."""
    if node.target is aten.t.default:
        return True
    dims: Any = node.args[1] if node.target is aten.permute.default else node.args[1:3]
    first, second = (int(dim) % 2 for dim in dims)  # negative ones count from the end
    return first > second if node.target is aten.permute.default else first != second


def _packed_attr(
    gm: GraphModule, group: list[_Linear], report: LoweringReport, precision: Precision
) -> str:
    """Registers the packed concatenation of the weights and returns its attribute name."""
    names = [match.weight_name for match in group]
    attr = packed_name(names)
    if not hasattr(gm, attr):
        chosen = precision.of(names)
        weights = [match.weight for match in group]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        rounded = precision.rounded if chosen == "int8" else None
        packed = None if rounded is None else rounded.take(attr, weight)
        gm.register_buffer(attr, ops.pack_weight(weight, chosen) if packed is None else packed)
        report.packed[attr] = names
        if chosen != "fp32":
            report.narrowed.update(dict.fromkeys(names, chosen))
    return attr


def _packed_constant(
    gm: GraphModule, name: str, weight: Tensor, report: LoweringReport, precision: Precision
) -> str:
    """As :func:`_packed_attr`, for a matrix ``[N, K]`` or a stack ``[E, N, K]`` of them."""
    attr = packed_name([name])
    if not hasattr(gm, attr):
        chosen = precision.of([name])
        matrices = weight if weight.dim() == 3 else [weight]
        packed = [ops.pack_weight(matrix, chosen) for matrix in matrices]
        gm.register_buffer(attr, torch.stack(packed) if weight.dim() == 3 else packed[0])
        report.packed[attr] = [name]
        if chosen != "fp32":
            report.narrowed[name] = chosen
    return attr


def _lower_linears(gm: GraphModule, report: LoweringReport, precision: Precision) -> None:
    matches = [m for n in gm.graph.nodes if (m := _match_linear(gm, n, report)) is not None]
    # A product that is merged with an earlier one reads the input there.
    changes = ChangesInPlace(gm)
    groups: dict[tuple[str, int, bool], list[_Linear]] = {}
    for match in matches:
        key = (match.x.name, int(match.weight.shape[1]), match.bias is not None)
        groups.setdefault(key, []).append(match)
    for group in groups.values():
        # Linears that read the same input (query, key, value) become one wide product when no
        # activation follows and every width is a whole number of panels.
        mergeable = [
            m
            for m in group
            if activation_of(m.node) is None
            and m.weight.shape[0] % ops.PANEL == 0
            and not changes.between(group[0].node, m.node)
        ]
        if len(mergeable) > 1:
            _emit_merged(gm, mergeable, report, precision)
            group = [m for m in group if m not in mergeable]
        for match in group:
            _emit_linear(gm, match, report, precision)


def _emit_linear(
    gm: GraphModule, match: _Linear, report: LoweringReport, precision: Precision
) -> None:
    n = int(match.weight.shape[0])
    attr = _packed_attr(gm, [match], report, precision)
    last, code = match.node, 0
    fused = activation_of(match.node)
    if fused is not None:
        last, code = fused
        report.activations += 1
    with gm.graph.inserting_before(match.node):
        packed = gm.graph.get_attr(attr)
        new = gm.graph.call_function(ops.LINEAR, (match.x, packed, match.bias, None, n, code))
    new.meta = dict(last.meta)
    last.replace_all_uses_with(new)
    if last is not match.node:
        gm.graph.erase_node(last)
    gm.graph.erase_node(match.node)
    report.linears += 1


def _emit_merged(
    gm: GraphModule, group: list[_Linear], report: LoweringReport, precision: Precision
) -> None:
    first = group[0].node
    widths = [int(m.weight.shape[0]) for m in group]
    attr = _packed_attr(gm, group, report, precision)
    bias = None
    # A merged bias is a new constant with a name of its own: weights may be shared, biases not.
    if group[0].bias is not None:
        vectors = [constant_of(gm, m.bias) for m in group]
        bias_attr = packed_name([str(m.bias.target) for m in group if m.bias is not None])
        if not hasattr(gm, bias_attr):
            gm.register_buffer(bias_attr, torch.cat([v for v in vectors if v is not None]))
        with gm.graph.inserting_before(first):
            bias = gm.graph.get_attr(bias_attr)
    x_value = value_of(group[0].x)
    assert x_value is not None
    axis = x_value.dim() - 1
    with gm.graph.inserting_before(first):
        packed = gm.graph.get_attr(attr)
        wide = gm.graph.call_function(
            ops.LINEAR, (group[0].x, packed, bias, None, sum(widths), ops.ACTIVATIONS["none"])
        )
        parts = gm.graph.call_function(aten.split_with_sizes.default, (wide, widths, axis))
        slices = [gm.graph.call_function(operator.getitem, (parts, i)) for i in range(len(group))]
    for match, part in zip(group, slices, strict=True):
        part.meta = dict(match.node.meta)
        match.node.replace_all_uses_with(part)
        gm.graph.erase_node(match.node)
    report.linears += 1
    report.merged += len(group)
