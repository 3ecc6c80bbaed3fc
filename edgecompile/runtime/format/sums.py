"""Sizes and bounds that follow from axes: ``"2*length"``, ``"past+length"``, ``"length-1"``.

FORMAT.md, "Sums of axes", is normative. An axis' own name is the simplest sum.
"""

import re
from functools import lru_cache
from typing import (
    Any,
    Container,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

#: The largest factor and the largest constant; with them no sum of axes exceeds 64 bits.
MOST = 2**20
_MOST_CHARACTERS = 200
_TERM = re.compile(r"([+-]?)(?:(?:([0-9]{1,7})\*)?([A-Za-z_][A-Za-z0-9_]*)|([0-9]{1,7}))")


class AxisSum(NamedTuple):
    """A linear function of sizes of axes.

    Attributes:
        terms: Axis names in the order of their first use, each with its factor; no factor is 0.
        constant: Number that is added.
    """

    terms: Tuple[Tuple[str, int], ...]
    constant: int

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value at these sizes; raises KeyError where the size of an axis is missing."""
        return self.constant + sum([factor * sizes[axis] for axis, factor in self.terms])

    def solve(self, axis: str, value: int, sizes: Mapping[str, int]) -> Optional[int]:
        """The size of one of its axes from the value and the sizes of the others; None: no size from 0 on."""
        factor = dict(self.terms)[axis]
        rest = value - self.constant
        rest -= sum([n * sizes[other] for other, n in self.terms if other != axis])
        return rest // factor if rest % factor == 0 and rest // factor >= 0 else None

    def span(self, extents: Mapping[str, Sequence[Any]]) -> Tuple[int, int]:
        """The smallest and the largest value where axes have sizes from (lo, hi, ...)."""
        lo = {axis: extents[axis][0 if factor > 0 else 1] for axis, factor in self.terms}
        hi = {axis: extents[axis][1 if factor > 0 else 0] for axis, factor in self.terms}
        return self.at(lo), self.at(hi)

    def __str__(self) -> str:
        parts = ["{:+d}*{}".format(factor, axis) for axis, factor in self.terms]
        text = "".join(parts).replace("+1*", "+").replace("-1*", "-")
        return (text + ("{:+d}".format(self.constant) if self.constant else "")).lstrip("+")


@lru_cache(maxsize=1024)
def parse_sum(text: str) -> Optional[AxisSum]:
    """The sum that a text without spaces writes; None where it isn't a sum of at least one axis."""
    terms: Dict[str, int] = {}
    constant, at = 0, 0
    while at < len(text) <= _MOST_CHARACTERS:
        match = _TERM.match(text, at)
        if match is None or (at > 0 and not match[1]):
            return None
        sign = -1 if match[1] == "-" else 1
        if match[3] is None:
            constant += sign * int(match[4])
        else:
            terms[match[3]] = terms.get(match[3], 0) + sign * int(match[2] or 1)
        at = match.end()
    sizes = [abs(factor) for factor in terms.values()]
    if at < len(text) or not sizes or min(sizes) == 0 or max(*sizes, abs(constant)) > MOST:
        return None
    return AxisSum(tuple(terms.items()), constant)


def size_of(dim: Union[int, str, None], sizes: Mapping[str, int]) -> int:
    """The size of a dimension where axes have these sizes.

    Args:
        dim: Fixed size, name of an axis, or sum of axes; None counts as 0.
        sizes: Size of every axis by name.

    Raises:
        KeyError: an axis has no size.
    """
    if not isinstance(dim, str):
        return dim or 0
    size = sizes.get(dim)
    if size is not None:
        return size
    found = parse_sum(dim)
    if found is None:
        raise KeyError(dim)
    return found.at(sizes)


def size_span(dim: str, extents: Mapping[str, Sequence[Any]]) -> Tuple[int, int]:
    """The smallest and the largest size of an axis or a sum of axes.

    Args:
        dim: Name of the axis, or text of the sum.
        extents: Smallest and largest size by axis, as an ``Extent`` or a pair.

    Raises:
        KeyError: it is neither.
    """
    if dim in extents:
        return extents[dim][0], extents[dim][1]
    found = parse_sum(dim)
    if found is None:
        raise KeyError(dim)
    return found.span(extents)


def axes_of(dim: Union[int, str, None], axes: Container[str]) -> Tuple[str, ...]:
    """The names of the axes that a dimension follows: itself where it is one of ``axes``, else those of its sum."""
    if not isinstance(dim, str):
        return ()
    found = None if dim in axes else parse_sum(dim)
    return (dim,) if found is None else tuple([axis for axis, _ in found.terms])


def find_givers(
    dims: Iterable[Union[int, str, None]], axes: Container[str]
) -> List[Tuple[str, str]]:
    """The axes that are no dimension by themselves, each with the first sum that gives its size.

    A sum gives the size of an axis if all of its other axes are dimensions, or have a giver.

    Args:
        dims: Dimensions of all inputs.
        axes: Names of axes.

    Returns:
        (axis, sum), each behind those that it needs.
    """
    texts = list(dict.fromkeys([dim for dim in dims if isinstance(dim, str)]))
    known = {text for text in texts if text in axes}
    givers: List[Tuple[str, str]] = []
    sums = [text for text in texts if text not in known and parse_sum(text) is not None]
    while True:
        for text in sums:
            missing = [axis for axis in axes_of(text, ()) if axis not in known]
            if len(missing) == 1:
                givers.append((missing[0], text))
                known.add(missing[0])
                break
        else:
            return givers


def take_sizes(sizes: Dict[str, int], givers: Sequence[Tuple[str, str]]) -> List[str]:
    """Adds the sizes of axes that are no dimension by themselves, as far as their sums have sizes.

    Args:
        sizes: Size by axis and by sum; gets those of further axes.
        givers: Result of :func:`find_givers`.

    Returns:
        The sums that have no whole size of their axis.
    """
    bad = []
    for axis, text in givers:
        found = parse_sum(text)
        assert found is not None
        others = [other for other, _ in found.terms if other != axis]
        if text in sizes and all([other in sizes for other in others]):
            size = found.solve(axis, sizes[text], sizes)
            if size is None:
                bad.append(text)
            else:
                sizes[axis] = size
    return bad
