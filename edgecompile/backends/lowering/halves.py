"""Graph lowering of half precision: computed in single precision, rounded where torch rounds.

The runtime's kernels compute in float32. torch's own kernels of bfloat16 and float16 add up in
float32 as well and round each operator's result, so an operator between conversions computes what
they do. Regions of autocast are written out with the conversions that it makes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from edgecompile.backends.lowering.constants import (
    attribute_name,
    constant_of,
    fold_constant,
    value_of,
)
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering
from edgecompile.export.halves import is_half
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION
from edgecompile.export.operators.texts_attention import TEXTS_ATTENTION
from edgecompile.models.double import HALVES

aten = torch.ops.aten

_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
#: Operators that move half-precision numbers unchanged, or read them: keys and values in caches.
_AS_THEY_ARE = (aten.index_copy_.default, CACHED_ATTENTION, TEXTS_ATTENTION)
#: Operators that only convert.
_CONVERSIONS = (aten._to_copy.default, aten.copy_.default)
_TO = (aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten._to_copy.default)


def lower_halves(low: Lowering) -> None:
    """Makes every operator on half precision compute in float32 and round its result.

    Operators are counted as ``halves``.
    """
    _convert_around(low)
    if low.report.counts["halves"]:
        _fold_weights(low.gm)


def _convert_around(low: Lowering) -> None:
    gm = low.gm
    for node in list(gm.graph.nodes):
        if node.target is _AUTOCAST:
            _write_out(gm, node)
    for node in list(gm.graph.nodes):
        if _computes_in_half(node):
            _widen(gm, node)
            low.report.counts["halves"] += 1


def widen_halves(low: Lowering, stored: Container[str] = ()) -> None:
    """Makes everything but inputs and outputs float32, without torch's roundings of results and weights.

    For builds whose precision holds for the whole model.

    Args:
        low: the graph.
        stored: names of the graph's inputs that stand for weights, which are float32 by now.
    """
    _convert_around(low)
    gm = low.gm
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if node.target is aten._assert_tensor_metadata.default:
            gm.graph.erase_node(node)
        if not is_half(value):
            continue
        if node.op == "placeholder" and node.name in stored:
            node.meta["val"] = value.float()
        elif node.op == "call_function" and node.target not in _TO:
            node.meta["val"] = value.float()
            _replace_outputs(gm, node, value.dtype)
        elif node.op != "placeholder":
            with gm.graph.inserting_after(node):
                wide = _convert(gm, node.args[0] if node.args else node, value, torch.float32)
            node.replace_all_uses_with(
                wide, lambda user, wide=wide: user.op != "output" and user is not wide
            )
    for node in list(gm.graph.nodes):
        if node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs:
            source, dtype = node.args
            value = value_of(source) if isinstance(source, Node) else None
            if value is not None and value.dtype == dtype:
                node.replace_all_uses_with(source)
    gm.graph.eliminate_dead_code()
    _fold_weights(gm)


def _replace_outputs(gm: GraphModule, node: Node, dtype: torch.dtype) -> None:
    """Rounds a view of what is float32 now where it is an output."""
    if any(user.op == "output" for user in node.users):
        with gm.graph.inserting_after(node):
            rounded = _convert(gm, node, node.meta["val"], dtype)
        node.replace_all_uses_with(rounded, lambda user: user.op == "output")


# Autocast.


def _write_out(gm: GraphModule, region: Node) -> None:
    """Puts the operators of a region of autocast in its place, with the conversions that it makes."""
    with gm.graph.inserting_before(region):
        results = _copy_region(gm, region, region, gm, list(region.args[5:]))
    for taker in list(region.users):
        if isinstance(results, (tuple, list)):
            taker.replace_all_uses_with(results[taker.args[1]])  # type: ignore[index]
            gm.graph.erase_node(taker)
    if not isinstance(results, (tuple, list)):
        region.replace_all_uses_with(results)
    gm.graph.erase_node(region)


def _copy_region(
    gm: GraphModule, before: Node, region: Node, owner: GraphModule, operands: list[Any]
) -> Any:
    """Copies the region's operators to where the graph's insertions go; returns its results.

    Args:
        gm: changed in place.
        before: the node before which the insertions go.
        region: the call, which says how autocast is set.
        owner: the module that holds the region's graph.
        operands: the nodes of ``gm`` that it reads.
    """
    device, dtype, enabled, _, body = region.args[:5]
    module: GraphModule = getattr(owner, body.target)  # type: ignore[union-attr, arg-type]
    known: dict[Node, Any] = {}
    given = iter(operands)
    with torch.autocast(device, dtype, enabled):  # type: ignore[arg-type]
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "output":
                return map_arg(node.args[0], known.__getitem__)
            elif node.target is _AUTOCAST:
                inner = [map_arg(arg, known.__getitem__) for arg in node.args[5:]]
                known[node] = _copy_region(gm, before, node, module, inner)
            elif node.op == "get_attr" and any(user.target is _AUTOCAST for user in node.users):
                continue  # the graph of a region within
            elif node.op == "get_attr":
                known[node] = _copy_attribute(gm, before, module, node)
            elif isinstance(results := known.get(_source(node)), (tuple, list)):
                known[node] = results[node.args[1]]
            else:
                known[node] = _copy_call(gm, before, node, known)
    raise AssertionError("a graph has an output")


def _source(node: Node) -> Any:
    """The node from which a node takes one of several results."""
    return node.args[0] if node.args and len(node.all_input_nodes) == 1 else None


def _copy_attribute(gm: GraphModule, before: Node, module: GraphModule, node: Node) -> Node:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    name = f"_{before.name}_{node.name}"
    if isinstance(value, Tensor):
        gm.register_buffer(name, value, persistent=False)
    else:
        gm.add_module(name, value)
    copy = gm.graph.get_attr(name)
    copy.meta = dict(node.meta)
    return copy


def _copy_call(gm: GraphModule, before: Node, node: Node, known: Mapping[Node, Any]) -> Any:
    """Copies a call of a region of autocast, with the conversions that autocast makes."""
    casts, within = _casts(node)
    if within:
        # A composite operator, within which autocast converts: written out as its parts.
        operands = [known[source] for source in node.all_input_nodes]

        def run(*values: Any) -> Any:
            given = dict(zip(node.all_input_nodes, values, strict=True))
            args, kwargs = map_arg((node.args, node.kwargs), given.__getitem__)
            return node.target(*args, **kwargs)  # type: ignore[operator]

        results = inline(gm, before, run, operands, composite=False)
        return results if isinstance(node.meta.get("val"), (tuple, list)) else results[0]

    def operand(source: Node) -> Any:
        found, dtype = known[source], casts.get(source)
        return found if dtype is None else _convert(gm, found, value_of(source), dtype)

    args, kwargs = map_arg((node.args, node.kwargs), operand)
    copy = gm.graph.create_node(node.op, node.target, args, kwargs, node.name)
    copy.meta = dict(node.meta)
    return copy


class _Conversions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the tensors that are converted, with their new types."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, torch.dtype] = {}
        self._kept: list[Any] = []  # alive, since an id can come again after its object's end

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        dtype = kwargs.get("dtype")
        if func is aten._to_copy.default and dtype is not None:
            self.found[id(args[0])] = dtype
            self._kept.append(args[0])
        return func(*args, **kwargs)


def _casts(node: Node) -> tuple[dict[Node, torch.dtype], bool]:
    """The types that autocast converts arguments of a call to, and whether it converts others within."""
    if not _is_operator(node) or _is_view(node):
        return {}, False  # .to(dtype) has its own dtype
    inputs = node.all_input_nodes
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    with _Conversions() as conversions, torch.no_grad():
        node.target(*args, **kwargs)  # type: ignore[operator]
    casts = {x: conversions.found.pop(id(x.meta["val"]), None) for x in inputs}
    return {x: dtype for x, dtype in casts.items() if dtype is not None}, bool(conversions.found)


# Operators.


def _is_operator(node: Node) -> bool:
    """Whether a node calls an operator of torch's that does more than convert or move."""
    known = (*_CONVERSIONS, *_AS_THEY_ARE)
    return hasattr(node.target, "_schema") and node.target not in known


def _is_view(node: Node) -> bool:
    """Whether a call's results lie in its argument's memory, or may."""
    returns = node.target._schema.returns  # type: ignore[union-attr]
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _computes_in_half(node: Node) -> bool:
    if not _is_operator(node):
        return False
    inputs = [value_of(source) for source in node.all_input_nodes]
    if not any(value is not None for value in inputs) or _is_view(node):
        return False
    result = node.meta.get("val")
    results = result if isinstance(result, (tuple, list)) else (result,)
    computed = any(isinstance(value, Tensor) for value in results)
    return computed and any(map(is_half, (*inputs, *results)))


def _convert(gm: GraphModule, node: Node, value: Tensor | None, dtype: torch.dtype) -> Node:
    """Inserts a conversion of a node with this value where the graph's insertions go."""
    new: Node = gm.graph.call_function(aten.to.dtype, (node, dtype))
    if value is not None:
        new.meta = {**node.meta, "val": value.to(dtype)}
    return new


def _widen(gm: GraphModule, node: Node) -> None:
    """Makes a call compute in float32, and round what it gave in half precision."""

    def wide(value: Any) -> Any:
        """A dtype that is asked for, or a recorded result."""
        if is_half(value):
            return value.to(torch.float32)
        return torch.float32 if isinstance(value, torch.dtype) and value in HALVES else value

    def operand(source: Node) -> Node:
        value = value_of(source)
        if not is_half(value):
            return source
        if source not in widened:
            widened[source] = _convert(gm, source, value, torch.float32)
        return widened[source]

    widened: dict[Node, Node] = {}
    with gm.graph.inserting_before(node):
        args, kwargs = map_arg((node.args, node.kwargs), operand)
    node.args, node.kwargs = map_aggregate(args, wide), map_aggregate(kwargs, wide)
    result = node.meta.get("val")
    node.meta["val"] = map_aggregate(result, wide)
    if node.target._schema.is_mutable:  # type: ignore[union-attr]
        _write_back(gm, node, widened)
    takers = list(node.users) if isinstance(result, (tuple, list)) else [node]
    for taker in takers:
        value = taker.meta.get("val")
        if not is_half(result if taker is node else value):
            continue
        dtype: torch.dtype = (result if taker is node else value).dtype  # type: ignore[union-attr]
        users = list(taker.users)
        taker.meta["val"] = taker.meta["val"].to(torch.float32)
        with gm.graph.inserting_after(taker):
            rounded = _convert(gm, taker, taker.meta["val"], dtype)
        for user in users:
            user.replace_input_with(taker, rounded)


def _write_back(gm: GraphModule, node: Node, widened: Mapping[Node, Node]) -> None:
    """Rounds what a call changed in place into the tensor that it should have changed."""
    changed = [
        node.args[i]
        for i, argument in enumerate(node.target._schema.arguments)  # type: ignore[union-attr]
        if argument.alias_info is not None and argument.alias_info.is_write and i < len(node.args)
    ]
    with gm.graph.inserting_after(node):
        for source, copy in widened.items():
            if copy in changed:
                gm.graph.call_function(aten.copy_.default, (source, copy)).meta = dict(source.meta)


def _fold_weights(gm: GraphModule) -> None:
    """Makes constants of weights that are rounded and read in float32 again."""
    for node in list(gm.graph.nodes):
        value = value_of(node)
        if node.target is not aten.to.dtype or value is None or value.dtype != torch.float32:
            continue
        folded = fold_constant(gm, node)
        if folded is None or constant_of(gm, node) is not None:
            continue
        name = attribute_name("rounded_", folded.label, folded.key)
        if not hasattr(gm, name):
            gm.register_buffer(name, folded.tensor.contiguous(), persistent=False)
        with gm.graph.inserting_before(node):
            constant = gm.graph.get_attr(name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        gm.graph.erase_node(node)
