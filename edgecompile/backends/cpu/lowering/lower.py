"""Graph lowering: rewrites an exported graph's linears and attentions to the runtime's operators.

Works on the GraphModule of an ExportedProgram, before Inductor sees it, where parameters are
``get_attr`` nodes and ``linear``/``scaled_dot_product_attention`` are still whole. What it doesn't
recognise stays as it is: Inductor generates code for it or calls the runtime's generic kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.cpu.lowering.activations import activation_of
from edgecompile.backends.cpu.lowering.attention import lower_attention, read_stored
from edgecompile.backends.cpu.lowering.grouped import lower_grouped
from edgecompile.backends.cpu.lowering.head import mark_head
from edgecompile.backends.cpu.lowering.means import lower_means
from edgecompile.backends.cpu.lowering.norms import lower_norms
from edgecompile.backends.cpu.lowering.residuals import fuse_residuals, lower_layer_norms
from edgecompile.backends.cpu.lowering.samples import lower_samples
from edgecompile.backends.cpu.lowering.tables import share_tables
from edgecompile.backends.cpu.lowering.windows import note_windows
from edgecompile.backends.lowering.arithmetic import lower_arithmetic, lower_long_means
from edgecompile.backends.lowering.boxes import lower_boxes
from edgecompile.backends.lowering.complex import lower_complex
from edgecompile.backends.lowering.constants import (
    constant_of,
    drop_unused_constants,
    make_constants_contiguous,
    packed_name,
    value_of,
)
from edgecompile.backends.lowering.convolutions import lower_convolutions
from edgecompile.backends.lowering.dead_rows import drop_dead_rows
from edgecompile.backends.lowering.distinct import write_distinct
from edgecompile.backends.lowering.equal_nodes import merge_equal_nodes
from edgecompile.backends.lowering.halves import lower_halves
from edgecompile.backends.lowering.in_place import ChangesInPlace
from edgecompile.backends.lowering.recurrences import lower_recurrences, split_recurrences
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    LoweringReport,
    arguments_of,
    drop_dropout,
    is_float32,
    replace,
    select_by_masks,
    write_checks,
)
from edgecompile.backends.operators import ops
from edgecompile.precision import FP32, INT8, Precision

aten = torch.ops.aten

#: Views that need a certain order in memory, with what makes a copy where the order is another one.
_COPYING_VIEWS = {
    aten.view.default: aten.reshape.default,
    aten.view_as.default: aten.reshape_as.default,
}


def lower_graph(
    gm: GraphModule,
    precision: Precision = FP32,
    *,
    unpacked: dict[str, tuple[Tensor, ...]] | None = None,
    padded: bool = False,
) -> LoweringReport:
    """Rewrites ``gm`` in place, with the linears' weights in ``precision``.

    Args:
        gm: an exported program's module.
        precision: the precision.
        unpacked: a dict that gets the weights of each product, below each other, by the packed attribute.
            Those are on the meta device then: nothing is packed. Convolutions get no tiles: torch would
            transform their weights back at each call.
        padded: whether inputs may be padded. Outputs must not depend on what stands there, so
            convolutions get no tiles.

    Constants that are only read through packed weights are removed from the module; every
    constant that remains is contiguous, so that the weights file can hold it as it is.
    """
    low = Lowering(gm, LoweringReport())
    lower_halves(low)
    drop_dropout(gm)
    write_checks(gm)
    low.report.counts["rows"] += drop_dead_rows(gm)
    select_by_masks(gm)
    write_distinct(gm)
    lower_boxes(low)
    lower_samples(low)
    split_recurrences(low)
    lower_complex(low)
    lower_arithmetic(low)
    lower_long_means(low)
    merge_equal_nodes(low)
    lower_convolutions(low, tiles=not padded and unpacked is None)

    # Rounding errors of recurrent weights would add up from step to step.
    exactly, packer = _Packer(gm, low.report, FP32), _Packer(gm, low.report, precision, unpacked)
    lower_recurrences(low, exactly.add)
    lower_grouped(low, packer.add)
    _lower_linears(packer)
    lower_means(low)
    share_tables(low)
    fuse_residuals(low)
    lower_layer_norms(low)
    lower_norms(low)
    lower_attention(low, precision.name != "fp32")
    read_stored(gm)
    mark_head(low)
    _let_views_copy(gm)
    gm.graph.eliminate_dead_code()
    note_windows(low)
    drop_unused_constants(gm)
    make_constants_contiguous(gm)
    gm.graph.lint()
    gm.recompile()
    return low.report


def _let_views_copy(gm: GraphModule) -> None:
    """Makes reshapes of views.

    Our operators' results have another order in memory than torch's (a convolution's
    channels are last), so a view that export took for possible may not be.
    """
    for node in gm.graph.nodes:
        node.target = _COPYING_VIEWS.get(node.target, node.target)


@dataclass
class _Packer:
    """Adds packed weights to a graph's module."""

    gm: GraphModule
    report: LoweringReport
    precision: Precision
    unpacked: dict[str, tuple[Tensor, ...]] | None = None

    def add(self, weight: Tensor, *names: str) -> str:
        """Registers a packed matrix ``[N, K]``, or a stack ``[E, N, K]``; returns its attribute.

        Args:
            weight: float32.
            names: the names of the constants that it is made of.
        """
        return self.add_merged((weight,), names)

    def add_merged(self, weights: Sequence[Tensor], names: Sequence[str]) -> str:
        """As :meth:`add` of matrices below each other."""
        attr = packed_name(names)
        if hasattr(self.gm, attr):
            return attr
        chosen = self.precision.of(names)
        if self.unpacked is not None:
            self.unpacked[attr] = tuple(weights)
            self.gm.register_buffer(attr, torch.empty(0, device="meta"))
            self.report.packed[attr] = list(names)
            return attr
        weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        rounded = self.precision.rounded if weight.dim() == 2 else None
        packed = None if rounded is None else rounded.take(attr, weight, chosen)
        if weight.dim() == 3:
            packed = torch.stack([ops.pack_weight(matrix, chosen) for matrix in weight])
        self.gm.register_buffer(attr, ops.pack_weight(weight, chosen) if packed is None else packed)
        self.report.packed[attr] = list(names)
        if chosen != "fp32":
            self.report.narrowed.update(dict.fromkeys(names, chosen))
        return attr

    def pairs(self, names: Sequence[str]) -> bool:
        """Whether the product of these weights may add int8 in pairs."""
        return self.precision.pairs and self.precision.of(names) == INT8


#: The names of the input, the weight and the bias in the operators' schemas.
_LINEARS: dict[Any, tuple[str, str, str]] = {
    aten.linear.default: ("input", "weight", "bias"),
    aten.addmm.default: ("mat1", "mat2", "self"),
    aten.mm.default: ("self", "mat2", ""),
    aten.matmul.default: ("self", "other", ""),
}


@dataclass(frozen=True)
class _Linear:
    """A linear with constant weight: ``y = x · weightᵀ + bias``; weight is ``[N, K]``."""

    node: Node
    weight_name: str
    weight: Tensor
    bias: Node | None

    @property
    def x(self) -> Node:
        """The input; asked of the node each time, since rewriting its producer replaces it."""
        x = arguments_of(self.node)[_LINEARS[self.node.target][0]]
        assert isinstance(x, Node)
        return x


def _match_linear(gm: GraphModule, node: Node, report: LoweringReport) -> _Linear | None:
    """Recognises ``linear``, ``addmm`` and ``mm`` whose weight is a constant float32 matrix."""
    if node.target not in _LINEARS:
        return None
    bound = arguments_of(node)
    x, weight, bias = (bound.get(name) for name in _LINEARS[node.target])
    if bound.get("alpha", 1) != 1 or bound.get("beta", 1) != 1:
        report.kept[node.name] = "addmm with alpha or beta"
        return None
    transposed = node.target is not aten.linear.default  # whether the constant is [K, N]
    # A pointwise convolution's weight, [N, K, 1, …], is a matrix as well.
    flattened = False
    if isinstance(weight, Node) and weight.target is aten.flatten.using_ints:
        source = constant_of(gm, weight.args[0])
        if source is not None and source.dim() > 2 and weight.args[1:] == (1,):
            weight, flattened = weight.args[0], True
    # t()/permute/transpose of a constant is the same constant, read the other way round.
    while isinstance(weight, Node) and weight.target in _TURNS:
        source = constant_of(gm, weight.args[0])
        if source is None or source.dim() != 2:
            break
        transposed = transposed != _swaps_dimensions(weight)
        weight = weight.args[0]
    constant = constant_of(gm, weight)
    if constant is None:
        return None
    if flattened:
        constant = constant.flatten(1)
    matrix = constant.t() if transposed and constant.dim() == 2 else constant
    reason = _linear_obstacle(value_of(x), matrix, bias, constant_of(gm, bias))
    if reason is not None:
        report.kept[node.name] = reason
        return None
    assert isinstance(weight, Node)
    return _Linear(node, str(weight.target) + (".t" if transposed else ""), matrix, bias)


def _linear_obstacle(
    x: Tensor | None, matrix: Tensor, bias: Node | None, vector: Tensor | None
) -> str | None:
    """The reason that a linear with a constant weight can't be lowered, or None."""
    if matrix.dim() != 2 or matrix.dtype != torch.float32:
        return f"weight {tuple(matrix.shape)} {matrix.dtype}"
    if not is_float32(x) or x.dim() < 1:
        return "input isn't a float32 tensor"
    if bias is None:
        return None
    if vector is None or vector.shape != matrix.shape[:1]:
        return "bias isn't a constant vector"
    return None if vector.dtype == torch.float32 else f"bias is {vector.dtype}"


_TURNS = (aten.t.default, aten.permute.default, aten.transpose.int)


def _swaps_dimensions(node: Node) -> bool:
    """Whether a ``t``, ``permute`` or ``transpose`` of a matrix exchanges its two dimensions."""
    if node.target is aten.t.default:
        return True
    dims: Any = node.args[1] if node.target is aten.permute.default else node.args[1:3]
    first, second = (int(dim) % 2 for dim in dims)  # negative ones count from the end
    return first > second if node.target is aten.permute.default else first != second


def _lower_linears(packer: _Packer) -> None:
    gm = packer.gm
    matches = [m for n in gm.graph.nodes if (m := _match_linear(gm, n, packer.report)) is not None]
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
            _emit_merged(packer, mergeable)
            group = [m for m in group if m not in mergeable]
        for match in group:
            _emit_linear(packer, match)


def _emit_linear(packer: _Packer, match: _Linear) -> None:
    gm, attr = packer.gm, packer.add(match.weight, match.weight_name)
    last, code = activation_of(match.node) or (match.node, 0)
    packer.report.counts["activations"] += last is not match.node
    with gm.graph.inserting_before(match.node):
        packed = gm.graph.get_attr(attr)
    n, pairs = int(match.weight.shape[0]), packer.pairs([match.weight_name])
    replace(gm, match.node, ops.LINEAR, (match.x, packed, match.bias, None, n, code, pairs), last)
    packer.report.counts["linears"] += 1


def _emit_merged(packer: _Packer, group: list[_Linear]) -> None:
    gm, first = packer.gm, group[0].node
    widths = [int(m.weight.shape[0]) for m in group]
    names = [m.weight_name for m in group]
    attr, pairs = packer.add_merged([m.weight for m in group], names), packer.pairs(names)
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
            ops.LINEAR,
            (group[0].x, packed, bias, None, sum(widths), ops.ACTIVATIONS["none"], pairs),
        )
        parts = gm.graph.call_function(aten.split_with_sizes.default, (wide, widths, axis))
        slices = [gm.graph.call_function(operator.getitem, (parts, i)) for i in range(len(group))]
    for match, part in zip(group, slices, strict=True):
        part.meta = dict(match.node.meta)
        match.node.replace_all_uses_with(part)
        gm.graph.erase_node(match.node)
    packer.report.counts["linears"] += 1
    packer.report.counts["merged"] += len(group)
