"""Counts of sizes in bounded memory: of two axes together, and of lengths that no bucket takes."""

from typing import Any, Dict, List, Tuple

from ..format.manifest import Extent

MAX_CELLS = 4096
MAX_OUTSIDE = 4096


class JointCounts:
    """How often each pair of sizes of two axes occurred.

    Exact while at most ``MAX_CELLS`` different pairs occurred. When one more does, the axis with
    more bins gets bins twice as wide, and so on until the pairs fit again.
    """

    def __init__(self, axes: Tuple[str, str], extents: Tuple[Extent, Extent]) -> None:
        self.axes = axes
        self._extents = extents
        self._widths = [1, 1]
        # Pairs are numbered row by row; a row has as many places as the second axis has bins.
        self._row = self._bins(1)
        self._counts: Dict[int, int] = {}

    def _bins(self, axis: int) -> int:
        extent = self._extents[axis]
        return (extent.hi - extent.lo) // self._widths[axis] + 1

    def add(self, first: int, second: int, count: int) -> None:
        """Counts a pair ``count`` times; it has to lie within the extents."""
        key = (first - self._extents[0].lo) // self._widths[0] * self._row
        key += (second - self._extents[1].lo) // self._widths[1]
        self._counts[key] = self._counts.get(key, 0) + count
        while len(self._counts) > MAX_CELLS:
            self._coarsen()

    def _coarsen(self) -> None:
        axis = 0 if self._bins(0) >= self._bins(1) else 1
        row = self._row
        self._widths[axis] *= 2
        self._row = self._bins(1)
        coarse: Dict[int, int] = {}
        for key, count in self._counts.items():
            bins = list(divmod(key, row))
            bins[axis] //= 2
            place = bins[0] * self._row + bins[1]
            coarse[place] = coarse.get(place, 0) + count
        self._counts = coarse

    def snapshot(self) -> Dict[str, Any]:
        """``{"axes", "bins", "cells"}``: names, widths of bins, and ``[size, size, count]`` rows.

        A bin is named by its LARGEST size, so that a plan made from it never falls short. Bins
        begin at the axes' ``lo``, and widths are powers of two.
        """
        cells: List[List[int]] = []
        for key, count in sorted(self._counts.items()):
            ends = [
                min(extent.lo + (index + 1) * width - 1, extent.hi)
                for index, width, extent in zip(divmod(key, self._row), self._widths, self._extents)
            ]
            cells.append([*ends, count])
        return {"axes": list(self.axes), "bins": list(self._widths), "cells": cells}


class OutsideCounts:
    """Lengths of calls that no bucket takes.

    The first ``MAX_OUTSIDE`` different lengths are counted each for itself; later ones under the
    next power of two, so memory is bounded and no length seems shorter than it was.
    """

    def __init__(self) -> None:
        self._counts: Dict[int, int] = {}

    def add(self, length: int) -> None:
        """Counts one length. A length of 0 is no length that any plan could serve: left out."""
        if length < 1:
            return
        if length not in self._counts and len(self._counts) >= MAX_OUTSIDE:
            length = 1 << (length - 1).bit_length()
        self._counts[length] = self._counts.get(length, 0) + 1

    def snapshot(self) -> Dict[str, int]:
        """Counts by length (as JSON has it, a string), ascending."""
        return {str(length): count for length, count in sorted(self._counts.items())}
