"""Places of nearly equal values, which a sort or a selection may give in either order."""

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional

import numpy as np

from ..manifest.schema import NOTHING, Tolerance

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Ties(NamedTuple):
    """Places that the sorts, selections and maxima of a model could have given instead of those that they gave.

    S is the number of places that they gave in all, A the most alternatives that one of them has.

    ``lines``: int64 [S], the line of values that each place was taken from: a line gives no place twice.
    ``places``: int64 [1 + A, S], the place that was given, and the alternatives; -1 where there is none.
    ``shares``: float64 [A, S], the difference between the alternative's value and that of the given place, as a share of
    the values' scale.
    ``slots``: by output int64 of the output's shape, which of the S places decides each element; -1: none.
    ``others``: by output [A, *the output's shape], the output where each place is its alternative of that number.
    """

    lines: "NDArray[Any]"
    places: "NDArray[Any]"
    shares: "NDArray[Any]"
    slots: "Mapping[str, NDArray[Any]]" = NOTHING
    others: "Mapping[str, NDArray[Any]]" = NOTHING

    def to_arrays(self) -> "Dict[str, NDArray[Any]]":
        """Values by their names in a golden vector."""
        arrays = {"ties." + name: getattr(self, name) for name in SPECS}
        arrays.update({"slots." + name: array for name, array in self.slots.items()})
        arrays.update({"others." + name: array for name, array in self.others.items()})
        return arrays


#: The arrays that aren't of an output, with their types and ranks.
SPECS = {"lines": ("int64", 1), "places": ("int64", 2), "shares": ("float64", 2)}


def ties_of(
    arrays: "Mapping[str, NDArray[Any]]", outputs: "Mapping[str, NDArray[Any]]"
) -> Optional[Ties]:
    """The ties among the arrays of a golden vector; None where there are none.

    Raises:
        ValueError: they don't fit each other, or the outputs.
    """
    slots = {name: arrays["slots." + name] for name in outputs if "slots." + name in arrays}
    others = {name: arrays["others." + name] for name in outputs if "others." + name in arrays}
    parts = {name: arrays["ties." + name] for name in SPECS if "ties." + name in arrays}
    if not parts and not slots and not others:
        return None
    if len(parts) < len(SPECS) or not slots or set(slots) != set(others):
        raise ValueError("ties lack some of their arrays")
    ties = Ties(parts["lines"], parts["places"], parts["shares"], slots, others)
    rows, count = len(ties.shares), len(ties.lines)
    if ties.places.shape != (rows + 1, count) or ties.shares.shape != (rows, count):
        raise ValueError("the ties' places, shares and lines have shapes that don't fit")
    for name, array in slots.items():
        if array.shape != outputs[name].shape or others[name].shape != (rows, *array.shape):
            raise ValueError("the ties of {} don't have its shape".format(name))
        if array.size and not -1 <= int(array.min()) <= int(array.max()) < count:
            raise ValueError("the ties of {} name slots that there aren't".format(name))
    return ties


def take_ties(
    got: "Mapping[str, NDArray[Any]]",
    want: "Mapping[str, NDArray[Any]]",
    ties: Ties,
    tolerance: Tolerance,
    margins: Mapping[str, float] = NOTHING,
) -> "Mapping[str, NDArray[Any]]":
    """The expected outputs with those alternatives for nearly equal values that were taken.

    An alternative counts where its value ties with the given one within the tolerance, all elements that the place
    decides agree with it, and no other place of its line is the same. Lines with a place that agrees with nothing stay as
    they were expected.

    Args:
        got: the outputs.
        want: the outputs that are expected.
        ties: the alternatives.
        tolerance: the difference that is allowed, of values and of outputs.
        margins: the difference, by output, that is allowed beyond the tolerance.
    """
    names = [name for name in ties.slots if _comparable(got[name], want[name])]
    if len(names) < len(ties.slots):
        return want
    possible = ties.places >= 0
    possible[1:] &= ties.shares <= tolerance.rtol
    for name in names:
        decided = ties.slots[name] >= 0
        slots, mine = ties.slots[name][decided], got[name][decided]
        finite = want[name][np.isfinite(want[name])]
        limit = tolerance.limit(float(np.abs(finite).max(initial=0))) + margins.get(name, 0.0)
        for number, values in enumerate([want[name], *ties.others[name]]):
            wrong = slots[~_agree(mine, values[decided], limit)]
            possible[number, wrong] = False
    order = np.argsort(ties.lines, kind="stable")
    starts = np.flatnonzero(np.diff(ties.lines[order], prepend=-1))
    taken = np.zeros(len(order), np.int64)
    for line in np.split(order, starts[1:]):
        if not possible[0, line].all():
            taken[line] = _assign(possible[:, line], ties.places[:, line])
    if not taken.any():
        return want
    result = dict(want)
    for name in names:
        slots = ties.slots[name]
        row = np.where(slots >= 0, taken[slots], 0)
        every = np.concatenate([want[name][None], ties.others[name]])
        result[name] = np.take_along_axis(every, row[None], 0)[0]
    return result


def _comparable(got: "NDArray[Any]", want: "NDArray[Any]") -> bool:
    return got.shape == want.shape and got.dtype == want.dtype


def _agree(got: "NDArray[Any]", want: "NDArray[Any]", limit: float) -> "NDArray[Any]":
    if want.dtype.kind != "f":
        return np.asarray(got == want)
    with np.errstate(invalid="ignore"):
        near = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= limit
    return np.asarray(near | (got == want) | (np.isnan(got) & np.isnan(want)))


def _assign(possible: "NDArray[Any]", places: "NDArray[Any]") -> "NDArray[Any]":
    """The number of the alternative of each slot of a line so that no place is given twice; all 0 where there is no way.

    A maximum matching of slots and places: for each slot in turn a way is sought along which slots that have a place
    already move on to others.
    """
    holders: Dict[int, int] = {}
    chosen = np.zeros(possible.shape[1], np.int64)
    for first in range(possible.shape[1]):
        came: Dict[int, int] = {}  # by place the slot that would take it
        queue: List[int] = [first]
        free = -1
        while queue and free < 0:
            slot = queue.pop(0)
            for number in np.flatnonzero(possible[:, slot]):
                place = int(places[number, slot])
                if place in came:
                    continue
                came[place] = slot
                if place not in holders:
                    free = place
                    break
                queue.append(holders[place])
        if free < 0:
            return np.zeros(possible.shape[1], np.int64)
        while free >= 0:
            slot = came[free]
            old = int(places[chosen[slot], slot]) if slot != first else -1
            held = possible[:, slot] & (places[:, slot] == free)
            chosen[slot] = int(np.flatnonzero(held)[0])
            holders[free] = slot
            free = old
    return chosen
