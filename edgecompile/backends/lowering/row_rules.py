"""Operators that compute each row of their result from the same row of their operands."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from edgecompile.backends.lowering.rewriting import arguments_of
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION

aten = torch.ops.aten


@dataclass(frozen=True)
class Rows:
    """How a node computes one row of its result along a dimension.

    Attributes:
        inputs: the dimension of which one row is needed, by operand; all of an operand that isn't here.
        args: the arguments for one row, with the node's own operands.
        target: the operator; where the node changes its operand in place, the one that doesn't.
    """

    inputs: Mapping[Node, int]
    args: tuple[Any, ...]
    target: Any


def find_rows(node: Node, dim: int) -> Rows | None:
    """How a node computes one row along ``dim``; None: not from one row of its operands, as far as is known."""
    target: Any = node.target
    if node.op != "call_function":
        return None
    if target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, Node)
        return Rows({source: dim}, node.args, target)
    schema = getattr(target, "_schema", None)
    if schema is None or any(name not in _KEYWORDS for name in node.kwargs):
        return None
    if torch.Tag.pointwise in target.tags or target in _BY_ELEMENT:
        inputs = _aligned(node, node.all_input_nodes, dim)
        target = _functional(node) if schema.is_mutable else target
        if inputs is None or target is None or torch.Tag.nondeterministic_seeded in target.tags:
            return None
        return Rows(inputs, node.args, target)
    rule = _RULES.get(target)
    found = None if rule is None or schema.is_mutable else rule(node, node.args, dim)
    if found is None:
        return None
    inputs, args = found
    if inputs is None or (target not in _OF_ALIKE and _is_twice(node.args, inputs)):
        return None
    return Rows(inputs, args, target)


def shape_of(node: Any) -> Sequence[Any]:
    """The sizes of a node's result, of the first one of several; () if it is no tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return value.shape if isinstance(value, Tensor) else ()


def is_one(size: Any) -> bool:
    """Whether a size is 1 at every run."""
    return isinstance(size, int) and size == 1


_KEYWORDS = ("dtype", "device", "layout", "pin_memory", "memory_format", "approximate", "alpha", "keepdim",
             "rounding_mode", "non_blocking", "copy", "value", "scale", "dropout_p", "implicit", "half_to_float", "eps")  # fmt: skip
_BY_ELEMENT = {
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.type_as.default,
    aten.contiguous.default,
    aten.detach.default,
    aten._to_copy.default,
}
#: The operands with their dimensions, None where all rows are needed; and the arguments for one row.
_Found = tuple["dict[Node, int] | None", Any]


#: Functional forms of other operators may return another dtype than the operand has.
_IN_PLACE = ("add_", "sub_", "mul_", "div_", "neg_", "exp_", "relu_", "silu_", "gelu_", "tanh_", "sigmoid_", "clamp_", "masked_fill_")  # fmt: skip


def _functional(node: Node) -> Any:
    """The operator that doesn't change its operand; None where its result might be another one."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    name = schema.name.partition("::")[2]
    kinds = {item.meta["val"].dtype for item in node.all_input_nodes if shape_of(item)}
    if name not in _IN_PLACE or (len(kinds) > 1 and name != "masked_fill_"):
        return None
    return getattr(getattr(aten, name.removesuffix("_")), schema.overload_name or "default", None)


def _is_twice(args: Any, inputs: Mapping[Node, int]) -> bool:
    """Whether an operand of which one row is taken is another operand as well, which may be needed in full."""
    given: list[Any] = [item for item in args if isinstance(item, Node)]
    return any(given.count(item) > 1 for item in inputs)


def _aligned(node: Node, operands: Sequence[Any], dim: int) -> dict[Node, int] | None:
    """Operands with the dimension that ``dim`` of the result is, where sizes are broadcast."""
    result, found = shape_of(node), {}
    for item in operands:
        sizes = shape_of(item)
        place = dim - (len(result) - len(sizes))
        if place >= 0 and not is_one(sizes[place]):
            found[item] = place
    return found or None


def _within(x: Any, dim: int) -> int:
    return dim % max(len(shape_of(x)), 1)


def _linear(node: Node, args: Any, dim: int) -> _Found:
    x = args[0]
    return ({x: dim} if dim < len(shape_of(node)) - 1 else None), args


def _matmul(node: Node, args: Any, dim: int) -> _Found:
    left, right = args[:2]
    ranks = len(shape_of(left)), len(shape_of(right)), len(shape_of(node))
    if min(ranks[:2]) < 2 or dim == ranks[2] - 1:
        return None, ()
    if dim == ranks[2] - 2:
        return {left: ranks[0] - 2}, args
    return _aligned(node, (left, right), dim), args


def _addmm(node: Node, args: Any, dim: int) -> _Found:
    bias, left, _ = args[:3]
    if dim != 0:
        return None, ()
    return {**(_aligned(node, (bias,), 0) or {}), left: 0}, args


def _along(node: Node, args: Any, dim: int) -> _Found:
    """Operators that mix the values along some dimensions, and keep their number."""
    given = arguments_of(node)
    x = args[0]
    along = given["dim"] if isinstance(given["dim"], (list, tuple)) else [given["dim"]]
    return (None if dim in [_within(x, item) for item in along] else {x: dim}), args


def _reduced(node: Node, args: Any, dim: int) -> _Found:
    given, x = arguments_of(node), args[0]
    along = given["dim"]
    if not along:
        return None, ()
    gone = {_within(x, item) for item in along}
    kept = [place for place in range(len(shape_of(x))) if given["keepdim"] or place not in gone]
    return (None if kept[dim] in gone else {x: kept[dim]}), args


def _normed(node: Node, args: Any, dim: int) -> _Found:
    x, shape = args[:2]
    return ({x: dim} if dim < len(shape_of(x)) - len(shape) else None), args


def _transposed(node: Node, args: Any, dim: int) -> _Found:
    x = args[0]
    first, second = (_within(x, item) for item in args[1:3])
    return {x: {first: second, second: first}.get(dim, dim)}, args


def _permuted(node: Node, args: Any, dim: int) -> _Found:
    x, order = args[:2]
    return {x: _within(x, order[dim])}, args


def _unsqueezed(node: Node, args: Any, dim: int) -> _Found:
    place = _within(node, args[1])
    x = args[0]
    return (None if dim == place else {x: dim - (dim > place)}), args


def _squeezed(node: Node, args: Any, dim: int) -> _Found:
    x = args[0]
    place = _within(x, args[1])
    gone = len(shape_of(x)) > len(shape_of(node))
    return {x: dim + (gone and dim >= place)}, args


def _selected(node: Node, args: Any, dim: int) -> _Found:
    x = args[0]
    place = _within(x, args[1])
    return {x: dim + (dim >= place)}, args


def _joined(node: Node, args: Any, dim: int) -> _Found:
    if any(len(shape_of(part)) != len(shape_of(node)) for part in args[0]):
        return None, ()  # torch leaves out what is empty
    parts, place = args[0], arguments_of(node)["dim"]
    return (None if dim == _within(node, place) else dict.fromkeys(parts, dim)), args


def _stacked(node: Node, args: Any, dim: int) -> _Found:
    place = _within(node, arguments_of(node)["dim"])
    parts = dict.fromkeys(args[0], dim - (dim > place))
    return (None if dim == place else parts), args


def _flattened(node: Node, args: Any, dim: int) -> _Found:
    """A reshape that keeps the dimension: as many values lie in it and before it as in the operand."""
    x, result, operand = args[0], shape_of(node), shape_of(args[0])
    before = math.prod(result[:dim])
    for place, size in enumerate(operand):
        kept = not is_one(size) and statically_known_true(size == result[dim])
        if kept and statically_known_true(math.prod(operand[:place]) == before):
            return {x: place}, args
    return None, ()


def _viewed(node: Node, args: Any, dim: int) -> _Found:
    x, sizes = args[:2]
    ones = [1 if index == dim else item for index, item in enumerate(sizes)]
    return _flattened(node, args, dim)[0], (x, ones)


def _expanded(node: Node, args: Any, dim: int) -> _Found:
    x, sizes = args[:2]
    inputs = _aligned(node, (x,), dim)
    ones = [1 if index == dim else item for index, item in enumerate(sizes)]
    return inputs, (x, ones, *args[2:])


def _looked_up(node: Node, args: Any, dim: int) -> _Found:
    ids = args[1]
    return ({ids: dim} if dim < len(shape_of(ids)) else None), args


def _attention(node: Node, args: Any, dim: int) -> _Found:
    given = arguments_of(node)
    q, mask = given["query"], given["attn_mask"]
    if dim != len(shape_of(node)) - 2 or given["is_causal"] or given["dropout_p"]:
        return None, ()
    inputs = {q: dim}
    sizes = shape_of(mask)
    if len(sizes) >= 2 and not is_one(sizes[-2]):
        inputs[mask] = len(sizes) - 2
    return inputs, args


def _cached_attention(node: Node, args: Any, dim: int) -> _Found:
    return ({args[0]: 2} if dim == 2 else None), args


_RULES: dict[Any, Callable[[Node, Any, int], _Found]] = {
    aten.linear.default: _linear,
    aten.matmul.default: _matmul,
    aten.mm.default: _matmul,
    aten.bmm.default: _matmul,
    aten.addmm.default: _addmm,
    aten.softmax.int: _along,
    aten._softmax.default: _along,
    aten.log_softmax.int: _along,
    aten.slice.Tensor: _along,
    aten.split.Tensor: _along,
    aten.split_with_sizes.default: _along,
    aten.chunk.default: _along,
    aten.topk.default: _along,
    aten.sort.default: _along,
    aten.mean.dim: _reduced,
    aten.sum.dim_IntList: _reduced,
    aten.amax.default: _reduced,
    aten.layer_norm.default: _normed,
    aten.rms_norm.default: _normed,
    aten.transpose.int: _transposed,
    aten.permute.default: _permuted,
    aten.unsqueeze.default: _unsqueezed,
    aten.squeeze.dim: _squeezed,
    aten.select.int: _selected,
    aten.cat.default: _joined,
    aten.stack.default: _stacked,
    aten.view.default: _viewed,
    aten.reshape.default: _viewed,
    aten._unsafe_view.default: _viewed,
    aten.flatten.using_ints: _flattened,
    aten.expand.default: _expanded,
    aten.embedding.default: _looked_up,
    aten.scaled_dot_product_attention.default: _attention,
    CACHED_ATTENTION: _cached_attention,
}
#: Operators whose operands are a list, all of which are alike.
_OF_ALIKE = (aten.cat.default, aten.stack.default)
