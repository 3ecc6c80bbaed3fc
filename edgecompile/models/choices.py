"""Follows what sorts, selections, maxima and suppressions of boxes choose to a model's outputs, to find what near ties could change there.

Two nearly equal values have no order that a program in another precision, or with another order of summation, has to
share. So a run of eager records which places a line of values gave, which other places have nearly the same value, and
what the outputs would be with those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from edgecompile.runtime.format.golden.ties import Ties

aten = torch.ops.aten

#: Most alternatives of one place, and most bytes of the outputs with them.
_MOST = 64
_MOST_BYTES = 16 << 20
#: The scale of values is so many times the median magnitude of those that aren't zero at most: a mask's -1e9 among them is none.
_MEDIANS = 8.0


@dataclass(frozen=True)
class Choice:
    """One call that chose.

    Attributes:
        values: the lines of values [L, N].
        places: the places that it gave of each [L, K].
        used: bool [L · K], the places that another operator has read.
    """

    values: Tensor
    places: Tensor
    used: Tensor


@dataclass(frozen=True)
class _Follower:
    """A tensor of which one place, or none, decides each element.

    Attributes:
        choice: the call that gave the places.
        slots: int64 of the tensor's shape, which of the places decides each element; -1: none.
        with_places: a function that gives the tensor as it were with other places [L, K].
    """

    choice: Choice
    slots: Tensor
    with_places: Callable[[Tensor], Any]


class Choices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records, while it is on, what is chosen, and which tensors follow from it element by element."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._followers: Any = WeakIdKeyDictionary()
        self._count = 0
        #: The calls that chose, by their number; suppressions aren't among them, nor, behind the run, what nothing read.
        self.calls: dict[int, Choice] = {}

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        # A model may choose in every layer, of many values each.
        self.calls = {n: call for n, call in self.calls.items() if bool(call.used.any())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in CHOOSE or _name(func) in _SUPPRESS:
            self._choose(func, args, kwargs, result)
        elif len(self._followers) and hasattr(func, "_schema"):
            self._follow(func, args, kwargs, result)
        return result

    def find_ties(self, outputs: Mapping[str, Tensor], rtol: float) -> Ties | None:
        """The other possible outputs of the run; None where they follow from no values that are nearly equal.

        Args:
            outputs: the tensors that the run gave.
            rtol: largest difference of two values that tie, as a share of the values' scale.
        """
        held = {name: f for name, t in outputs.items() if (f := self._followers.get(t)) is not None}
        # What was changed in place behind the run's back can't be made again.
        held = {n: f for n, f in held.items() if _same(f.with_places(f.choice.places), outputs[n])}
        most = _MOST_BYTES // max(1, sum(outputs[name].nbytes for name in held))
        slots = {name: np.full(outputs[name].shape, -1, np.int64) for name in held}
        others: dict[str, list[npt.NDArray[Any]]] = {}
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        total = 0
        for choice in {id(f.choice): f.choice for f in held.values()}.values():
            mine = {name: f for name, f in held.items() if f.choice is choice}
            decided: Any = torch.cat([f.slots.reshape(-1) for f in mine.values()])
            used: Tensor = decided.unique()
            used = used[used >= 0]
            if not len(used):
                continue
            places, shares = _neighbours(choice, used, rtol, min(most, _MOST))
            lines = used // choice.places.shape[1] + (parts[-1][0].max() + 1 if parts else 0)
            parts.append((lines, places, shares))
            number = torch.full((choice.places.numel() + 1,), -1).scatter_(
                0, used, torch.arange(total, total + len(used))
            )
            total += len(used)
            for name, follower in mine.items():
                slots[name] = number[follower.slots].numpy()
                others[name] = [
                    _array(follower.with_places(_put(choice.places, used, row)))
                    for row in places[1:]
                ]
        rows = max((len(shares) for _, _, shares in parts), default=0)
        if not rows:
            return None
        return Ties(
            torch.cat([lines for lines, _, _ in parts]).numpy(),
            torch.cat([_fill(places, 1 + rows, -1) for _, places, _ in parts], 1).numpy(),
            torch.cat([_fill(shares, rows, torch.inf) for _, _, shares in parts], 1).numpy(),
            {name: slots[name] for name in others},
            {
                name: np.stack([*made, *[_array(outputs[name])] * (rows - len(made))])
                for name, made in others.items()
            },
        )

    def with_places(self, tensor: Tensor, choice: Choice, places: Tensor) -> Tensor:
        """A tensor as it would be with other places [L, K] of a choice, as far as it follows that."""
        found = self._followers.get(tensor)
        other: Tensor = tensor
        if found is not None and found.choice is choice:
            other = found.with_places(places)
        return other

    def lead(
        self,
        tensor: Tensor,
        choice: Choice,
        slots: Tensor,
        with_places: Callable[[Tensor], Any],
    ) -> None:
        """Lets a tensor follow a choice.

        Args:
            tensor: Output of the run.
            choice: Choice that decides its elements from now on.
            slots: Number of the place that decides each element, of the tensor's shape; -1: none.
            with_places: Function that gives the tensor with other places [L, K].
        """
        self._followers[tensor] = _Follower(choice, slots, with_places)

    def _choose(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        lines = lines_of(func, args, kwargs, result)
        if lines is None:
            return
        values, places, shape = lines
        unread = torch.zeros(places.numel(), dtype=torch.bool)
        choice = Choice(values.clone(), places.clone(), unread)
        if func in CHOOSE:
            self.calls[self._count] = choice
            self._count += 1
        numbers = torch.arange(places.numel()).reshape(places.shape)
        index = result if isinstance(result, Tensor) else result[1]
        self._followers[index] = _Follower(choice, shape(numbers), shape)

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        read = [t for t in _tensors(args) if t in self._followers]
        if func.overloadpacket not in (*_COPIES, *_MOVES):
            for tensor in read:
                found = self._followers[tensor]
                found.choice.used[found.slots[found.slots >= 0]] = True
        if func._schema.is_mutable:
            for tensor in _tensors(args):
                self._followers.pop(tensor, None)
        if func._schema.is_mutable or not read:
            return
        indices = [t for t in _indices(func, args) if t in self._followers]
        if len(indices) > 1 or any(t.dtype in (torch.bool, torch.uint8) for t in indices):
            return
        # What is read at the places that are followed stays as it is.
        leader = self._followers[(indices or read)[-1]]
        by_id = {
            id(t): f for t in (indices or read) if (f := self._followers[t]).choice is leader.choice
        }

        def numbers(tensor: Tensor) -> Tensor:
            found = by_id.get(id(tensor))
            return torch.full(tensor.shape, -1) if found is None else found.slots

        # Slots and other outputs may lie in memory in another order than the tensor itself.
        call = aten.reshape.default if func.overloadpacket in _VIEWS else func

        @lru_cache(1)
        def with_places(places: Tensor) -> Any:
            def other(tensor: Tensor) -> Tensor:
                found = by_id.get(id(tensor))
                return tensor if found is None else found.with_places(places)

            return call(*_replace(args, other), **kwargs)

        slots: Any = None
        if indices:
            slots = _slots_of_reads(func, args, leader.slots, result)
        elif func.overloadpacket in _COPIES:
            slots = numbers(args[0])
        elif func.overloadpacket in (*_MOVES, aten.gather, aten.index_select, aten.index):
            apart = {id(t) for t in _indices(func, args)}
            slots = call(*_replace(args, lambda t: t if id(t) in apart else numbers(t)))
        elif _name(func) in _ALIGN:
            row = _join(numbers(args[1]).unbind(1))
            slots = row if row is None else row[:, None, None, None].expand(result.shape)
        elif torch.Tag.pointwise in func.tags and isinstance(result, Tensor):
            slots = _join([numbers(t).expand(result.shape) for t in _tensors(args)])
        if slots is None:
            return
        if isinstance(result, Tensor):
            self._followers[result] = _Follower(leader.choice, slots, with_places)
            return
        for number, (part, its) in enumerate(zip(result, slots, strict=True)):
            self._followers[part] = _Follower(
                leader.choice, its, partial(_part, with_places, number)
            )


def lines_of(
    func: Any, args: Any, kwargs: Any, result: Any
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]] | None:
    """The lines of values [L, N] that a call chose from, the places [L, K] that it gave, and a function that gives
    results for these places the shape of the call's own; None for a single number and for none."""
    names = [argument.name for argument in func._schema.arguments]
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    # A suppression keeps boxes in the order of their scores.
    x = bound["scores" if _name(func) in _SUPPRESS else "self"].detach()
    dim = bound.get("dim", None if "arg" in str(func) else -1)
    index = result if isinstance(result, Tensor) else result[1]
    if x.dim() == 0 or not x.numel():
        return None
    if dim is None:
        x, kept, dim = x.reshape(-1), index.reshape(1), 0
    else:
        dim %= x.dim()
        kept = index if index.dim() == x.dim() else index.unsqueeze(dim)
    turned = kept.movedim(dim, -1).shape

    def shape(places: Tensor) -> Tensor:
        return places.reshape(turned).movedim(-1, dim).reshape(index.shape)

    places = kept.movedim(dim, -1).reshape(-1, kept.shape[dim])
    return x.movedim(dim, -1).reshape(-1, x.shape[dim]), places, shape


def widest_tie(values: Tensor, rtol: float) -> float:
    """The largest difference of two values of a call that tie."""
    if not values.is_floating_point():
        return 0.0  # whole numbers tie where they are equal
    finite = values[values.isfinite() & (values != 0)].abs().double()
    if not finite.numel():
        return 0.0
    return rtol * min(float(finite.max()), _MEDIANS * float(finite.median()))


def _part(with_places: Callable[[Tensor], Any], number: int, places: Tensor) -> Any:
    return with_places(places)[number]


def _neighbours(choice: Choice, used: Tensor, rtol: float, most: int) -> tuple[Tensor, Tensor]:
    """The places of some slots, with those whose values are next to theirs and nearly equal, [1 + A, S], -1: none; and
    the differences of these as shares of the values' scale, [A, S]."""
    values = choice.values.double()
    scale = widest_tie(choice.values, 1.0)
    ordered, order = values.sort(stable=True, dim=-1)
    everywhere = torch.arange(order.shape[1]).expand(order.shape)
    rank = torch.empty_like(order).scatter_(1, order, everywhere)
    line, given = used // choice.places.shape[1], choice.places.reshape(-1)[used]
    mine, value = rank[line, given], values[line, given]
    places, shares = [given], []
    for number in range(most):
        step = number // 2 + 1
        at = mine + (step if number % 2 else -step)
        inside = (at >= 0) & (at < order.shape[1])
        at = at.clamp(0, order.shape[1] - 1)
        other = ordered[line, at]
        gap = torch.where(other == value, 0.0, (other - value).abs())
        share = gap.where(gap == 0, gap / scale if scale else torch.inf)
        near = inside & (share <= rtol)
        places.append(torch.where(near, order[line, at], -1))
        shares.append(torch.where(near, share, torch.inf))
        if number % 2 and not bool((places[-1] >= 0).any() or (places[-2] >= 0).any()):
            places, shares = places[:-2], shares[:-2]
            break
    empty = torch.empty(0, len(used), dtype=torch.float64)
    return torch.stack(places), torch.stack(shares) if shares else empty


def _put(places: Tensor, used: Tensor, row: Tensor) -> Tensor:
    """The places [L, K] with those of some slots, where there are any."""
    flat = places.reshape(-1).clone()
    flat[used] = torch.where(row >= 0, row, flat[used])
    return flat.reshape(places.shape)


def _fill(rows: Tensor, count: int, value: float) -> Tensor:
    return torch.cat([rows, rows.new_full((count - len(rows), rows.shape[1]), value)])


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.contiguous().numpy()
    return array


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )


def _join(slots: Sequence[Tensor]) -> Tensor | None:
    """The slots of what is computed of several tensors; None where two places decide one element."""
    joined = slots[0]
    for more in slots[1:]:
        if bool(((joined >= 0) & (more >= 0) & (joined != more)).any()):
            return None
        joined = torch.maximum(joined, more)
    return joined


def _indices(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """The tensors of places at which an operator reads."""
    if func.overloadpacket in (aten.gather, aten.index_select):
        return [args[2]]
    if func.overloadpacket is aten.embedding:
        return [args[1]]
    return _tensors(args[1]) if func.overloadpacket is aten.index else []


def _slots_of_reads(func: Any, args: Sequence[Any], slots: Tensor, result: Tensor) -> Tensor:
    """The slots of what is read at places whose own slots are known."""
    if func.overloadpacket is aten.gather:
        return slots
    if func.overloadpacket is aten.embedding:
        return slots.unsqueeze(-1).expand(result.shape)
    if func.overloadpacket is aten.index_select:
        dim = args[1] % args[0].dim()
        return slots.reshape(-1, *[1] * (args[0].dim() - dim - 1)).expand(result.shape)
    given = [d for d, index in enumerate(args[1]) if index is not None]
    broadcast: Any = torch.broadcast_shapes
    common = broadcast(*(args[1][d].shape for d in given))
    front = given[0] if given[-1] - given[0] + 1 == len(given) else 0
    behind = result.dim() - front - len(common)
    return slots.expand(common).reshape(*common, *[1] * behind).expand(result.shape)


def _name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return "" if schema is None else str(schema.name)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def _replace(value: Any, new: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_replace(item, new) for item in value)
    return new(value) if isinstance(value, Tensor) else value


CHOOSE = (
    aten.sort.default, aten.sort.stable, aten.topk.default, aten.max.dim, aten.min.dim, aten.argmax.default,
    aten.argmin.default,
)  # fmt: skip
# By their names: torchvision may not be there.
_SUPPRESS = ("torchvision::nms", "edgecompile::ec_suppress")
#: What computes a row of each box, the second argument.
_ALIGN = ("torchvision::roi_align", "edgecompile::ec_roi_align")
_COPIES = (aten._to_copy, aten.clone, aten.detach, aten.alias, aten.lift_fresh)
_VIEWS = (aten.view, aten._unsafe_view)
_MOVES = (
    *_VIEWS, aten.reshape, aten.squeeze, aten.unsqueeze, aten.permute, aten.transpose, aten.t,
    aten.slice, aten.select, aten.expand, aten.flip, aten.unbind, aten.split, aten.split_with_sizes, aten.repeat, aten.cat,
    aten.stack,
)  # fmt: skip
