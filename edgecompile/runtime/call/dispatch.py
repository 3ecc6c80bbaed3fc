"""Chooses the bucket for the sizes of a run, and pads inputs.

The rule (FORMAT.md, "Choosing a bucket"): of the buckets that contain every axis' size, an exact
one before a padded one; of equals the one with the smallest product of upper ends over the axes
that any bucket pads, then the tightest in the length axis, then in the other axes, then the first.
"""

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import OutsideBucketsError
from ..format.manifest.schema import BucketSpec, Extent, Manifest
from ..format.sums import find_givers, take_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Dispatcher:
    """The buckets of a manifest in the order in which they are preferred."""

    def __init__(self, manifest: Manifest, built: Optional[Manifest] = None) -> None:
        """``built``: the bundle's manifest, where ``manifest`` pads more than its programs need."""
        self._manifest = manifest
        axis = manifest.length_axis
        self._fills = _fills(manifest)
        self._least = self._fills if built is None else _fills(built)
        # Python sorts False before True: the length axis is the first.
        self._axes = sorted(manifest.axes, key=lambda name: (name != axis, name))
        self._padded = manifest.padded_axes()
        self._order: List[Tuple[int, BucketSpec]] = sorted(
            enumerate(manifest.buckets), key=lambda item: self._preference(*item)
        )

    def _preference(self, index: int, bucket: BucketSpec) -> Tuple[int, ...]:
        elements = 1
        for axis in self._padded:
            elements *= bucket.axes[axis].hi
        ends = [end for axis in self._axes for end in _tightness(bucket.axes[axis])]
        return (int(bucket.mode != "exact"), elements, *ends, index)

    def choose(self, sizes: Mapping[str, int]) -> int:
        """The index of the bucket that serves these axis sizes.

        Raises:
            OutsideBucketsError: there is none; lists the ranges.
        """
        for index, bucket in self._order:
            if bucket.contains(sizes):
                return index
        sizes_text = ", ".join("{} {}".format(axis, size) for axis, size in sizes.items())
        lines = ["no bucket takes the sizes " + sizes_text]
        listed = self._manifest.buckets[:32]
        lines += ["bucket {}: {}".format(i, bucket) for i, bucket in enumerate(listed)]
        if len(listed) < len(self._manifest.buckets):
            lines.append("... and {} more".format(len(self._manifest.buckets) - len(listed)))
        raise OutsideBucketsError("\n  ".join(lines), self._hint(sizes))

    def check(self, index: int, sizes: Mapping[str, int]) -> None:
        """Raises OutsideBucketsError unless bucket ``index`` contains these sizes."""
        bucket = self._manifest.buckets[index]
        if not bucket.contains(sizes):
            sizes_text = ", ".join("{} {}".format(axis, size) for axis, size in sizes.items())
            text = "bucket {} ({}) doesn't take the sizes {}".format(index, bucket, sizes_text)
            raise OutsideBucketsError(text)

    def _hint(self, sizes: Mapping[str, int]) -> str:
        for axis, extent in self._manifest.axes.items():
            if sizes[axis] > extent.hi:
                text = "cut {} to at most {}, or build the bundle for larger sizes"
                return text.format(axis, extent.hi)
            if sizes[axis] < extent.lo:
                return "{} must be at least {}".format(axis, extent.lo)
        return "the sizes are in a gap between the buckets; build the bundle with these lengths"

    def fills(self, index: int) -> List[Mapping[str, int]]:
        """The sizes that bucket ``index`` fills its padded axes up to; {} if it doesn't pad.

        The first ones are preferred; behind them are those that its program can't do without.
        """
        own, least = self._fills[index], self._least[index]
        return [own] if own == least else [own, least]

    def pad(
        self,
        index: int,
        arrays: Sequence["NDArray[Any]"],
        sizes: Mapping[str, int],
        fill: Optional[Mapping[str, int]] = None,
    ) -> List["NDArray[Any]"]:
        """Inputs as the program of bucket ``index`` takes them.

        Along every padded axis they are filled up at the end with the input's pad value, to ``fill``,
        one of ``fills``; None: to the preferred sizes.
        """
        fill = self._fills[index] if fill is None else fill
        if not fill or all(sizes[axis] == size for axis, size in fill.items()):
            return list(arrays)
        result = []
        for spec, array in zip(self._manifest.inputs, arrays):
            shape = tuple(
                fill.get(dim, n) if isinstance(dim, str) else n
                for dim, n in zip(spec.shape, array.shape)
            )
            if shape == array.shape:
                result.append(array)
                continue
            # parse_manifest made sure that every such input has a pad value.
            padded = np.full(shape, spec.pad, dtype=array.dtype)
            padded[tuple(slice(n) for n in array.shape)] = array
            result.append(padded)
        return result

    def hint_sizes(self, index: int) -> Dict[str, int]:
        """The sizes that bucket ``index`` is tuned for; a padded axis runs at its upper end."""
        bucket = self._manifest.buckets[index]
        sizes = {axis: extent.hint or extent.hi for axis, extent in bucket.axes.items()}
        sizes.update(self._fills[index])
        return sizes


def axis_sizes(manifest: Manifest, shapes: Mapping[str, Sequence[int]]) -> Dict[str, int]:
    """The sizes of the axes where inputs have these shapes, by name."""
    sizes = {
        dim: size
        for spec in manifest.inputs
        if spec.name in shapes
        for dim, size in zip(spec.shape, shapes[spec.name])
        if isinstance(dim, str)
    }
    if not all([axis in sizes for axis in manifest.axes]):
        take_sizes(sizes, find_givers(sizes, manifest.axes))
    return {axis: size for axis, size in sizes.items() if axis in manifest.axes}


def _fills(manifest: Manifest) -> List[Dict[str, int]]:
    axis = manifest.length_axis
    return [{name: x.axes[name].hi for name in x.padded(axis)} for x in manifest.buckets]


def _tightness(extent: Extent) -> Tuple[int, int]:
    """Sorts extents that hold one size: the smallest upper end, then the largest lower end."""
    return extent.hi, -extent.lo
