"""Writes sizes that depend on values as ones that don't, where the result has a size that is known.

What is left makes a run wait for numbers, and CUDA graphs impossible: :mod:`~edgecompile.backends.cuda.lowering.counts`.
Three forms need no other size in the end: rows that a mask
selects and that are put back by the same mask are computed for all rows and put where the mask is true; rows that
are divided by counts among the matrices of a mixture, and joined again, are one product of groups; numbers that
are read only to be asserted are asserted on the GPU.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, LoweringReport, arguments_of

aten = torch.ops.aten

#: The class of operators with one signature each; torch has it under a private name.
_OPERATOR = type(aten.linear.default)
_PUTS = (aten.index_put_.default, aten.index_put.default)
#: They compute each row of the first dimension by itself; operators that are pointwise do, too.
_ROWS = {aten.linear.default, aten.dropout.default, aten.to.dtype, aten._to_copy.default}
_READS = (aten.item.default, aten._local_scalar_dense.default, aten.sym_size.int)
#: What says of a number that it is in a range, and computes nothing.
_CLAIMS = (
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)


def settle_sizes(low: Lowering) -> None:
    """Rewrites all of these in a graph as exported; what is of another form stays."""
    gm = low.gm
    for node in list(gm.graph.nodes):
        if node.target is aten.index.Tensor and node.meta.get("unbacked_bindings"):
            low.report.counts["masks"] += _compute_all_rows(gm, node)
        elif node.target is aten.cat.default:
            low.report.counts["grouped"] += _group(gm, node)
    low.report.counts["asserted"] += _assert_on_gpu(gm)
    if any(low.report.counts[kind] for kind in ("masks", "grouped", "asserted")):
        _erase_unused(gm)
        record_again(gm)


def sizes_depend_on_values(gm: GraphModule) -> bool:
    """Whether a graph as exported has such sizes behind these rewrites, which are done in place."""
    settle_sizes(Lowering(gm, LoweringReport()))
    return any(node.meta.get("unbacked_bindings") for node in gm.graph.nodes)


def _compute_all_rows(gm: GraphModule, selection: Node) -> bool:
    """``y[mask] = f(x[mask])`` becomes ``y = where(mask, f(x), y)`` where f computes each row by itself."""
    arguments: tuple[Any, ...] = selection.args
    x, indices = arguments[:2]
    mask = value_of(indices[0]) if len(indices) == 1 else None
    whole = value_of(x)
    if mask is None or whole is None or mask.dtype != torch.bool:
        return False
    mask_node = indices[0]
    rows, puts = [selection], []
    for node in gm.graph.nodes:
        read = [source for source in node.all_input_nodes if source in rows]
        if not read or _is_only_claimed(node):
            continue
        if _computes_rows(node, rows):
            rows.append(node)
        elif _puts_back(node, read, mask_node, whole.shape[: mask.dim()]):
            puts.append(node)
        else:
            return False
    if not puts:
        return False
    with gm.graph.inserting_before(selection):
        # A selection is a copy, and what it is of may be changed before it is read.
        copy = gm.graph.call_function(aten.clone.default, (x,))
        copy.meta = {**x.meta, "val": whole.clone()}
        every = gm.graph.call_function(aten.flatten.using_ints, (copy, 0, mask.dim() - 1))
    every.meta = {**selection.meta, "val": whole.flatten(0, mask.dim() - 1)}
    every.meta.pop("unbacked_bindings")
    for node in rows:
        for user in list(node.users):
            if _is_only_claimed(user):
                _erase_claims(gm, user)
    selection.replace_all_uses_with(every)
    for put in puts:
        _put_where(gm, put, mask)
    return True


def _puts_back(node: Node, rows: Sequence[Node], mask: Node, lines: Any) -> bool:
    """Whether a node writes ``rows`` to where a mask over ``lines`` is true, and does nothing else with them."""
    if node.target not in _PUTS or len(node.args) > 3 or node.kwargs:
        return False
    arguments: tuple[Any, ...] = node.args
    target, indices, values = arguments
    value = value_of(target)
    if list(indices) != [mask] or [values] != list(rows) or value is None:
        return False
    return value.shape == (*lines, *values.meta["val"].shape[1:])


def _put_where(gm: GraphModule, put: Node, mask: Tensor) -> None:
    arguments: tuple[Any, ...] = put.args
    target, (mask_node,), rows = arguments
    value = value_of(target)
    assert value is not None
    with gm.graph.inserting_before(put):
        sizes = [gm.graph.call_function(aten.sym_size.int, (target, i)) for i in range(value.dim())]
        for size, number in zip(sizes, value.shape, strict=True):
            size.meta["val"] = number
        shaped = gm.graph.call_function(aten.reshape.default, (rows, sizes))
        shaped.meta = {**put.meta, "val": value.new_empty(value.shape)}
        seen = mask_node
        for _ in range(value.dim() - mask.dim()):
            inner = seen.meta["val"]
            seen = gm.graph.call_function(aten.unsqueeze.default, (seen, -1))
            seen.meta["val"] = inner.unsqueeze(-1)
        result = gm.graph.call_function(aten.where.self, (seen, shaped, target))
        result.meta = {**put.meta, "val": value.new_empty(value.shape)}
        if put.target is aten.index_put_.default:
            changed = gm.graph.call_function(aten.copy_.default, (target, result))
            changed.meta = dict(put.meta)
            result = changed
    put.replace_all_uses_with(result)
    gm.graph.erase_node(put)


def _computes_rows(node: Node, rows: Sequence[Node]) -> bool:
    """Whether each row of a result is made of the same row of ``rows`` and of what has no rows."""
    value, target = value_of(node), node.target
    if value is None or not isinstance(target, _OPERATOR) or target._schema.is_mutable:
        return False
    others = [value_of(x) for x in node.all_input_nodes if x not in rows]
    if any(x is None or x.dim() >= value.dim() for x in others):
        return target is aten.linear.default and node.args[0] in rows and value.dim() > 1
    if target is aten.layer_norm.default:
        return len(arguments_of(node)["normalized_shape"]) < value.dim()
    return target in _ROWS or torch.Tag.pointwise in target.tags


def _group(gm: GraphModule, joined: Node) -> bool:
    """Rows divided by counts, each part times a matrix of one stack, joined: a product of groups."""
    parts = joined.args[0]
    if not isinstance(parts, (list, tuple)) or arguments_of(joined)["dim"] != 0:
        return False
    stack: Any = None
    division: Any = None
    for i, part in enumerate(parts):
        if part.target is not aten.linear.default or len(part.args) != 2:
            return False
        piece, matrix = part.args
        if piece.target is not operator.getitem or matrix.target is not aten.select.int:
            return False
        stack, division = stack or matrix.args[0], division or piece.args[0]
        if matrix.args != (stack, 0, i) or piece.args != (division, i):
            return False
    matrices = constant_of(gm, stack)
    if division is None or division.target is not aten.split_with_sizes.default or matrices is None:
        return False
    bound = arguments_of(division)
    x, counts = bound["self"], bound["split_sizes"]
    rows = value_of(x)
    reads = all(isinstance(count, Node) and count.target is aten.item.default for count in counts)
    if bound["dim"] or not reads or len(counts) != len(matrices) or len(parts) != len(counts):
        return False
    if rows is None or rows.dim() != 2 or matrices.dim() != 3:
        return False

    def ends(*numbers: Tensor) -> Tensor:
        return torch.stack(numbers).cumsum(0).to(torch.int32)

    (places,) = inline(gm, joined, ends, [count.args[0] for count in counts], symbolic=True)
    with gm.graph.inserting_before(joined):
        turned = gm.graph.call_function(aten.transpose.int, (stack, 1, 2))
        turned.meta["val"] = stack.meta["val"].transpose(1, 2)
        product = gm.graph.call_function(aten._grouped_mm.default, (x, turned, places))
    product.meta = {**joined.meta, "val": rows.new_empty((rows.shape[0], matrices.shape[1]))}
    joined.replace_all_uses_with(product)
    return True


def _is_only_claimed(node: Node) -> bool:
    """Whether a number, made of a tensor, is read by nothing but claims."""
    if node.target in _CLAIMS:
        return True
    is_number = node.target in _READS or getattr(node.target, "__module__", "") == "_operator"
    return (
        is_number and node.target is not operator.getitem and all(map(_is_only_claimed, node.users))
    )


def _erase_claims(gm: GraphModule, node: Node) -> None:
    for user in list(node.users):
        _erase_claims(gm, user)
    gm.graph.erase_node(node)


def _assert_on_gpu(gm: GraphModule) -> bool:
    """Makes one assertion of all claims about numbers that tensors hold, if nothing else reads those."""
    _erase_unused(gm)
    reads = [node for node in gm.graph.nodes if node.target in _READS[:2]]
    if not reads or not all(map(_is_only_claimed, reads)):
        return False
    numbers, claims = set(reads), []
    for node in gm.graph.nodes:
        if any(source in numbers for source in node.all_input_nodes):
            if node.target in _CLAIMS:
                claims.append(node)
            else:
                numbers.add(node)
    asserted = [node for node in claims if node.target is aten._assert_scalar.default]
    sizes = dict.fromkeys(
        source
        for node in gm.graph.nodes
        if node in numbers and node not in reads
        for source in node.all_input_nodes
        if source not in numbers
    )

    def run(*values: Any) -> Tensor:
        at = dict(zip([*reads, *sizes], values, strict=True))

        def value(node: Node) -> Any:
            if node not in at:
                at[node] = node.target(*torch.fx.map_arg(node.args, value))  # type: ignore[operator]
            return at[node]

        return torch.stack([value(node.args[0]) for node in asserted]).all()

    if asserted:
        output = next(iter(reversed(gm.graph.nodes)))
        held_by: list[Any] = [read.args[0] for read in reads]
        (held,) = inline(gm, output, run, [*held_by, *sizes], symbolic=True)
        message = "; ".join(dict.fromkeys(str(node.args[1]) for node in asserted))[:200]
        with gm.graph.inserting_before(output):
            gm.graph.call_function(aten._assert_async.msg, (held, message))
    for node in claims:
        gm.graph.erase_node(node)
    return True


def _erase_unused(gm: GraphModule) -> None:
    """Erases numbers that nothing reads, and claims about sizes that aren't there any more."""
    for node in reversed(list(gm.graph.nodes)):
        claimed = node.target in _CLAIMS and not isinstance(node.args[0], Node)
        pure = node.op == "call_function" and not node.is_impure()
        if claimed or (pure and not node.users):
            gm.graph.erase_node(node)


def record_again(gm: GraphModule) -> None:
    """Records the results of nodes behind what was rewritten, whose sizes depended on values."""

    def value(node: Node) -> Any:
        result = node.meta.get("val")
        constant = constant_of(gm, node) if result is None else None
        return result if constant is None else constant

    for node in gm.graph.nodes:
        recorded = node.meta.get("val")
        if node.op != "call_function" or not free_unbacked_symbols(recorded):
            continue
        if node.meta.get("unbacked_bindings") or node.target is aten._grouped_mm.default:
            continue
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
        modes = (getattr(value_of(x), "fake_mode", None) for x in node.all_input_nodes)
        mode = next((candidate for candidate in modes if candidate is not None), None)
        if mode is not None:
            with mode:
                node.meta["val"] = node.target(*args, **kwargs)
