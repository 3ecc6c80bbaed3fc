"""The rows of caches with a sliding window: memory is kept for those alone that a later token may see.

Each row keeps its place, so programs are given the same arrays as without a window. The system takes the memory of other
rows back, which then read as zeros. A text can go on behind a number of tokens where the rows are there that the
next token sees; these numbers are its places.
"""

import math
import mmap
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    #: The first and the last of numbers that follow each other.
    Span = Tuple[int, int]

#: Tokens that a text can go back from its end, and from any other place, without a further one.
SPARE = 64
_OPEN = sys.maxsize
_LARGE = 4 << 20


class RowMemory:
    """Zeros for the rows of a cache; pages are made when they are written, and can be given back.

    Not numpy's zeros: these may lie in memory that was used before, and then all of them are written.

    Attributes:
        array: The rows.
        row_bytes: Size of one.
    """

    def __init__(self, shape: Sequence[int], dtype: str, *, slides: bool = True) -> None:
        """``slides`` says whether rows are given back; raises OSError where there is no memory."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if slides:
            self._advise(mmap.MADV_NOHUGEPAGE, 0, size)  # whose parts couldn't be given back
        elif size >= _LARGE:
            self._advise(mmap.MADV_HUGEPAGE, 0, size)  # as numpy does: they are read faster
        self.array: NDArray[Any] = np.frombuffer(self._memory, dtype).reshape(shape)
        self.row_bytes = size // shape[0]

    def give_back(self, begin: int, end: int) -> None:
        """Gives back whole pages of the rows from ``begin`` to ``end``."""
        page = mmap.PAGESIZE
        first = -(-begin * self.row_bytes // page) * page
        last = end * self.row_bytes // page * page
        if first < last:
            self._advise(mmap.MADV_DONTNEED, first, last - first)

    def _advise(self, advice: int, begin: int, size: int) -> None:
        with suppress(OSError):  # of locked memory: then it is kept
            self._memory.madvise(advice, begin, size)


class WindowRows:
    """The rows of one text in all caches that have windows.

    Attributes:
        places: Spans of places, ascending. The last one is that of the text's end, and grows with it.
    """

    def __init__(self, caches: "Sequence[Tuple[RowMemory, int]]") -> None:
        """``caches`` have the window of each beside its memory."""
        self._caches = list(caches)
        self.places: Tuple[Span, ...] = ((0, _OPEN),)
        # By window: what was given back, and wasn't written since then.
        self._given: Set[Tuple[int, Span]] = set()
        self._row_bytes: Dict[int, int] = {}  # of all caches with a window
        for memory, window in caches:
            self._row_bytes[window] = self._row_bytes.get(window, 0) + memory.row_bytes

    @property
    def due(self) -> int:
        """The number of tokens from which on it pays to give rows back."""
        return self.places[-1][0] + 2 * SPARE

    def find(self, most: int) -> int:
        """The last place up to ``most`` tokens, of as many as the text has; 0 always is one."""
        for first, last in reversed(self.places):
            if first <= most:
                return min(most, last)
        return 0

    def places_of(self, count: int) -> "Tuple[Span, ...]":
        """The places of the first ``count`` tokens; raises ValueError where these aren't one themselves."""
        if self.find(count) != count:
            raise ValueError("the rows that are seen behind {} tokens aren't kept".format(count))
        places = [(first, min(last, count)) for first, last in self.places if first <= count]
        return tuple(places) or ((0, 0),)

    def size_of(self, marks: Sequence[int]) -> int:
        """Bytes of the rows that are kept for places, which ascend, and for those just before each."""
        places = merge((max(0, mark - SPARE), mark) for mark in marks)
        return sum(
            size * sum(end - begin for begin, end in rows_of(places, window, places[-1][1]))
            for window, size in self._row_bytes.items()
            if places
        )

    def give_back(self, count: int, marks: Iterable[int]) -> None:
        """Gives back the rows that no token behind ``count`` ones sees, nor one behind a place in ``marks``.

        Places just before each of these are kept, too.
        """
        kept = [
            (max(first, mark - SPARE), mark)
            for first, last in self.places
            for mark in sorted({*marks, count})
            if first <= mark <= min(last, count)
        ]
        places, given = merge(kept), self._given
        self.start(places)
        gaps = {window: _gaps(rows_of(places, window, count)) for _, window in self._caches}
        for memory, window in self._caches:
            for gap in gaps[window]:
                if (window, gap) not in given:
                    memory.give_back(*gap)
        self._given = {(window, gap) for window, found in gaps.items() for gap in found}

    def go_back(self, count: int) -> None:
        """Forgets what is behind ``count`` tokens, which are a place."""
        self.start(self.places_of(count))
        for memory, _ in self._caches:
            memory.give_back(count, len(memory.array))

    def start_behind(self, count: int) -> None:
        """Takes ``count`` tokens, and those just before, for the places of a text; the rows are there."""
        self.start([(max(0, count - SPARE), count)])

    def start(self, places: "Sequence[Span]") -> None:
        """Takes these for the places of a text, whose end is the last one; the rows are there."""
        self.places = (*places[:-1], (places[-1][0], _OPEN))
        self._given = set()


def places_of(windows: Optional[WindowRows], count: int) -> "Sequence[Span]":
    """The places of the first ``count`` tokens of a text; without windows every number of tokens is one."""
    return [(0, count)] if windows is None else windows.places_of(count)


def merge(spans: "Iterable[Span]") -> "List[Span]":
    """Ascending spans, with those as one that overlap."""
    result: List[Span] = []
    for first, last in spans:
        if result and first <= result[-1][1]:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return result


def _gaps(rows: "Sequence[Span]") -> "List[Span]":
    """The rows in front of, and between, those that are kept."""
    ends = [0, *(end for _, end in rows)]
    return [(at, begin) for at, (begin, _) in zip(ends, rows) if at < begin]


def rows_of(places: "Sequence[Span]", window: int, count: int) -> "List[Span]":
    """The rows that a cache holds of ``count`` tokens, from the first to behind the last: what is seen from places.

    Without a window, 0, these are all rows.
    """
    if window == 0:
        return [(0, count)]
    return merge((max(0, first - window + 1), min(last, count)) for first, last in places)
