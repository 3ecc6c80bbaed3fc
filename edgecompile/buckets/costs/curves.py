"""What one run costs, by length and mode.

Times are milliseconds per run. A curve knows two costs of a length L:

- ``exact``: a dynamic program run at L, unpadded;
- ``pad``: a static program of size L, whatever the length of the input it is padded from.

Between points both are interpolated linearly, so a value never lies below the lower of the two
measured neighbours. Below the first point the first cost holds (an extrapolated line would go
under the measured floor). Beyond the last point the last slope goes on, if it rises; a curve of
one point grows in proportion to the length.

A static program may be slower than a larger one (48 against 64, say). :meth:`CostCurve.pad_up`
gives the pad-up envelope: the cheapest static size that still holds the length. It never falls
with the length. The planner searches over the sizes themselves and so ends buckets where the
envelope is attained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol, cast, overload

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


class CostModel(Protocol):
    """What the planner asks of a cost model of one length axis."""

    @property
    def kind(self) -> CostKind:
        """How the costs were found."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes in which the model can run at all."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths between which costs change linearly, ascending."""

    def cost(self, length: Any, mode: Mode) -> Any:
        """Milliseconds of one run; a float for an int, an array for an array."""

    def to_json(self) -> dict[str, Any]:
        """Plain data with ``kind`` and ``points`` at least."""


@dataclass(frozen=True)
class CostPoint:
    """The costs of one length.

    Attributes:
        length: size of the length axis.
        exact_ms: median milliseconds of a dynamic program at this length, None where unknown.
        pad_ms: the same of a static program of this size.
        exact_spread_ms, pad_spread_ms: distance of the quartiles of the repetitions; 0 if unknown.
    """

    length: int
    exact_ms: float | None
    pad_ms: float | None
    exact_spread_ms: float = 0.0
    pad_spread_ms: float = 0.0

    def value(self, mode: Mode) -> float | None:
        """The cost in one mode."""
        return self.exact_ms if mode == "exact" else self.pad_ms

    def problems(self) -> list[str]:
        """What is wrong with this point; empty if nothing is."""
        found = []
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            found.append(f"length {self.length!r} isn't a whole number from 1 up")
        elif self.length > MAX_LENGTH:
            found.append(f"length {self.length} is over the largest length, {MAX_LENGTH}")
        for name in ("exact_ms", "pad_ms", "exact_spread_ms", "pad_spread_ms"):
            value = getattr(self, name)
            if value is None and not name.endswith("spread_ms"):
                continue
            lowest_open = not name.endswith("spread_ms")  # a cost of 0 is an error, a spread isn't
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (0 <= value < float("inf")) or (lowest_open and value == 0):
                kind = "positive number" if lowest_open else "number from 0 up"
                found.append(f"{name} {value!r} isn't a {kind}")
            elif value > MOST_MS or (lowest_open and value < LEAST_MS):
                found.append(f"{name} isn't from {LEAST_MS:g} to {MOST_MS:g} ms")
        if self.exact_ms is None and self.pad_ms is None:
            found.append("neither exact_ms nor pad_ms is given")
        return found

    def to_json(self) -> dict[str, Any]:
        """A dict of plain numbers; None becomes null."""
        return dict(vars(self))


@dataclass(frozen=True)
class CostCurve:
    """Costs over one length axis.

    Attributes:
        points: ascending in length; every point has a cost for each mode of the curve.
        kind: measured (on this machine), calibrated (on the device), modelled (a roofline).
        provenance: where the numbers come from (machine, model, threads, date), for people and
            for checks against another model or machine.

    Raises:
        CostError: no points, bad values, lengths that repeat or aren't ascending, or a mode that
            only some of the points have.
    """

    points: tuple[CostPoint, ...]
    kind: CostKind
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in KINDS:
            problems.append(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        if not self.points:
            problems.append("there are no points")
        for point in self.points:
            problems += [f"point at length {point.length}: {text}" for text in point.problems()]
        if not problems:
            for before, after in pairwise(self.points):
                if after.length == before.length:
                    problems.append(f"length {after.length} occurs more than once")
                elif after.length < before.length:
                    problems.append(f"length {after.length} comes after {before.length}")
            for mode in MODES:
                known = [point for point in self.points if point.value(mode) is not None]
                if known and len(known) < len(self.points):
                    missing = [str(p.length) for p in self.points if p.value(mode) is None]
                    problems.append(f"{mode}_ms is missing at length {', '.join(missing[:10])}")
        if problems:
            raise CostError(
                "bad cost points: " + "; ".join(problems[:10]) + _more(problems, 10),
                hint="each point needs a length and a positive exact_ms, pad_ms or both",
            )

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that have costs; a model whose export fixes the length has only ``pad``."""
        return tuple(mode for mode in MODES if self.points[0].value(mode) is not None)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the points."""
        return tuple(point.length for point in self.points)

    @overload
    def cost(self, length: int, mode: Mode) -> float: ...

    @overload
    def cost(self, length: npt.NDArray[Any], mode: Mode) -> FloatArray: ...

    def cost(self, length: int | npt.NDArray[Any], mode: Mode) -> float | FloatArray:
        """Milliseconds of one run of a dynamic program at ``length``, or a static one of that size.

        Args:
            length: one length, or an array of any shape.
            mode: ``exact`` or ``pad``.

        Returns:
            A float for an int, a float64 array of the same shape for an array.

        Raises:
            CostError: the curve has no costs in this mode.
        """
        at, ms = self._known(mode)
        x = np.asarray(length, dtype=np.float64)
        result = np.interp(x, at, ms)
        beyond = x > at[-1]
        if np.any(beyond):
            if len(at) > 1:
                slope = max(0.0, float((ms[-1] - ms[-2]) / (at[-1] - at[-2])))
            else:
                slope = float(ms[-1] / at[-1])
            result = np.where(beyond, ms[-1] + slope * (x - at[-1]), result)
        return result if isinstance(length, np.ndarray) else float(result)

    def pad_up(self, length: int, limit: int) -> tuple[int, float]:
        """The cheapest static size from ``length`` to ``limit``, and its milliseconds.

        This is the monotone pad-up envelope; of equal sizes the smallest is given.
        """
        # A piecewise linear curve has its minimum at an end or at a point.
        sizes = [length, *(s for s in self.lengths if length < s < limit), limit]
        costs = self.cost(np.array(sizes), "pad")
        best = int(np.argmin(costs))
        return sizes[best], float(costs[best])

    def extrapolates(self, length: int) -> bool:
        """Whether ``length`` lies beyond the last point."""
        return length > self.points[-1].length

    def to_json(self) -> dict[str, Any]:
        """``{"kind", "points": [{"length", "exact_ms", "pad_ms", …}], "provenance"}``."""
        return {
            "kind": self.kind,
            "points": [point.to_json() for point in self.points],
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, value: object) -> CostCurve:
        """The inverse of :meth:`to_json`; unknown keys are ignored.

        Raises:
            CostError: the value has another form or holds bad points.
        """
        if not isinstance(value, dict) or not isinstance(value.get("points"), list):
            raise CostError('a cost curve needs "kind" and a list of "points"')
        problems = []
        points = []
        names = ("length", "exact_ms", "pad_ms", "exact_spread_ms", "pad_spread_ms")
        for index, item in enumerate(value["points"]):
            if not isinstance(item, dict) or "length" not in item:
                problems.append(f'points[{index}] isn\'t an object with a "length"')
                continue
            fields = {"exact_ms": None, "pad_ms": None}
            fields.update({name: item[name] for name in names if name in item})
            points.append(CostPoint(**cast(Any, fields)))
        if problems:
            raise CostError("; ".join(problems[:10]) + _more(problems, 10))
        provenance = value.get("provenance", {})
        if not isinstance(provenance, dict):
            raise CostError(f"provenance is a {type(provenance).__name__}, not an object")
        texts = {str(key): str(text) for key, text in provenance.items()}
        return cls(tuple(points), cast(CostKind, value.get("kind")), texts)

    def _known(self, mode: Mode) -> tuple[FloatArray, FloatArray]:
        if mode not in self.modes:
            raise CostError(
                f"the cost curve has no {mode} costs", hint=f"it has: {', '.join(self.modes)}"
            )
        return self._arrays[mode]

    @cached_property
    def _arrays(self) -> dict[Mode, tuple[FloatArray, FloatArray]]:
        at = np.array(self.lengths, dtype=np.float64)
        return {
            mode: (at, np.array([point.value(mode) for point in self.points], dtype=np.float64))
            for mode in self.modes
        }


def _more(problems: list[str], shown: int) -> str:
    return f"; and {len(problems) - shown} more" if len(problems) > shown else ""
