"""Plans of buckets: which lengths are compiled together, and how; and the best plan there is.

:func:`plan_buckets` is exact: no other choice of boundaries and modes has a lower expected cost
under its cost model. :mod:`edgecompile.buckets.segments` has the recurrence and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgecompile.buckets.costs.sources import MODES, CostCurve, Mode
from edgecompile.buckets.costs.surfaces import CostSurface, cost_model_from_json
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.limits import BucketLimits
from edgecompile.buckets.notes import plan_notes
from edgecompile.buckets.positions import TIE, find_positions, make_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket, OtherAxes
from edgecompile.buckets.segments import best_priced_segmentation, best_segmentations
from edgecompile.buckets.tiling import tiling_problems
from edgecompile.errors import PlanError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.rows import MAX_LENGTH

__all__ = ["AxisRange", "Bucket", "BucketLimits", "BucketPlan", "plan_buckets"]


@dataclass(frozen=True)
class BucketPlan:
    """Buckets that serve every length from ``min_length`` to ``max_length``.

    Attributes:
        length_axis: name of the axis that the plan divides.
        buckets: they tile the sizes from the smallest to the largest on every axis without hole
            or overlap. Where they divide the length axis alone they are ascending in length.
        expected_ms: mean cost of one run under the cost model and the sample, without the price
            of buckets; None for a plan made by hand.
        policy: the rule that made the plan; ``optimum`` for :func:`plan_buckets`.
        cost_model: the costs that were planned with, if any: a curve, or a surface where the
            buckets divide two axes.
        price_per_bucket: what a bucket had to save, in milliseconds of the mean run.
        expected_by_count: expected_ms of the best plan of exactly 1, 2, … buckets, as far as
            these were computed.
        lower_bound_ms: what no other buckets can beat, as many as were allowed, overlapping or
            not: expected_ms and the price of the buckets are at least this. None if unknown.
        made_for: the model's structure, the target and the precision that it was made for; empty if
            nobody said.
        source: where the lengths came from.
        notes: what a person should know about the plan, in sentences.
        padding: ``proven`` or ``assumed``: why the device may pad; empty where it doesn't, or where
            nobody asked.
    """

    length_axis: str
    buckets: tuple[Bucket, ...]
    expected_ms: float | None = None
    policy: str = "manual"
    cost_model: CostCurve | CostSurface | None = None
    price_per_bucket: float = 0.0
    expected_by_count: tuple[float, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    lower_bound_ms: float | None = None
    made_for: Mapping[str, str] = field(default_factory=dict)
    padding: str = ""

    def __post_init__(self) -> None:
        if not self.buckets:
            raise PlanError("a plan needs a bucket")
        problems = []
        names = [name for name, _ in self.buckets[0].axes]
        for index, bucket in enumerate(self.buckets):
            if [name for name, _ in bucket.axes] != names or names[0] != self.length_axis:
                axes = ", ".join(name for name, _ in bucket.axes)
                problems.append(f"bucket {index} has the axes {axes}, not {', '.join(names)}")
        if names[0] != self.length_axis:
            problems.append(f"the buckets divide {names[0]}, the plan {self.length_axis}")
        problems = problems or tiling_problems(self.buckets)
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

    @property
    def curve(self) -> CostCurve | None:
        """The cost model if the length alone decides, None if there is none or a surface."""
        return self.cost_model if isinstance(self.cost_model, CostCurve) else None

    @property
    def surface(self) -> CostSurface | None:
        """The cost model if two axes decide, None if there is none or a curve."""
        return self.cost_model if isinstance(self.cost_model, CostSurface) else None

    @property
    def divides(self) -> tuple[str, ...]:
        """The axes that tell its buckets apart, and the length axis; other axes are the same."""
        first = self.buckets[0]
        return tuple(
            name
            for name, own in first.axes
            if name == self.length_axis
            or any((b.range(name).lo, b.range(name).hi) != (own.lo, own.hi) for b in self.buckets)
        )

    def find(self, sizes: Mapping[str, int]) -> int | None:
        """Index of the first bucket that serves these sizes, None if there is none."""
        for index, bucket in enumerate(self.buckets):
            if bucket.serves(sizes):
                return index
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data; the same plan gives the same bytes. Left out is what is unknown."""
        value = {
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
        axis = value.get("length_axis", "length")
        expected = value.get("expected_ms")
        price = value.get("price_per_bucket", 0.0)
        by_count = value.get("expected_by_count", [])
        notes = value.get("notes", [])
        bound = value.get("lower_bound_ms")
        made_for = value.get("made_for", {})
        if not isinstance(axis, str):
            raise PlanError(f"length_axis is {axis!r}, not a name")
        if not (expected is None or _is_number(expected)) or not _is_number(price):
            raise PlanError("expected_ms or price_per_bucket isn't a number")
        if not (bound is None or _is_number(bound)):
            raise PlanError("lower_bound_ms isn't a number")
        if not isinstance(by_count, list) or not all(_is_number(item) for item in by_count):
            raise PlanError("expected_by_count isn't a list of numbers")
        if not isinstance(notes, list):
            raise PlanError("notes isn't a list")
        if not isinstance(made_for, dict):
            raise PlanError("made_for isn't an object")
        padding = value.get("padding", "")
        if padding not in ("", "proven", "assumed"):
            raise PlanError(f"padding is {padding!r}, neither proven nor assumed")
        model = value.get("cost_model")
        return cls(
            length_axis=axis,
            buckets=tuple(
                Bucket.from_json(item, axis, f"buckets[{index}]")
                for index, item in enumerate(value["buckets"])
            ),
            expected_ms=expected,
            policy=str(value.get("policy", "manual")),
            cost_model=None if model is None else cost_model_from_json(model),
            price_per_bucket=price,
            expected_by_count=tuple(by_count),
            source=str(value.get("source", "")),
            notes=tuple(str(note) for note in notes),
            lower_bound_ms=bound,
            made_for={str(key): str(text) for key, text in made_for.items()},
            padding=padding,
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plan_buckets(
    distribution: LengthDistribution,
    cost_model: CostCurve,
    *,
    max_buckets: int | None = 8,
    buckets: int | None = None,
    price_per_bucket: float = 0.0,
    min_length: int = 1,
    max_length: int | None = None,
    modes: tuple[Mode, ...] = MODES,
    limits: BucketLimits | None = None,
    length_axis: str = "length",
    other_axes: OtherAxes = (),
) -> BucketPlan:
    """The buckets of least expected cost that serve every length from min to max.

    The cost of a plan is the mean cost of one run over the sample plus ``price_per_bucket`` for
    each bucket. In ``exact`` mode a sample costs what its own length costs, in ``pad`` mode what
    the bucket's upper end costs. Boundaries may lie at any whole number, also where no sample
    is: a static program ends at the cheapest size before the next observed length. Every bucket
    serves samples, but for the last if ``max_length`` lies beyond the sample. Of plans that cost
    the same the one of fewest buckets is given. The same input gives the same plan.

    Hints are explained at :func:`edgecompile.buckets.positions.make_buckets`.

    Args:
        distribution: the sample; lengths over ``max_length`` count as ``max_length``.
        cost_model: milliseconds by length and mode.
        max_buckets: the most buckets allowed; None leaves it to the price and the limits.
        buckets: exactly how many buckets to make, instead of the best number up to max_buckets.
        price_per_bucket: milliseconds of the mean run that a bucket has to save.
        min_length: the shortest length to serve.
        max_length: the longest length to serve; None means the longest of the sample.
        modes: the modes allowed; without ``exact`` every bucket is padded.
        limits: bounds on size and build time.
        length_axis: name of the axis that is divided.
        other_axes: further axes, the same in every bucket.

    Raises:
        PlanError: the arguments or constraints can't be met; says which, and by how much.
        CostError: the cost model has no costs in any of ``modes``.
    """
    if max_length is None:
        max_length = distribution.max
    usable = tuple(mode for mode in MODES if mode in modes and mode in cost_model.modes)
    _check_arguments(distribution, usable, modes, min_length, max_length, price_per_bucket)
    most = (limits or BucketLimits()).most(max_buckets if buckets is None else None, buckets)
    if buckets is not None:
        most = buckets
    if most is None and price_per_bucket == 0:
        raise PlanError(
            "without a limit and with free buckets every length would get its own",
            hint="give --max-buckets or a price per bucket",
        )
    served, _ = distribution.clip(max_length)
    positions = find_positions(served, cost_model, usable, max_length)
    if buckets is not None and buckets > len(positions.lengths):
        raise PlanError(
            f"{buckets} buckets are wanted, but the sample has only {len(positions.lengths)} "
            "lengths at which a bucket can end",
            hint=f"ask for {len(positions.lengths)} buckets at most",
        )
    problem = (positions.weights, positions.exact, positions.padded)
    if most is None:
        by_count: tuple[float, ...] = ()
        segments = best_priced_segmentation(*problem, price_per_bucket).segments
    else:
        # One count more than allowed, so that the notes can say what the next bucket would save.
        best = best_segmentations(*problem, most + 1)
        by_count = tuple(found.cost for found in best)
        totals = [found.cost + price_per_bucket * k for k, found in enumerate(best[:most], 1)]
        count = buckets or next(
            k for k, total in enumerate(totals, 1) if total <= min(totals) * (1 + TIE)
        )
        segments = best[count - 1].segments
    chosen = make_buckets(segments, positions, min_length, length_axis, other_axes)
    expected_ms = expected_cost(chosen, served, cost_model)
    notes = plan_notes(
        chosen,
        sample=distribution,
        curve=cost_model,
        modes=usable,
        expected_by_count=by_count,
        expected_ms=expected_ms,
        price=price_per_bucket,
        most=most,
        forced=buckets is not None,
    )
    return BucketPlan(
        length_axis=length_axis,
        buckets=chosen,
        expected_ms=expected_ms,
        policy="optimum",
        cost_model=cost_model,
        price_per_bucket=price_per_bucket,
        expected_by_count=by_count,
        source=distribution.source,
        notes=notes,
    )


def _check_arguments(
    distribution: LengthDistribution,
    usable: tuple[Mode, ...],
    modes: tuple[Mode, ...],
    min_length: int,
    max_length: int,
    price: float,
) -> None:
    problems = []
    if not usable:
        problems.append(f"there are no costs for the mode {' or '.join(modes) or '(none allowed)'}")
    if not 1 <= min_length <= max_length <= MAX_LENGTH:
        problems.append(
            f"the range {min_length}..{max_length} isn't one of lengths from 1 to {MAX_LENGTH}"
        )
    elif distribution.min < min_length:
        below = distribution.n - round(distribution.share_over(min_length - 1) * distribution.n)
        problems.append(
            f"{below} of {distribution.n} samples are shorter than the shortest length served, "
            f"{min_length}; the shortest has {distribution.min}"
        )
    if not 0 <= price < float("inf"):
        problems.append(f"the price per bucket is {price}, not 0 or more")
    if problems:
        raise PlanError("can't plan: " + "; ".join(problems))
