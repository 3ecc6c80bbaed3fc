"""The cost of one run by its sizes and mode: a grid of points over one axis or two.

Times are milliseconds per run. A grid knows two costs of a size:

- ``exact``: a dynamic program run at that size, unpadded;
- ``pad``: a static program of that size, whatever the size of the input it is padded from.

Between points both are interpolated linearly along each axis (bilinearly in a cell of two axes), so
a value is never below the least of the measured points around it. Below the first point the first
cost holds (an extrapolated line would go under the measured floor). Beyond the last point the last
slope goes on, if it rises; a single point grows in proportion to the size. So costs are bilinear
between the lines of the grid and beyond its last ones: the planner relies on it.

A static program may be slower than a larger one (48 against 64, say). The planner searches over the
sizes themselves, and so ends buckets at the size that is cheapest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product
from typing import Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from edgecompile.errors import CostError
from edgecompile.lengths.rows import MAX_LENGTH

Mode = Literal["exact", "pad"]
CostKind = Literal["measured", "calibrated", "modelled"]
FloatArray = npt.NDArray[np.float64]

MODES: tuple[Mode, ...] = ("exact", "pad")
KINDS: tuple[CostKind, ...] = ("measured", "calibrated", "modelled")

#: Nothing that runs takes less or more; sums and slopes of such costs stay finite.
LEAST_MS, MOST_MS = 1e-9, 1e12

_SHOWN = 10


@dataclass(frozen=True)
class CostPoint:
    """The costs at one point of the grid.

    Attributes:
        length: size of the length axis.
        exact_ms: median milliseconds of a dynamic program at this size, None where unknown.
        pad_ms: the run time of a static program of this size.
        exact_spread_ms, pad_spread_ms: distance of the quartiles of the repetitions; 0 if unknown.
        other: size of the second axis; 1 where there is none.
    """

    length: int
    exact_ms: float | None
    pad_ms: float | None
    exact_spread_ms: float = 0.0
    pad_spread_ms: float = 0.0
    other: int = 1

    def value(self, mode: Mode) -> float | None:
        """The cost in one mode."""
        return self.exact_ms if mode == "exact" else self.pad_ms

    def spread(self, mode: Mode) -> float:
        """The distance of the quartiles in one mode."""
        return self.exact_spread_ms if mode == "exact" else self.pad_spread_ms

    def without(self, mode: Mode) -> CostPoint:
        """The point without the costs of one mode."""
        changes: dict[str, Any] = {f"{mode}_ms": None, f"{mode}_spread_ms": 0.0}
        return replace(self, **changes)

    def problems(self, other_axis: str = "other") -> list[str]:
        """The faults of this point; empty if it has none."""
        problems = []
        for name, size in (("length", self.length), (other_axis, self.other)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                problems.append(f"{name} {size!r} isn't a whole number from 1 up")
            elif size > MAX_LENGTH:
                problems.append(f"{name} {size} is over the largest length, {MAX_LENGTH}")
        for name in ("exact_ms", "pad_ms", "exact_spread_ms", "pad_spread_ms"):
            value = getattr(self, name)
            is_cost = not name.endswith("spread_ms")  # a cost of 0 is an error, a spread isn't
            if value is None and is_cost:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (0 <= value < float("inf")) or (is_cost and value == 0):
                kind = "positive number" if is_cost else "number from 0 up"
                problems.append(f"{name} {value!r} isn't a {kind}")
            elif value > MOST_MS or (is_cost and value < LEAST_MS):
                problems.append(f"{name} isn't from {LEAST_MS:g} to {MOST_MS:g} ms")
        if self.exact_ms is None and self.pad_ms is None:
            problems.append("neither exact_ms nor pad_ms is given")
        return problems


_POINT_FIELDS = ("exact_ms", "pad_ms", "exact_spread_ms", "pad_spread_ms")


@dataclass(frozen=True)
class CostGrid:
    """Costs over the length axis, or over it and one other axis.

    Attributes:
        points: ascending in the size of the other axis, then in length. Each length comes with
            each size of the other axis, and every point has a cost for each mode of the grid.
        kind: measured (on this machine), calibrated (on the device), modelled (a roofline).
        provenance: the origin of the numbers (machine, model, threads, date), for people and
            for checks against another model or machine.
        axes: names of the axes, the length axis first. Where there is one, its name is of no
            account.

    Raises:
        CostError: the fields break one of these rules, or hold bad values.
    """

    points: tuple[CostPoint, ...]
    kind: CostKind
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False)
    axes: tuple[str, ...] = ("length",)

    def __post_init__(self) -> None:
        problems = []
        if len(self.axes) not in (1, 2) or len(set(self.axes)) != len(self.axes):
            problems.append(f"costs are over one or two axes, not {', '.join(self.axes) or 'none'}")
        if self.kind not in KINDS:
            problems.append(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        if not self.points:
            problems.append("there are no points")
        for point in self.points:
            problems += [
                f"point at {self._where(point)}: {text}" for text in point.problems(self.axes[-1])
            ]
        problems = problems or self._gaps()
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise CostError("bad cost points: " + "; ".join(problems[:_SHOWN]) + more)

    def _gaps(self) -> list[str]:
        """Points that repeat, stand in the wrong order or are missing, and costs that are."""
        problems = []
        for before, after in pairwise(self.points):
            if _key(after) == _key(before):
                problems.append(f"{self._where(after)} occurs more than once")
            elif _key(after) < _key(before):
                problems.append(f"{self._where(after)} comes after {self._where(before)}")
        present = {_key(point) for point in self.points}
        cells = product(self.sizes(1), self.sizes(0))
        holes = [
            self._where(CostPoint(n, 1, 1, other=k)) for k, n in cells if (k, n) not in present
        ]
        if holes:
            more = f" and {len(holes) - _SHOWN} more" if len(holes) > _SHOWN else ""
            problems.append(f"the grid lacks {', '.join(holes[:_SHOWN])}{more}")
        for mode in MODES:
            lacking = [self._where(p) for p in self.points if p.value(mode) is None]
            if 0 < len(lacking) < len(self.points):
                problems.append(f"{mode}_ms is missing at {', '.join(lacking[:_SHOWN])}")
        return problems

    def _where(self, point: CostPoint) -> str:
        second = f" with {self.axes[1]} {point.other}" if len(self.axes) > 1 else ""
        return f"{self.axes[0]} {point.length}{second}"

    @classmethod
    def join(
        cls, axes: tuple[str, str], lines: Mapping[int, CostGrid], provenance: Mapping[str, str]
    ) -> CostGrid:
        """A grid over two axes from one over the length axis for each size of the other axis.

        Raises:
            CostError: the lines differ in their lengths or modes.
        """
        points = tuple(
            replace(point, other=size) for size in sorted(lines) for point in lines[size].points
        )
        return cls(points, next(iter(lines.values())).kind, provenance, axes)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that have costs; a model whose export fixes the length has only ``pad``."""
        return tuple(mode for mode in MODES if self.points[0].value(mode) is not None)

    def sizes(self, axis: int) -> tuple[int, ...]:
        """The sizes of the points on an axis, 0 or 1, ascending: between them costs are linear."""
        return self._sizes[axis]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sizes of the points on the length axis."""
        return self.sizes(0)

    def lines(self) -> dict[int, CostGrid]:
        """A grid over the length axis for each size of the other axis, ascending."""
        count = len(self.lengths)
        return {
            size: CostGrid(
                tuple(replace(p, other=1) for p in self.points[i * count : (i + 1) * count]),
                self.kind,
                self.provenance,
            )
            for i, size in enumerate(self.sizes(1))
        }

    @overload
    def cost(self, length: int, mode: Mode, other: int = 1) -> float: ...

    @overload
    def cost(
        self, length: npt.NDArray[Any], mode: Mode, other: int | npt.NDArray[Any] = 1
    ) -> FloatArray: ...

    def cost(
        self, length: int | npt.NDArray[Any], mode: Mode, other: int | npt.NDArray[Any] = 1
    ) -> float | FloatArray:
        """Milliseconds of one run: of a dynamic program at these sizes, or a static one of them.

        Args:
            length: sizes on the length axis.
            mode: ``exact`` or ``pad``.
            other: sizes on the other axis, broadcast with ``length``; without one of no account.

        Returns:
            A float for whole numbers, else a float64 array of the broadcast shape.

        Raises:
            CostError: the grid has no costs in this mode.
        """
        if mode not in self.modes:
            raise CostError(
                f"there are no {mode} costs", hint=f"there are those of: {', '.join(self.modes)}"
            )
        x, y = np.broadcast_arrays(
            np.asarray(length, dtype=np.float64), np.asarray(other, dtype=np.float64)
        )
        table = self._tables[mode]
        result = self._along(table[0], x) if len(self.axes) == 1 else self._across(table, x, y)
        return result if result.ndim else float(result)

    def at(self, sizes: npt.NDArray[np.int64], mode: Mode) -> FloatArray:
        """Milliseconds of one run at each of ``sizes``, shape [runs, axes]."""
        return self.cost(sizes[:, 0], mode, sizes[:, -1])

    def _along(self, ms: FloatArray, x: FloatArray) -> FloatArray:
        """``ms`` of the lengths of the points, shape [lengths], at the lengths ``x``."""
        at = np.array(self.lengths, dtype=np.float64)
        result = np.interp(x, at, ms)
        beyond = x > at[-1]
        if np.any(beyond):
            if len(at) > 1:
                slope = max(0.0, float((ms[-1] - ms[-2]) / (at[-1] - at[-2])))
            else:
                slope = float(ms[-1] / at[-1])
            result = np.where(beyond, ms[-1] + slope * (x - at[-1]), result)
        return np.asarray(result)

    def _across(self, table: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        """The same of a table of shape [others, lengths], at pairs of sizes."""
        at = np.array(self.sizes(1), dtype=np.float64)
        if len(at) == 1:
            ms = self._along(table[0], x)
            return np.where(y > at[0], ms * (y / at[0]), ms)
        # Each row is asked only for the pairs between it and its neighbours.
        upper = np.clip(np.searchsorted(at, y, side="left"), 1, len(at) - 1)
        below, above = np.empty(x.shape), np.empty(x.shape)
        for index, row in enumerate(table):
            for ends, where in ((below, upper - 1 == index), (above, upper == index)):
                if where.any():
                    ends[where] = self._along(row, x[where])
        share = (y - at[upper - 1]) / (at[upper] - at[upper - 1])
        inside = below + np.clip(share, 0.0, 1.0) * (above - below)
        result: FloatArray = np.where(share >= 1.0, above, inside)
        if np.any(share > 1.0):
            # Of the last rise at the lengths of the points, so that it is linear between them, too.
            rise = self._along(np.maximum(table[-1] - table[-2], 0.0), x)
            result = result + np.maximum(share - 1.0, 0.0) * rise
        return result

    def only(self, modes: Sequence[Mode]) -> CostGrid:
        """The grid without the costs of other modes; some of ``modes`` must have costs."""
        points, provenance = self.points, dict(self.provenance)
        for mode in set(self.modes) - set(modes):
            points = tuple(point.without(mode) for point in points)
            provenance.pop(f"{mode}_measured_at", None)
        return replace(self, points=points, provenance=provenance)

    def to_json(self) -> dict[str, Any]:
        """``{"kind", "axes", "points": [{"length", "batch", "exact_ms", …}], "provenance"}``.

        The sizes of a point stand under the names of the axes. ``axes`` is there if they are two.
        """
        points = []
        for point in self.points:
            sizes = zip(self.axes, (point.length, point.other), strict=False)
            points.append({**dict(sizes), **{name: getattr(point, name) for name in _POINT_FIELDS}})
        axes = {"axes": list(self.axes)} if len(self.axes) > 1 else {}
        return {"kind": self.kind, **axes, "points": points, "provenance": dict(self.provenance)}

    @classmethod
    def from_json(cls, value: object) -> CostGrid:
        """The inverse of :meth:`to_json`; unknown keys are ignored, points in any order.

        Raises:
            CostError: the value has another form or holds bad points.
        """
        if not isinstance(value, dict) or not isinstance(value.get("points"), list):
            raise CostError('costs need "kind" and a list of "points"')
        axes = value.get("axes", ["length"])
        named = isinstance(axes, list) and all(isinstance(x, str) and x for x in axes)
        if not named or ("axes" in value and len(axes) != 2):
            raise CostError(f'"axes" of costs is {axes!r}, not two names')
        problems = []
        points = []
        for index, item in enumerate(value["points"]):
            if not isinstance(item, dict) or any(axis not in item for axis in axes):
                problems.append(f"points[{index}] isn't an object with {' and '.join(axes)}")
                continue
            fields: dict[str, Any] = {"exact_ms": None, "pad_ms": None}
            fields.update({name: item[name] for name in _POINT_FIELDS if name in item})
            other = item[axes[1]] if len(axes) > 1 else 1
            points.append(CostPoint(item[axes[0]], other=other, **fields))
        if problems:
            raise CostError("; ".join(problems[:_SHOWN]))
        provenance = value.get("provenance", {})
        if not isinstance(provenance, dict):
            raise CostError(f"provenance is a {type(provenance).__name__}, not an object")
        texts = {str(key): str(text) for key, text in provenance.items()}
        return cls(sort_points(points), cast(CostKind, value.get("kind")), texts, tuple(axes))

    @cached_property
    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (
            tuple(sorted({point.length for point in self.points})),
            tuple(sorted({point.other for point in self.points})),
        )

    @cached_property
    def _tables(self) -> dict[Mode, FloatArray]:
        """The costs in each mode, shape [others, lengths]."""
        shape = (len(self.sizes(1)), len(self.lengths))
        return {
            mode: np.array([p.value(mode) for p in self.points], dtype=np.float64).reshape(shape)
            for mode in self.modes
        }


def sort_points(points: Iterable[CostPoint]) -> tuple[CostPoint, ...]:
    """The points in a grid's order; bad ones are left for the grid to name."""
    items = tuple(points)
    return items if any(p.problems() for p in items) else tuple(sorted(items, key=_key))


def _key(point: CostPoint) -> tuple[int, int]:
    return point.other, point.length
