"""Plans of buckets: the sizes that are compiled together, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.tiling import tiling_problems
from edgecompile.errors import PlanError


@dataclass(frozen=True)
class BucketPlan:
    """Buckets that serve every length from ``min_length`` to ``max_length``.

    Attributes:
        length_axis: name of the axis that the plan divides.
        buckets: they tile the sizes from the smallest to the largest on every axis without hole
            or overlap. Where they divide the length axis alone they are ascending in length.
        expected_ms: mean cost of one run under the cost model and the sample, without the price
            of buckets; None for a plan made by hand.
        policy: the rule that made the plan; ``optimum`` for
            :func:`edgecompile.buckets.planner.plan_buckets`.
        cost_model: the costs that were planned with, if any; over two axes where the buckets
            divide two.
        price_per_bucket: the saving that a bucket had to make, in milliseconds of the mean run.
        expected_by_count: expected_ms of the best plan of exactly 1, 2, … buckets, as far as
            these were computed.
        lower_bound_ms: the mean run that no other buckets can beat, as many as were allowed,
            overlapping or not: expected_ms and the price of the buckets are at least this. None if
            unknown.
        made_for: the model's structure, the target and the precision that it was made for; empty if
            nobody said.
        source: the origin of the lengths.
        notes: remarks on the plan for the user, in sentences.
        cuts: sizes of the length axis at which a bucket has to begin, as the model's code takes another
            way from there on.
        padding: ``proven`` or ``assumed``: why the device may pad; empty where it doesn't, or where
            nobody asked.
    """

    length_axis: str
    buckets: tuple[Bucket, ...]
    expected_ms: float | None = None
    policy: str = "manual"
    cost_model: CostGrid | None = None
    price_per_bucket: float = 0.0
    expected_by_count: tuple[float, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    lower_bound_ms: float | None = None
    made_for: Mapping[str, str] = field(default_factory=dict)
    padding: str = ""
    cuts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.buckets:
            raise PlanError("a plan needs a bucket")
        names = [name for name, _ in self.buckets[0].axes]
        problems = [
            f"bucket {index} has the axes {', '.join(own)}, not {', '.join(names)}"
            for index, bucket in enumerate(self.buckets)
            if (own := [name for name, _ in bucket.axes]) != names
        ]
        if names[0] != self.length_axis:
            problems.append(f"the buckets divide {names[0]}, the plan {self.length_axis}")
        problems += [
            f"the bucket {bucket.lo}..{bucket.hi} crosses {cut}, where one has to begin"
            for bucket in self.buckets
            for cut in self.cuts
            if bucket.lo < cut <= bucket.hi
        ]
        problems = problems or tiling_problems(self.buckets)
        if problems:
            raise PlanError("bad plan: " + "; ".join(problems[:10]))

    def extent(self, axis: str) -> tuple[int, int]:
        """Smallest and largest size served on an axis.

        Raises:
            KeyError: the buckets have no such axis.
        """
        ranges = [bucket.range(axis) for bucket in self.buckets]
        return min(own.lo for own in ranges), max(own.hi for own in ranges)

    @property
    def min_length(self) -> int:
        """Shortest length served."""
        return self.extent(self.length_axis)[0]

    @property
    def max_length(self) -> int:
        """Longest length served."""
        return self.extent(self.length_axis)[1]

    @property
    def divided(self) -> tuple[str, ...]:
        """The axes that it was planned over, the length axis first: those of its costs."""
        axes = () if self.cost_model is None else self.cost_model.axes
        return (self.length_axis, *axes[1:])

    def to_json(self) -> dict[str, Any]:
        """Plain data; the same plan gives the same bytes. Left out is what is unknown."""
        value: dict[str, Any] = {
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
        if self.lower_bound_ms is not None:
            value["lower_bound_ms"] = self.lower_bound_ms
        if self.made_for:
            value["made_for"] = dict(self.made_for)
        if self.padding:
            value["padding"] = self.padding
        if self.cuts:
            value["cuts"] = list(self.cuts)
        return value

    @classmethod
    def from_json(cls, value: object) -> BucketPlan:
        """The inverse of :meth:`to_json`; ``buckets`` alone is enough, unknown keys are ignored.

        Raises:
            PlanError: ``value`` has another form, or its buckets don't tile their range.
            CostError: its cost model is malformed.
        """
        if not isinstance(value, dict) or not isinstance(value.get("buckets"), list):
            raise PlanError('a plan needs a list of "buckets"', hint="write one: edgecompile plan")
        entries = {name: value[name] for name in _FIELDS if name in value}
        for name, item in entries.items():
            is_right, kind = _FIELDS[name]
            if not is_right(item):
                raise PlanError(f"{name} is {item!r}, not {kind}")
        if runtime := (made_for := dict(entries.get("made_for", {}))).pop("runtime", None):
            # The name and the values of the backend in plans of earlier versions.
            made_for["backend"] = {"native": "cpu"}.get(runtime, runtime)
        entries["made_for"] = made_for
        axis, model = entries.get("length_axis", "length"), value.get("cost_model")
        for name in ("expected_by_count", "notes", "cuts"):
            entries[name] = tuple(entries.get(name, ()))
        return cls(
            **{
                **entries,
                "length_axis": axis,
                "buckets": tuple(
                    Bucket.from_json(item, axis, f"buckets[{index}]")
                    for index, item in enumerate(value["buckets"])
                ),
                "cost_model": None if model is None else CostGrid.from_json(model),
            }
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number_or_none(value: object) -> bool:
    return value is None or _is_number(value)


# Fields of a plan's JSON beside its buckets and costs: the check, and the kind of value for people.
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "length_axis": (_is_text, "a name"),
    "policy": (_is_text, "a text"),
    "source": (_is_text, "a text"),
    "expected_ms": (_is_number_or_none, "a number"),
    "lower_bound_ms": (_is_number_or_none, "a number"),
    "price_per_bucket": (_is_number, "a number"),
    "expected_by_count": (
        lambda value: isinstance(value, list) and all(map(_is_number, value)),
        "a list of numbers",
    ),
    "notes": (
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
        "a list of texts",
    ),
    "cuts": (
        lambda value: isinstance(value, list) and all(type(item) is int for item in value),
        "a list of whole numbers",
    ),
    "made_for": (
        lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
        "an object of texts",
    ),
    "padding": (lambda value: value in ("", "proven", "assumed"), "proven or assumed"),
}
