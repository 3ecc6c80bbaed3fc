"""What one run costs by the sizes of two axes: lengths and batches, or two lengths.

A surface is a grid of points, held as one :class:`~edgecompile.buckets.costs.curves.CostCurve` over the length
axis for each size of the other axis. Costs are interpolated linearly along both (bilinearly in a
cell of the grid), so that a value never lies below the least of the measured points around it.
Beside the grid the rules of a curve hold on both axes: below the first point its cost, beyond the
last the last slope if it rises, and in proportion to the size if there is one point only. So costs
are bilinear between the lines of the grid and beyond its last ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.costs.curves import (
    KINDS,
    MOST_MS,
    CostCurve,
    CostKind,
    CostPoint,
    FloatArray,
    Mode,
)
from edgecompile.errors import CostError

Slice = tuple[int, CostCurve]

_POINT_FIELDS = ("exact_ms", "pad_ms", "exact_spread_ms", "pad_spread_ms")


@dataclass(frozen=True)
class CostSurface:
    """Costs over the length axis and one other axis.

    Attributes:
        axes: names of both axes, the length axis first.
        slices: size of the other axis and the curve of costs there, ascending in the size. All
            curves have the same lengths and modes: the grid has no holes.
        kind: how the costs were found.
        provenance: where they come from, in texts by name.

    Raises:
        CostError: the fields break one of these rules.
    """

    axes: tuple[str, str]
    slices: tuple[Slice, ...]
    kind: CostKind
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if len(self.axes) != 2 or len(set(self.axes)) != 2:
            raise CostError(f"a cost surface has two axes, not {', '.join(self.axes) or 'none'}")
        problems = []
        if self.kind not in KINDS:
            problems.append(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        if not self.slices:
            raise CostError("a cost surface needs points")
        for size, _ in self.slices:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                problems.append(f"{self.axes[1]} {size!r} isn't a whole number from 1 up")
        if not problems and any(a[0] >= b[0] for a, b in pairwise(self.slices)):
            problems.append(f"the sizes of {self.axes[1]} aren't in ascending order")
        problems += self._holes()
        if problems:
            raise CostError("bad cost surface: " + "; ".join(problems[:10]))

    def _holes(self) -> list[str]:
        """What one slice has and another lacks."""
        lengths = sorted({length for _, curve in self.slices for length in curve.lengths})
        missing = [
            f"{self.axes[0]} {length} with {self.axes[1]} {size}"
            for size, curve in self.slices
            for length in sorted(set(lengths) - set(curve.lengths))
        ]
        found = []
        if missing:
            more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
            found.append(f"the grid lacks {', '.join(missing[:10])}{more}")
        modes = self.slices[0][1].modes
        for size, curve in self.slices:
            if curve.modes != modes:
                found.append(
                    f"at {self.axes[1]} {size} there are costs for {' and '.join(curve.modes)}, "
                    f"at {self.axes[1]} {self.slices[0][0]} for {' and '.join(modes)}"
                )
        return found

    @classmethod
    def from_points(
        cls,
        axes: tuple[str, str],
        points: Iterable[tuple[int, CostPoint]],
        kind: CostKind,
        provenance: Mapping[str, str] | None = None,
    ) -> CostSurface:
        """A surface from points in any order, each with its size on the other axis.

        Raises:
            CostError: a pair of sizes occurs twice or is missing, or a point is bad.
        """
        by_size: dict[int, list[CostPoint]] = {}
        problems = []
        for size, point in points:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                problems.append(f"{axes[1]} {size!r} isn't a whole number from 1 up")
                continue
            found = [f"{axes[1]} {size}: {text}" for text in point.problems()]
            problems += found
            if not found:
                by_size.setdefault(size, []).append(point)
        for size, row in sorted(by_size.items()):
            lengths = [point.length for point in row]
            problems += [
                f"{axes[0]} {length} with {axes[1]} {size} occurs more than once"
                for length in sorted({n for n in lengths if lengths.count(n) > 1})
            ]
        if problems:
            raise CostError("bad cost points: " + "; ".join(problems[:10]))
        slices = tuple(
            (size, CostCurve(tuple(sorted(row, key=lambda point: point.length)), kind))
            for size, row in sorted(by_size.items())
        )
        return cls(axes, slices, kind, provenance or {})

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that have costs."""
        return self.slices[0][1].modes

    def grid(self, axis: str) -> tuple[int, ...]:
        """The sizes of the points on one axis, ascending; between them costs change linearly.

        Raises:
            KeyError: the surface has no such axis.
        """
        if axis == self.axes[0]:
            return self.slices[0][1].lengths
        if axis == self.axes[1]:
            return tuple(size for size, _ in self.slices)
        raise KeyError(axis)

    def cost(self, lengths: npt.ArrayLike, others: npt.ArrayLike, mode: Mode) -> FloatArray:
        """Milliseconds of one run: of a dynamic program at these sizes, or a static one of them.

        Args:
            lengths: sizes on the length axis.
            others: sizes on the other axis; the two are broadcast.
            mode: ``exact`` or ``pad``.

        Returns:
            Costs, float64, of the broadcast shape.

        Raises:
            CostError: the surface has no costs in this mode.
        """
        x, y = np.broadcast_arrays(
            np.asarray(lengths, dtype=np.float64), np.asarray(others, dtype=np.float64)
        )
        at = self._other_sizes
        if len(at) == 1:
            ms = np.asarray(self.slices[0][1].cost(x, mode))
            return np.where(y > at[0], ms * (y / at[0]), ms)
        # Each slice is asked only for the pairs between it and its neighbours.
        upper = np.clip(np.searchsorted(at, y, side="left"), 1, len(at) - 1)
        below, above = np.empty(x.shape), np.empty(x.shape)
        for index, (_, curve) in enumerate(self.slices):
            for ends, where in ((below, upper - 1 == index), (above, upper == index)):
                if where.any():
                    ends[where] = curve.cost(x[where], mode)
        share = (y - at[upper - 1]) / (at[upper] - at[upper - 1])
        inside = below + np.clip(share, 0.0, 1.0) * (above - below)
        result: FloatArray = np.where(share >= 1.0, above, inside)
        if np.any(share > 1.0):
            result = result + np.maximum(share - 1.0, 0.0) * self._rise(x, mode)
        return result

    def _rise(self, lengths: FloatArray, mode: Mode) -> FloatArray:
        """By how much the cost rises from the last slice but one to the last, 0 if it falls.

        It is taken at the lengths of the points and linear between them, so that the surface
        is bilinear beyond its last slice, too: the planner relies on it.
        """
        at = np.array(self.grid(self.axes[0]), dtype=np.float64)
        before, last = (np.asarray(curve.cost(at, mode)) for _, curve in self.slices[-2:])
        rise = np.maximum(last - before, 0.0)
        if len(at) > 1:
            slope = max(0.0, float((rise[-1] - rise[-2]) / (at[-1] - at[-2])))
        else:
            slope = float(rise[-1] / at[-1])
        result: FloatArray = np.interp(lengths, at, rise) + slope * np.maximum(lengths - at[-1], 0)
        return result

    def at(self, other: int) -> CostCurve:
        """The curve over the length axis for one size of the other axis."""
        lengths = np.array(self.grid(self.axes[0]))
        costs = {
            # Beyond the last slice the rise may lead over what a point may have.
            mode: np.minimum(self.cost(lengths, other, mode), MOST_MS).tolist()
            for mode in self.modes
        }
        none = [None] * len(lengths)
        points = zip(
            lengths.tolist(), costs.get("exact", none), costs.get("pad", none), strict=True
        )
        return CostCurve(tuple(CostPoint(*point) for point in points), self.kind)

    def extrapolates(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The axes on which ``sizes`` lie beyond the last point."""
        return tuple(axis for axis in self.axes if sizes[axis] > self.grid(axis)[-1])

    @property
    def n_points(self) -> int:
        """Number of points of the grid."""
        return len(self.slices) * len(self.slices[0][1].lengths)

    def to_json(self) -> dict[str, Any]:
        """``{"kind", "axes", "points": [{"length", "batch", "exact_ms", …}], "provenance"}``.

        The sizes of a point stand under the names of the axes.
        """
        points = []
        for size, curve in self.slices:
            for point in curve.points:
                own = point.to_json()
                length = own.pop("length")
                points.append({self.axes[0]: length, self.axes[1]: size, **own})
        return {
            "kind": self.kind,
            "axes": list(self.axes),
            "points": points,
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, value: object) -> CostSurface:
        """The inverse of :meth:`to_json`; unknown keys are ignored.

        Raises:
            CostError: the value has another form or holds bad points.
        """
        if not isinstance(value, dict) or not isinstance(value.get("points"), list):
            raise CostError('a cost surface needs "kind", "axes" and a list of "points"')
        axes = value.get("axes")
        if not isinstance(axes, list) or len(axes) != 2 or not all(map(_is_name, axes)):
            raise CostError(f'"axes" of a cost surface is {axes!r}, not two names')
        if axes[0] == axes[1]:
            raise CostError(f"a cost surface has two axes, not {axes[0]} twice")
        problems = []
        points = []
        for index, item in enumerate(value["points"]):
            if not isinstance(item, dict) or any(axis not in item for axis in axes):
                problems.append(f"points[{index}] isn't an object with {' and '.join(axes)}")
                continue
            fields = {"exact_ms": None, "pad_ms": None}
            fields.update({name: item[name] for name in _POINT_FIELDS if name in item})
            points.append((item[axes[1]], CostPoint(item[axes[0]], **cast(Any, fields))))
        if problems:
            raise CostError("; ".join(problems[:10]))
        if value.get("kind") not in KINDS:
            raise CostError(f"kind {value.get('kind')!r} is none of {', '.join(KINDS)}")
        provenance = value.get("provenance", {})
        if not isinstance(provenance, dict):
            raise CostError(f"provenance is a {type(provenance).__name__}, not an object")
        texts = {str(key): str(text) for key, text in provenance.items()}
        return cls.from_points((axes[0], axes[1]), points, value["kind"], texts)

    @cached_property
    def _other_sizes(self) -> FloatArray:
        return np.array([size for size, _ in self.slices], dtype=np.float64)


def cost_model_from_json(value: object) -> CostCurve | CostSurface:
    """A curve or, if the JSON names ``axes``, a surface.

    Raises:
        CostError: the value is neither.
    """
    if isinstance(value, dict) and "axes" in value:
        return CostSurface.from_json(value)
    return CostCurve.from_json(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)
