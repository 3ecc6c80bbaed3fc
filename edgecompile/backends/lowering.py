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

aten = torch.ops.aten

#: How the names of packed weights begin.
PACKED_PREFIX = "ecpack_"


@dataclass
class LoweringReport:
    """What was rewritten, for the build log and for tests.

    Attributes:
        linears: number of ``ec_linear`` calls emitted.
        merged: number of linears that were merged into a wider one because they share an input.
        activations: number of activations fused into a linear.
        attentions: number of ``ec_attention`` calls emitted.
        kept: reasons, by node name, why a candidate was left to Inductor.
    """

    linears: int = 0
    merged: int = 0
    activations: int = 0
    attentions: int = 0
    kept: dict[str, str] = field(default_factory=dict)


def lower_graph(gm: GraphModule) -> LoweringReport:
    """Rewrites ``gm`` in place.

    Constants that are only read through packed weights are removed from the module; every
    constant that remains is contiguous, so that the weights file can hold it as it is.
    """
    report = LoweringReport()
    _drop_dropout(gm)
    _lower_linears(gm, report)
    _lower_attention(gm, report)
    gm.graph.eliminate_dead_code()
    _drop_unused_constants(gm)
    _make_constants_contiguous(gm)
    gm.graph.lint()
    gm.recompile()
    return report


def _constant(gm: GraphModule, node: Any) -> Tensor | None:
    """The tensor behind a ``get_attr`` node, or None if ``node`` is something else."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else None


def _value(node: Any) -> Tensor | None:
    """The fake tensor that export recorded for ``node``, or None."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _drop_dropout(gm: GraphModule) -> None:
    """Removes dropout nodes of evaluation mode, so that they don't hide patterns."""
    for node in list(gm.graph.nodes):
        if node.target is aten.dropout.default and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)


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
    # t()/permute/transpose of a constant is the same constant, read the other way round.
    while isinstance(weight, Node) and weight.target in (
        aten.t.default,
        aten.permute.default,
        aten.transpose.int,
    ):
        source = _constant(gm, weight.args[0])
        if source is None or source.dim() != 2:
            break
        swapped = weight.target is not aten.permute.default or list(weight.args[1]) != [0, 1]  # type: ignore[arg-type]
        transposed = transposed != swapped
        weight = weight.args[0]
    constant = _constant(gm, weight)
    if constant is None:
        return None
    x_value = _value(x)
    if constant.dim() != 2 or constant.dtype != torch.float32:
        report.kept[node.name] = f"weight {tuple(constant.shape)} {constant.dtype}"
        return None
    if x_value is None or x_value.dtype != torch.float32 or x_value.dim() < 1:
        report.kept[node.name] = "input isn't a float32 tensor"
        return None
    matrix = constant.t() if transposed else constant
    if bias is not None:
        bias_value = _constant(gm, bias)
        if bias_value is None or tuple(bias_value.shape) != (matrix.shape[0],):
            report.kept[node.name] = "bias isn't a constant vector"
            return None
        if bias_value.dtype != torch.float32:
            report.kept[node.name] = f"bias is {bias_value.dtype}"
            return None
    name = str(weight.target) + (".t" if transposed else "")
    position = 1 if node.target is aten.addmm.default else 0
    return _Linear(node, position, name, matrix, bias)


def _packed_attr(gm: GraphModule, names: list[str], weights: list[Tensor]) -> str:
    """Registers the packed concatenation of ``weights`` and returns its attribute name."""
    attr = PACKED_PREFIX + "__".join(name.replace(".", "_") for name in names)
    if not hasattr(gm, attr):
        gm.register_buffer(
            attr, ops.pack_weight(torch.cat(weights) if len(weights) > 1 else weights[0])
        )
    return attr


def _activation_of(node: Node) -> tuple[Node, int] | None:
    """The activation that is the only reader of ``node``, with its code."""
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    if user.op != "call_function" or user.args[0] is not node:
        return None
    if user.target is aten.gelu.default:
        kind = user.kwargs.get("approximate", user.args[1] if len(user.args) > 1 else "none")
        return user, ops.ACTIVATIONS["gelu_tanh" if kind == "tanh" else "gelu_erf"]
    simple = {
        aten.relu.default: "relu",
        aten.silu.default: "silu",
        aten.tanh.default: "tanh",
        aten.sigmoid.default: "sigmoid",
    }
    name = simple.get(user.target)  # type: ignore[call-overload]
    return None if name is None else (user, ops.ACTIVATIONS[name])


def _lower_linears(gm: GraphModule, report: LoweringReport) -> None:
    matches = [m for n in gm.graph.nodes if (m := _match_linear(gm, n, report)) is not None]
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
            if _activation_of(m.node) is None and m.weight.shape[0] % ops.PANEL == 0
        ]
        if len(mergeable) > 1:
            _emit_merged(gm, mergeable, report)
            group = [m for m in group if m not in mergeable]
        for match in group:
            _emit_linear(gm, match, report)


def _emit_linear(gm: GraphModule, match: _Linear, report: LoweringReport) -> None:
    n = int(match.weight.shape[0])
    attr = _packed_attr(gm, [match.weight_name], [match.weight])
    last, code = match.node, 0
    fused = _activation_of(match.node)
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


def _emit_merged(gm: GraphModule, group: list[_Linear], report: LoweringReport) -> None:
    first = group[0].node
    widths = [int(m.weight.shape[0]) for m in group]
    attr = _packed_attr(gm, [m.weight_name for m in group], [m.weight for m in group])
    bias = None
    # A merged bias is a new constant; its name follows the packed weight's.
    if group[0].bias is not None:
        vectors = [_constant(gm, m.bias) for m in group]
        bias_attr = attr + "__bias"
        if not hasattr(gm, bias_attr):
            gm.register_buffer(bias_attr, torch.cat([v for v in vectors if v is not None]))
        with gm.graph.inserting_before(first):
            bias = gm.graph.get_attr(bias_attr)
    x_value = _value(group[0].x)
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


def _lower_attention(gm: GraphModule, report: LoweringReport) -> None:
    target = aten.scaled_dot_product_attention.default
    masks: dict[Node, Node] = {}
    for node in list(gm.graph.nodes):
        if node.target is not target:
            continue
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        bound: dict[str, Any] = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}
        bound.update(zip(names, node.args, strict=False))
        bound.update(node.kwargs)
        reason = _attention_obstacle(bound)
        if reason is not None:
            report.kept[node.name] = reason
            continue
        query = _value(bound["query"])
        assert query is not None
        scale = bound.get("scale")
        scale = ops.default_scale(int(query.shape[3])) if scale is None else float(scale)
        with gm.graph.inserting_before(node):
            mask = _materialised(gm, bound["attn_mask"], masks)
            args = (bound["query"], bound["key"], bound["value"], mask)
            new = gm.graph.call_function(ops.ATTENTION, (*args, bool(bound["is_causal"]), scale))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
        report.attentions += 1


def _attention_obstacle(bound: dict[str, Any]) -> str | None:
    """Why an attention can't be lowered, or None."""
    for name in ("query", "key", "value"):
        value = _value(bound[name])
        if value is None or value.dim() != 4 or value.dtype != torch.float32:
            return f"{name} isn't a 4-dimensional float32 tensor"
    query = _value(bound["query"])
    assert query is not None
    if not isinstance(query.shape[3], int) or not isinstance(_value(bound["value"]).shape[3], int):  # type: ignore[union-attr]
        return "the head dimension is dynamic"
    for name in ("key", "value"):
        if str(_value(bound[name]).shape[0]) != str(query.shape[0]):  # type: ignore[union-attr]
            return "the batch sizes of query, key and value differ"
    mask = bound["attn_mask"]
    if mask is not None:
        value = _value(mask)
        if value is None or value.dtype not in (torch.bool, torch.float32) or value.dim() > 4:
            return "the mask isn't a boolean or float32 tensor of up to 4 dimensions"
    if bound["dropout_p"]:
        return "dropout is on"
    return None


def _materialised(gm: GraphModule, mask: Any, done: dict[Node, Node]) -> Node | None:
    """The mask as a buffer of rank 4, made once for all the attentions that share it.

    Inductor would recompute a mask that is still a view for each of its readers. The kernel
    broadcasts axes of size 1, so an expanded mask is passed as it was before the expansion.
    """
    if mask is None:
        return None
    source: Node = mask
    while source.target is aten.expand.default and _rank(source) == _rank(source.args[0]):
        source = source.args[0]  # type: ignore[assignment]
    if source not in done:
        result = source
        for _ in range(4 - _rank(source)):
            result = gm.graph.call_function(aten.unsqueeze.default, (result, 0))
        if source.op == "call_function":
            result = gm.graph.call_function(
                aten.clone.default, (result,), {"memory_format": torch.contiguous_format}
            )
        done[source] = result
    return done[source]


def _rank(node: Any) -> int:
    value = _value(node)
    assert value is not None
    return value.dim()


def _drop_unused_constants(gm: GraphModule) -> None:
    used = {str(n.target) for n in gm.graph.nodes if n.op == "get_attr"}
    for name in _constant_names(gm):
        if name not in used:
            owner, _, leaf = name.rpartition(".")
            delattr(gm.get_submodule(owner) if owner else gm, leaf)


def _constant_names(gm: GraphModule) -> list[str]:
    """Names of all parameters and buffers, those of tied ones included."""
    parameters = [name for name, _ in gm.named_parameters(remove_duplicate=False)]
    return parameters + [name for name, _ in gm.named_buffers(remove_duplicate=False)]


def _make_constants_contiguous(gm: GraphModule) -> None:
    for name, tensor in [*gm.named_parameters(), *gm.named_buffers()]:
        if tensor.is_contiguous():
            continue
        owner, _, leaf = name.rpartition(".")
        module = gm.get_submodule(owner) if owner else gm
        fresh = tensor.detach().contiguous()
        if isinstance(tensor, torch.nn.Parameter):
            setattr(module, leaf, torch.nn.Parameter(fresh, requires_grad=False))
        else:
            module.register_buffer(leaf, fresh)
