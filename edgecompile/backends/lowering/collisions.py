"""Tells whether two writes of one operator can put different values at the same place.

Loops of several threads may make such writes in any order, so only those that can't collide are left to
generated code. What isn't known may collide.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.rewriting import arguments_of

aten = torch.ops.aten

#: Dimensions of a tensor, counted from the end (-1 is the last), as broadcasting does.
Dims = frozenset[int]
_LAST: Dims = frozenset({-1})
_MASKS = (torch.bool, torch.uint8)


@dataclass(frozen=True)
class _Spread:
    """The differences among the elements of a tensor.

    Attributes:
        own: along these dimensions together no value occurs twice, wherever the other dimensions are fixed.
        varies: the elements are the same along all other dimensions.
        natural: no element is negative.
        span: largest value less the smallest one along ``own``, wherever the other dimensions are fixed; None: not known.
    """

    own: Dims
    varies: Dims
    natural: bool = False
    span: int | torch.SymInt | None = None

    def own_in(self, room: int | torch.SymInt) -> Dims:
        """The dimensions along which no two values are the same place of ``room``: -1 is the last one."""
        apart = self.span is not None and statically_known_true(self.span < room)
        return self.own if self.natural or apart else frozenset()


def may_collide(gm: GraphModule, node: Node, constants: Mapping[str, Tensor] | None = None) -> bool:
    """Whether a write at indices may put different values at one place.

    Args:
        gm: the graph's module, which holds its constants.
        node: a call of ``index_put``, ``index_copy``, ``index_fill``, ``put`` or ``scatter`` in any form, without a reduction.
        constants: tensors by the names of the graph's inputs that stand for them.
    """
    arguments: tuple[Any, ...] = node.args
    target = value_of(arguments[0])
    packet = getattr(node.target, "overloadpacket", None)
    if target is None:
        return True
    if packet in (aten.index_fill, aten.index_fill_):
        return False
    reader = _Reader(gm, constants or {})
    if packet in (aten.scatter, aten.scatter_):
        return _scatter_collides(reader, target, *arguments[1:4])
    if packet in (aten.index_copy, aten.index_copy_):
        dim, index, values = arguments[1:4]
        indices = [None] * (dim % max(1, target.dim())) + [index]
    elif packet in (aten.put, aten.put_):
        indices, values, target = [arguments[1]], arguments[2], target.new_empty(target.numel())
    else:
        indices, values = arguments[1:3]
    return _puts_collide(reader, target, indices, values)


def varying_dims(
    gm: GraphModule, node: Node, constants: Mapping[str, Tensor] | None = None
) -> Dims:
    """The dimensions, counted from the end, that the elements of a node's tensor may differ along."""
    return _Reader(gm, constants or {}).read(node).varies


def _scatter_collides(reader: _Reader, target: Tensor, dim: int, index: Any, source: Any) -> bool:
    rank, shape = max(1, target.dim()), index.meta["val"].shape
    along = dim % rank - rank
    if not shape or along not in _varying(shape):
        return False
    return along not in reader.read(index).own and along in _operand(reader, source).varies


def _puts_collide(reader: _Reader, target: Tensor, indices: Sequence[Any], values: Any) -> bool:
    spreads: list[tuple[Dims, Dims]] = []
    taken: list[int] = []
    dim, common = 0, 0
    for node in indices:
        shape = value_of(node)
        if node is None:
            dim += 1
            continue
        if shape is None:
            return True
        mask = shape.dtype in _MASKS
        # A mask stands for the indices of what is true in it, one after another.
        spread = _Spread(_LAST, _LAST, natural=True) if mask else reader.read(node)
        spreads.append((spread.own_in(target.shape[dim]), spread.varies))
        taken += range(dim, dim + (shape.dim() if mask else 1))
        dim = taken[-1] + 1
        common = max(common, 1 if mask else shape.dim())
    known = reader.rows_of_nonzero([node for node in indices if node is not None])
    grows = True
    while grows:
        new = {d for own, varies in spreads if varies - own <= known for d in own} - known
        known, grows = known | new, bool(new)
    neighbours = taken[-1] - taken[0] + 1 == len(taken)
    # The dimensions of the values behind the common ones of the indices.
    behind = target.dim() - (taken[-1] + 1 if neighbours else len(taken))
    written = reader.read(values).varies
    return any(d not in known and d - behind in written for d in range(-common, 0))


class _Reader:
    """Reads the spread of nodes of one graph."""

    def __init__(self, gm: GraphModule, constants: Mapping[str, Tensor]) -> None:
        self._gm, self._constants = gm, constants

    def rows_of_nonzero(self, nodes: Sequence[Any]) -> Dims:
        """The last dimension, if the nodes have among them all columns of a ``nonzero``."""
        columns: dict[Node, set[int]] = {}
        for node in nodes:
            source, column = node, None
            if node.target is operator.getitem and node.args[0].target is aten.unbind.int:
                source, column = node.args[0].args[0], node.args[1]
                if arguments_of(node.args[0])["dim"] not in (1, -1):
                    column = None
            elif node.target is aten.select.int and node.args[1] in (1, -1):
                source, column = node.args[0], node.args[2]
            elif node.target in (aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default):
                source, column = node.args[0], 0
            if column is not None and getattr(source, "target", None) is aten.nonzero.default:
                columns.setdefault(source, set()).add(column)
        for source, found in columns.items():
            value = value_of(source)
            if value is not None and len(found) == value.shape[1]:
                return _LAST
        return frozenset()

    def read(self, node: Any) -> _Spread:
        """The spread of a node's result; of what isn't known nothing is one's own."""
        value = value_of(node)
        constant = constant_of(self._gm, node)
        if isinstance(node, Node) and node.op == "placeholder":
            constant = self._constants.get(node.name)
        if constant is not None:
            return _spread_of(constant)
        if value is None:
            return _Spread(frozenset(), frozenset(range(-16, 0)))
        unknown = _Spread(frozenset(), _varying(value.shape))
        rule = _RULES.get(getattr(node.target, "overloadpacket", node.target))
        result = unknown if rule is None else rule(self, node, value)
        # A dimension of one index needs no writer of its own, and nothing varies along it.
        own, varies = result.own & unknown.varies, result.varies & unknown.varies
        return replace(result, own=own, varies=varies)


def _varying(shape: Sequence[Any]) -> Dims:
    """The dimensions that may have more than one index."""
    return frozenset(
        d for d in range(-len(shape), 0) if not (isinstance(shape[d], int) and shape[d] == 1)
    )


def _spread_of(constant: Tensor) -> _Spread:
    varies = {
        d for d in _varying(constant.shape) if bool((constant != constant.narrow(d, 0, 1)).any())
    }
    if not _is_whole(constant) or constant.numel() == 0:
        return _Spread(frozenset(), frozenset(varies))
    part = constant
    for d in _varying(constant.shape) - varies:
        part = part.narrow(d, 0, 1)
    least, most = int(part.min()), int(part.max())
    spread = _Spread(frozenset(), frozenset(varies), least >= 0, most - least)
    if len(torch.unique(part)) == part.numel():
        return replace(spread, own=spread.varies)
    for d in sorted(varies, reverse=True):
        ordered = part.sort(d).values
        n = ordered.shape[d]
        if bool((ordered.narrow(d, 1, n - 1) != ordered.narrow(d, 0, n - 1)).all()):
            return replace(spread, own=frozenset({d}))
    return spread


def _is_whole(value: Tensor) -> bool:
    return value.dtype in (torch.int32, torch.int64)


def _arange(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    bound = arguments_of(node)
    step, start = bound.get("step", 1), _number(bound.get("start", 0))
    known = isinstance(step, int) and step != 0 and isinstance(start, (int, torch.SymInt))
    if not known or not _is_whole(value):
        return _Spread(frozenset(), _LAST)
    span = abs(step) * (value.shape[0] - 1)
    return _Spread(_LAST, _LAST, _is_natural(start if step > 0 else start - span), span)


def _number(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, Node) else argument


def _is_natural(number: Any) -> bool:
    """Whether a number, or a size that varies, is surely not negative: negative indices count from the end."""
    if isinstance(number, torch.SymInt):
        return statically_known_true(number >= 0)
    return isinstance(number, int) and number >= 0


def _item(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    """The places that a sort or a selection gives beside the values."""
    source, number = node.args
    dims = _varying(value.shape)
    if number != 1 or getattr(source, "target", None) not in _ORDERS:
        return _Spread(frozenset(), dims)
    dim = arguments_of(source)["dim"]  # type: ignore[arg-type]
    rank = max(1, value.dim())
    return _Spread(frozenset({int(dim) % rank - rank}), dims, natural=True)


def _argsort(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    rank = max(1, value.dim())
    along = int(arguments_of(node)["dim"]) % rank - rank
    return _Spread(frozenset({along}), _varying(value.shape), natural=True)


def _same(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    """The spread of an operator that only copies, converts or flips."""
    spread = reader.read(node.args[0])
    source = value_of(node.args[0])
    if source is not None and source.dtype == value.dtype:
        return spread
    kept = source is not None and _is_whole(source) and value.dtype == torch.int64
    return spread if kept else _Spread(frozenset(), spread.varies)


def _part(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    """The spread of a slice, whose dimensions stay."""
    return reader.read(node.args[0])


def _moved(spread: _Spread, at: Callable[[int], int | None]) -> _Spread:
    def move(dims: Dims) -> Dims:
        return frozenset(new for new in map(at, dims) if new is not None)

    return replace(spread, own=move(spread.own), varies=move(spread.varies))


def _unsqueeze(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    new = int(arguments_of(node)["dim"]) % value.dim() - value.dim()
    return _moved(reader.read(node.args[0]), lambda d: d - 1 if d <= new else d)


def _select(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    rank = value.dim() + 1
    old = int(arguments_of(node)["dim"]) % rank - rank
    return _moved(
        reader.read(node.args[0]), lambda d: None if d == old else d + 1 if d < old else d
    )


def _expand(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    return reader.read(node.args[0])


def _permute(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    rank = value.dim()
    bound = arguments_of(node)
    order = list(range(rank))
    if "dims" in bound:
        order = [int(d) % rank for d in bound["dims"]]
    elif "dim0" in bound:
        one, two = int(bound["dim0"]) % rank, int(bound["dim1"]) % rank
        order[one], order[two] = order[two], order[one]
    else:
        order.reverse()
    return _moved(reader.read(node.args[0]), lambda d: order.index(d + rank) - rank)


def _view(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    """The spread of a reshape that only adds or drops dimensions of one index, or has no value twice."""
    spread, source = reader.read(node.args[0]), value_of(node.args[0])
    unknown = _Spread(frozenset(), _varying(value.shape), spread.natural)
    if source is None:
        return unknown
    if not spread.varies:
        return spread
    old, new = (sorted(_varying(x.shape)) for x in (source, value))
    if len(old) == len(new) and all(
        str(source.shape[a]) == str(value.shape[b]) for a, b in zip(old, new, strict=True)
    ):
        places = dict(zip(old, new, strict=True))
        return _moved(spread, places.get)
    if spread.own == frozenset(old):
        return replace(spread, own=unknown.varies, varies=unknown.varies)
    return unknown


def _sum(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    bound = arguments_of(node)
    one, two = (_operand(reader, bound[name]) for name in ("self", "other"))
    varies = one.varies | two.varies
    if not _is_whole(value) or bound.get("alpha", 1) != 1:
        return _Spread(frozenset(), varies)
    other = _number(bound["other"])
    rises = two.natural
    if getattr(node.target, "overloadpacket", None) is aten.sub:
        rises = isinstance(other, (int, torch.SymInt)) and _is_natural(-other)
    # Along the dimensions that the other operand doesn't vary along, a sum differs as an operand does.
    sides = ((one.own - two.varies, one.span), (two.own - one.varies, two.span))
    own, span = max(sides, key=lambda side: len(side[0]))
    return _Spread(own, varies, one.natural and rises, span)


def _product(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    bound = arguments_of(node)
    one, two = (_operand(reader, bound[name]) for name in ("self", "other"))
    factor, varies = bound["other"], one.varies | two.varies
    if not _is_whole(value):
        return _Spread(frozenset(), varies)
    natural = one.natural and two.natural
    if not isinstance(factor, int) or factor <= 0:
        return _Spread(frozenset(), varies, natural)
    return _Spread(one.own, varies, natural, None if one.span is None else one.span * factor)


def _operand(reader: _Reader, operand: Any) -> _Spread:
    if isinstance(operand, Node) and isinstance(operand.meta.get("val"), Tensor):
        return reader.read(operand)
    return _Spread(frozenset(), frozenset(), _is_natural(_number(operand)))


def _filled(reader: _Reader, node: Node, value: Tensor) -> _Spread:
    name = "s" if node.target is aten.scalar_tensor.default else "fill_value"
    return _Spread(frozenset(), frozenset(), _is_natural(_number(arguments_of(node).get(name, 0))))


_ORDERS = (aten.sort.default, aten.sort.stable, aten.topk.default)
_RULES: dict[Any, Callable[[_Reader, Node, Tensor], _Spread]] = {
    **dict.fromkeys((aten.arange, torch.ops.prims.iota), _arange),
    **dict.fromkeys((aten.argsort,), _argsort),
    operator.getitem: _item,
    **dict.fromkeys(
        (
            aten.clone, aten.contiguous, aten.alias, aten.detach, aten.detach_, aten.lift_fresh_copy, aten.to, aten._to_copy,
            aten.flip, torch.ops.prims.convert_element_type,
        ),
        _same,
    ),
    aten.slice: _part,
    aten.unsqueeze: _unsqueeze,
    aten.select: _select,
    aten.expand: _expand,
    **dict.fromkeys((aten.permute, aten.transpose, aten.t, aten.numpy_T), _permute),
    **dict.fromkeys(
        (aten.view, aten.reshape, aten._unsafe_view, aten.squeeze, aten.flatten, aten.view_as, aten.reshape_as),
        _view,
    ),
    **dict.fromkeys((aten.add, aten.sub), _sum),
    aten.mul: _product,
    **dict.fromkeys(
        (
            aten.full, aten.full_like, aten.zeros, aten.zeros_like, aten.ones, aten.ones_like, aten.new_zeros,
            aten.new_ones, aten.new_full, aten.scalar_tensor,
        ),
        _filled,
    ),
}  # fmt: skip
