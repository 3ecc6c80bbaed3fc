"""Buckets, and plans of buckets: what is compiled, and which length goes where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from edgecompile.costs import MODES, CostCurve, Mode
from edgecompile.errors import PlanError

OtherAxes = tuple[tuple[str, "AxisRange"], ...]


@dataclass(frozen=True)
class AxisRange:
    """Sizes from ``lo`` to ``hi``, both included, of one axis; ``hint`` is what to tune for."""

    lo: int
    hi: int
    hint: int

    def __post_init__(self) -> None:
        for name in ("lo", "hi", "hint"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise PlanError(f"{name} is {value!r}, not a whole number")
        if not 1 <= self.lo <= self.hint <= self.hi:
            raise PlanError(
                f"a range needs 1 <= lo <= hint <= hi, but lo is {self.lo}, "
                f"hint {self.hint} and hi {self.hi}"
            )

    def __contains__(self, size: int) -> bool:
        return self.lo <= size <= self.hi

    def to_json(self) -> dict[str, int]:
        """``{"lo", "hi", "hint"}``."""
        return {"lo": self.lo, "hi": self.hi, "hint": self.hint}

    @classmethod
    def from_json(cls, value: object, where: str = "range") -> AxisRange:
        """The inverse of :meth:`to_json`; without a hint, ``hi`` is tuned for.

        Raises:
            PlanError: ``value`` has another form or holds bad numbers.
        """
        if not isinstance(value, dict) or "lo" not in value or "hi" not in value:
            raise PlanError(f'{where}: needs "lo" and "hi"')
        hint = value["hint"] if "hint" in value else value["hi"]
        try:
            return cls(value["lo"], value["hi"], hint)
        except PlanError as error:
            raise PlanError(f"{where}: {error.message}") from error


@dataclass(frozen=True)
class Bucket:
    """One compiled program, and the sizes that it serves.

    Attributes:
        mode: ``exact`` runs any length of the range unpadded; ``pad`` is a static program of
            length ``hi`` to which shorter inputs are padded.
        axes: name and range of every dynamic axis. The first is the length axis that the plan
            divides; the others (batch, a second length) hold for this bucket.
    """

    mode: Mode
    axes: tuple[tuple[str, AxisRange], ...]

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlanError(f"mode {self.mode!r} is neither exact nor pad")
        names = [name for name, _ in self.axes]
        if not names:
            raise PlanError("a bucket needs a length axis")
        if len(set(names)) != len(names):
            raise PlanError(f"an axis occurs twice in {', '.join(names)}")

    @property
    def length_axis(self) -> str:
        """Name of the axis that the plan divides."""
        return self.axes[0][0]

    @property
    def lo(self) -> int:
        """Shortest length served."""
        return self.axes[0][1].lo

    @property
    def hi(self) -> int:
        """Longest length served; in ``pad`` mode the size of the program."""
        return self.axes[0][1].hi

    @property
    def hint(self) -> int:
        """The length to tune for."""
        return self.axes[0][1].hint

    @property
    def other_axes(self) -> OtherAxes:
        """The axes beside the length axis."""
        return self.axes[1:]

    def range(self, axis: str) -> AxisRange:
        """The range of one axis.

        Raises:
            KeyError: the bucket has no such axis.
        """
        return dict(self.axes)[axis]

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether the bucket serves these sizes, one for each of its axes."""
        return all(sizes[name] in axis_range for name, axis_range in self.axes)

    def run_length(self, length: int) -> int:
        """The length at which the program runs for an input of ``length``."""
        return self.hi if self.mode == "pad" else length

    def to_json(self) -> dict[str, Any]:
        """``{"lo", "hi", "hint", "mode", "axes": {name: {"lo", "hi", "hint"}}}``.

        The length axis stands at the top, the others under ``axes``.
        """
        others = {name: axis_range.to_json() for name, axis_range in self.other_axes}
        return {**self.axes[0][1].to_json(), "mode": self.mode, "axes": others}

    @classmethod
    def from_json(cls, value: object, length_axis: str, where: str = "bucket") -> Bucket:
        """The inverse of :meth:`to_json`.

        Raises:
            PlanError: ``value`` has another form or holds bad numbers.
        """
        own = AxisRange.from_json(value, where)
        fields = cast("dict[str, Any]", value)
        others = fields.get("axes", {})
        if not isinstance(others, dict):
            raise PlanError(f'{where}: "axes" is a {type(others).__name__}, not an object')
        ranges = tuple(
            (str(name), AxisRange.from_json(item, f"{where}.axes.{name}"))
            for name, item in others.items()
        )
        try:
            return cls(fields.get("mode", "exact"), ((length_axis, own), *ranges))
        except PlanError as error:
            raise PlanError(f"{where}: {error.message}") from error


@dataclass(frozen=True)
class BucketPlan:
    """Buckets that serve every length from ``min_length`` to ``max_length``.

    Attributes:
        length_axis: name of the axis that the plan divides.
        buckets: ascending in length. Buckets that agree in their other axes tile the lengths
            from the shortest to the longest without hole or overlap.
        expected_ms: mean cost of one run under the cost model and the sample, without the price
            of buckets; None for a plan made by hand.
        policy: the rule that made the plan; ``optimum`` for :func:`plan_buckets`.
        cost_model: the costs that were planned with, if any.
        price_per_bucket: what a bucket had to save, in milliseconds of the mean run.
        expected_by_count: expected_ms of the best plan of exactly 1, 2, … buckets, as far as
            these were computed.
        source: where the lengths came from.
        notes: what a person should know about the plan, in sentences.
    """

    length_axis: str
    buckets: tuple[Bucket, ...]
    expected_ms: float | None = None
    policy: str = "manual"
    cost_model: CostCurve | None = None
    price_per_bucket: float = 0.0
    expected_by_count: tuple[float, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.buckets:
            raise PlanError("a plan needs a bucket")
        problems = []
        groups: dict[OtherAxes, list[Bucket]] = {}
        names = [name for name, _ in self.buckets[0].axes]
        for index, bucket in enumerate(self.buckets):
            if [name for name, _ in bucket.axes] != names or names[0] != self.length_axis:
                axes = ", ".join(name for name, _ in bucket.axes)
                problems.append(f"bucket {index} has the axes {axes}, not {', '.join(names)}")
            # Hints don't change what is served.
            key = tuple((name, AxisRange(r.lo, r.hi, r.hi)) for name, r in bucket.other_axes)
            groups.setdefault(key, []).append(bucket)
        if names[0] != self.length_axis:
            problems.append(f"the buckets divide {names[0]}, the plan {self.length_axis}")
        for group in groups.values():
            for before, after in pairwise(group):
                if after.lo != before.hi + 1:
                    problems.append(
                        f"after the bucket {before.lo}..{before.hi} comes {after.lo}..{after.hi}, "
                        f"which doesn't start at {before.hi + 1}"
                    )
        if problems:
            raise PlanError("bad plan: " + "; ".join(problems[:10]))

    @property
    def min_length(self) -> int:
        """Shortest length served."""
        return min(bucket.lo for bucket in self.buckets)

    @property
    def max_length(self) -> int:
        """Longest length served."""
        return max(bucket.hi for bucket in self.buckets)

    def find(self, sizes: Mapping[str, int]) -> int | None:
        """Index of the first bucket that serves these sizes, None if there is none."""
        for index, bucket in enumerate(self.buckets):
            if bucket.serves(sizes):
                return index
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data; the same plan gives the same bytes."""
        return {
            "length_axis": self.length_axis,
            "policy": self.policy,
            "buckets": [bucket.to_json() for bucket in self.buckets],
            "expected_ms": self.expected_ms,
            "price_per_bucket": self.price_per_bucket,
            "expected_by_count": list(self.expected_by_count),
            "cost_model": None if self.cost_model is None else self.cost_model.to_json(),
            "source": self.source,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: object) -> BucketPlan:
        """The inverse of :meth:`to_json`; ``buckets`` alone is enough, unknown keys are ignored.

        Raises:
            PlanError: ``value`` has another form, or its buckets don't tile their range.
            CostError: its cost model is malformed.
        """
        if not isinstance(value, dict) or not isinstance(value.get("buckets"), list):
            raise PlanError('a plan needs a list of "buckets"', hint="write one: edgecompile plan")
        axis = value.get("length_axis", "length")
        expected = value.get("expected_ms")
        price = value.get("price_per_bucket", 0.0)
        by_count = value.get("expected_by_count", [])
        notes = value.get("notes", [])
        if not isinstance(axis, str):
            raise PlanError(f"length_axis is {axis!r}, not a name")
        if not (expected is None or _is_number(expected)) or not _is_number(price):
            raise PlanError("expected_ms or price_per_bucket isn't a number")
        if not isinstance(by_count, list) or not all(_is_number(item) for item in by_count):
            raise PlanError("expected_by_count isn't a list of numbers")
        if not isinstance(notes, list):
            raise PlanError("notes isn't a list")
        model = value.get("cost_model")
        return cls(
            length_axis=axis,
            buckets=tuple(
                Bucket.from_json(item, axis, f"buckets[{index}]")
                for index, item in enumerate(value["buckets"])
            ),
            expected_ms=expected,
            policy=str(value.get("policy", "manual")),
            cost_model=None if model is None else CostCurve.from_json(model),
            price_per_bucket=price,
            expected_by_count=tuple(by_count),
            source=str(value.get("source", "")),
            notes=tuple(str(note) for note in notes),
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
