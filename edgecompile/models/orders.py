"""Tries other orders of a model's choices, for outputs that don't follow them element by element.

A detector's decoder lets the queries that a selection gave see each other. Its outputs then come in the order of the
selection, and follow from all of it. Runs of eager with other places show both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from edgecompile.errors import ModelError
from edgecompile.models.choices import CHOOSE, Choice, Choices, lines_of, widest_tie
from edgecompile.precision import TOLERANCES

#: Most choices whose other orders are tried; each takes up to two runs.
MOST = 4
#: Most lines of values for each of which a loop makes other places: 65,536 took nine seconds, longer than most models.
_MOST_LINES = 4096
#: Rows that come in another order differ by no more than this share of their scale: they were summed in another order.
_ALIKE = 1e-3

#: A function that runs the model once more while choices have other places.
Run = Callable[["Given"], Mapping[str, Tensor]]


class Given(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets calls that choose give other places.

    Args:
        places: Places [L, K] by the number of the call among :attr:`Choices.calls`.
    """

    supports_higher_order_operators = True

    def __init__(self, places: Mapping[int, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = places
        self._calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in CHOOSE or (lines := lines_of(func, args, kwargs, result)) is None:
            return result
        values, own, shape = lines
        number, self._calls = self._calls, self._calls + 1
        places = self._places.get(number)
        # Another choice may have changed the sizes of this one.
        if places is None or places.shape != own.shape or int(places.max()) >= values.shape[1]:
            return result
        places = self.choose(number, values, own, places)
        index = shape(places)
        return index if isinstance(result, Tensor) else (shape(values.gather(1, places)), index)

    def choose(self, number: int, values: Tensor, own: Tensor, places: Tensor) -> Tensor:
        """The places [L, K] that a call gives, of its own and those that it was to give."""
        return places


class Repeated(Given):  # type: ignore[no-untyped-call]
    """Lets another run choose as one has chosen, in each call whose values tie there.

    Args:
        calls: Choices of the first run by their number.
        rtol: Largest difference of two values that tie, as a share of the values' scale.
    """

    def __init__(self, calls: Mapping[int, Choice], rtol: float) -> None:
        super().__init__({number: call.places for number, call in calls.items()})
        self._calls_before = calls
        self._rtol = rtol

    def choose(self, number: int, values: Tensor, own: Tensor, places: Tensor) -> Tensor:
        # Of places that nothing reads the values may be read: those are this run's.
        used = self._calls_before[number].used.reshape(own.shape)
        places = torch.where(used, places, own)
        limit = widest_tie(values, self._rtol)
        tie = bool((_apart(values.gather(1, places), values.gather(1, own)) <= limit).all())
        return places if tie else own


def follow_orders(
    choices: Choices, outputs: Mapping[str, Tensor], rtol: float, run: Run, most: int = MOST
) -> float:
    """Lets outputs follow a choice whose order they have, and finds near ties that leave others open.

    Args:
        choices: Record of the run.
        outputs: Outputs of the run; those with the order of a choice follow it afterwards.
        rtol: Largest difference of two values that tie, as a share of the values' scale.
        run: Function that runs the model once more.
        most: Number of choices whose other orders are tried.

    Returns:
        The least difference, as a share of the values' scale, of two values on whose order outputs may depend in a way
        that no other order of theirs showed; inf where there are none.
    """
    tried, least = 0, math.inf
    for number, call in choices.calls.items():
        used = call.used.reshape(call.places.shape)
        if not call.values.is_floating_point():
            continue
        taken = used.any(0).nonzero().squeeze(1)
        scale = widest_tie(call.values, 1.0)
        got = call.values.double().gather(1, call.places[:, taken])
        steps = _apart(got[:, 1:], got[:, :-1])
        edges = _edges(call, taken)
        limit = rtol * scale
        inside, tied = bool((steps <= limit).any()), int((edges <= limit).any(1).sum())
        if not inside and not tied:
            continue
        tried += 1
        lines = max(tied, len(used) if inside else 0)
        left = tried > most or lines > _MOST_LINES or bool((used != used[0]).any())
        edge = partial(_follow_edge, choices, number, taken, limit, outputs, run)
        if tied and (left or not _shown(edge)):
            least = min(least, float(edges.min()) / (scale or 1.0))
        order = partial(_follow_order, choices, number, taken, outputs, run)
        if inside and (left or not _shown(order)):
            least = min(least, float(steps.min()) / (scale or 1.0))
    return least


def _shown(trial: Callable[[], bool]) -> bool:
    """The answer of a trial; False where the model refuses its run, which shows nothing."""
    try:
        return trial()
    except ModelError:  # code that refuses what it never met
        return False


def _follow_edge(
    choices: Choices,
    number: int,
    taken: Tensor,
    limit: float,
    outputs: Mapping[str, Tensor],
    run: Run,
) -> bool:
    """Whether outputs follow a call where other values that tie with the last one taken are taken instead."""
    places = _other_edge(choices.calls[number], taken, limit)
    return _explained(choices, number, places, outputs, run(Given({number: places})))


def _follow_order(
    choices: Choices, number: int, taken: Tensor, outputs: Mapping[str, Tensor], run: Run
) -> bool:
    """Lets outputs follow a call whose order they have; False where one of them depends on it in another way."""
    call = choices.calls[number]
    lines, count = len(call.places), len(taken)
    orders = torch.stack([_shuffle(count, line) for line in range(lines)])
    places = call.places.clone()
    places[:, taken] = places[:, taken].gather(1, orders)
    other = run(Given({number: places}))
    if _explained(choices, number, places, outputs, other):
        return True
    # A choice among the places that were taken alone: no other one can come in their order.
    choice = Choice(
        call.values.gather(1, call.places[:, taken]),
        torch.arange(count).expand(lines, count),
        torch.ones(lines * count, dtype=torch.bool),
    )
    slots = torch.arange(lines * count).reshape(lines, count)
    for name, tensor in outputs.items():
        if _alike(other[name], tensor):
            continue
        rows = _rows(tensor, other[name], orders)
        if rows is None:
            return False
        dim, spread = rows
        choices.lead(tensor, choice, spread(slots), partial(_reordered, tensor, dim, spread))
    return True


def _explained(
    choices: Choices,
    number: int,
    places: Tensor,
    outputs: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
) -> bool:
    """Whether the outputs of a run with other places of a call are those that the record gives for these places."""
    return all(
        _alike(other[name], choices.with_places(tensor, choices.calls[number], places))
        for name, tensor in outputs.items()
    )


def _reordered(
    tensor: Tensor, dim: int, spread: Callable[[Tensor], Tensor], places: Tensor
) -> Tensor:
    return tensor.gather(dim, spread(places))


def _rows(
    tensor: Tensor, other: Tensor, orders: Tensor
) -> tuple[int, Callable[[Tensor], Tensor]] | None:
    """The dimension along which a tensor came in other orders [L, K], and a function that spreads [L, K] over its shape."""
    lines, count = orders.shape
    if tensor.shape != other.shape:
        return None
    for dim in range(tensor.dim()):
        for first in range(dim) if lines > 1 else (-1,):
            shape = [1] * tensor.dim()
            if first >= 0:
                shape[first] = lines
            shape[dim] = count
            if tensor.shape[dim] != count or (first >= 0 and tensor.shape[first] != lines):
                continue

            def spread(places: Tensor, shape: Sequence[int] = shape) -> Tensor:
                return places.reshape(shape).expand(tensor.shape)

            if _alike(other, _reordered(tensor, dim, spread, orders), _ALIKE):
                return dim, spread
    return None


def _shuffle(count: int, seed: int) -> Tensor:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order.flip(0) if bool((order == torch.arange(count)).all()) else order


def _edges(call: Choice, taken: Tensor) -> Tensor:
    """The distances [L, N] of values from the last one taken; inf of those that were taken."""
    values, places = call.values.double(), call.places[:, taken]
    return _apart(values, values.gather(1, places[:, -1:])).scatter_(1, places, math.inf)


def _other_edge(call: Choice, taken: Tensor, limit: float) -> Tensor:
    """The places with as many as can be of those that tie with the last one taken."""
    places = call.places.clone()
    got = call.values.double().gather(1, places[:, taken])
    ties = _edges(call, taken) <= limit
    for line in ties.any(1).nonzero().squeeze(1).tolist():
        free = ties[line].nonzero().squeeze(1)
        held = taken[_apart(got[line], got[line, -1]) <= limit]
        count = min(len(free), len(held))
        wanted, given = free[:count], held[-count:]
        # A sort still gives every place once.
        full = places[line].clone()
        full[given] = wanted
        for slot, place in zip(given.tolist(), wanted.tolist(), strict=True):
            before = (call.places[line] == place).nonzero().squeeze(1)
            full[before] = call.places[line, slot]
        places[line] = full
    return places


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """The distances of values; inf from what is no number."""
    found = (one - other).abs_().masked_fill_(one == other, 0.0)
    return found.nan_to_num_(torch.inf, torch.inf)


def _alike(one: Tensor, other: Tensor, share: float = 0.0) -> bool:
    """Whether two outputs are equal, or differ by fp32's tolerance or a share of their scale at most."""
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = other[other.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    limit = max(TOLERANCES["fp32"].limit(largest), share * largest)
    return torch.allclose(one.double(), other.double(), rtol=0.0, atol=limit, equal_nan=True)
