"""A plan beside other rules, and how far its promise can be trusted, as tables and pages show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgecompile.buckets.baselines import ONE_RANGE, OPTIMUM, BaselineResult, compare_baselines
from edgecompile.buckets.confidence import (
    HeldOutCost,
    Interval,
    bootstrap_interval,
    held_out_cost,
    spread_warnings,
    tail_warnings,
)
from edgecompile.buckets.costs.grid import CostGrid, Mode
from edgecompile.buckets.figures import TextTable
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.notes import describe_saving
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.search.strips import SearchBounds
from edgecompile.buckets.traffic import Sizes, Traffic
from edgecompile.files import plain
from edgecompile.units import format_bytes, format_duration, format_ms, format_share

COST_WORDS = {
    "measured": "measured",
    "calibrated": "measured on the device",
    "modelled": "modelled, not measured",
}

# With less between two means, as a share, they count as equal.
_SAME = 1e-9
# What other rules may use where the plan itself isn't bounded.
_UNBOUNDED_PROGRAMS = 8
# With fewer inputs a fifth of them says nothing.
_LEAST_TO_HOLD_OUT = 50


@dataclass(frozen=True)
class PlanAssessment:
    """A plan, the costs of other rules, and the confidence in its promise.

    Attributes:
        plan: made with costs.
        costs: these costs.
        traffic: the whole of it, also what is larger than the plan serves.
        results: the results of the plan and of the other rules by the same costs, the plan first.
        interval: the confidence interval of the plan's mean run, over the chance in the sample.
        held_out: the cost on the rest when the plan is made from a part; None for small samples.
        warnings: the places where the sample is too thin, or measurements spread.
        cost: the cost of building and shipping a bucket, where programs were built to tell.
    """

    plan: BucketPlan
    costs: CostGrid
    traffic: Traffic
    results: Mapping[str, BaselineResult]
    interval: Interval
    held_out: HeldOutCost | None
    warnings: tuple[str, ...]
    cost: BucketCost | None = None

    @property
    def served(self) -> Traffic:
        """The traffic with larger sizes cut to the largest ones served."""
        return _served(self.plan, self.traffic)

    def to_json(self) -> dict[str, Any]:
        """The plan's own JSON, which every later stage reads, and the assessment beside it."""
        axes = self.traffic.axes
        summaries = {a: self.traffic.marginal(i).summary().to_json() for i, a in enumerate(axes)}
        return {
            **self.plan.to_json(),
            "policies": {name: self._result_json(result) for name, result in self.results.items()},
            "bucket_cost": plain(self.cost),
            "lengths": summaries[axes[0]],
            "interval": plain(self.interval),
            "held_out": plain(self.held_out),
            "warnings": list(self.warnings),
            **({"sizes": summaries} if len(axes) > 1 else {}),
        }

    def _result_json(self, result: BaselineResult) -> dict[str, Any]:
        """A rule's figures, with size and build time where it is known what buckets take."""
        value = result.to_json()
        if self.cost is not None:
            programs = result.evaluation.programs
            value["size_bytes"] = self.cost.size(programs) if self.cost.base_size else None
            value["build_s"] = self.cost.build_s(programs) if self.cost.bucket_build_s else None
        return value

    def verdict(self) -> str:
        """The verdict on the plan, in one sentence."""
        fewer = self._fewer_programs()
        return fewer[0] if fewer and len(self.plan.buckets) > 1 else describe_saving(self.plan)

    def sentences(self) -> tuple[str, ...]:
        """The plan's notes, and what there is to know beside them, for people; no warnings."""
        lines = [note for note in self.plan.notes if note not in self.warnings]
        lines += self._fewer_programs()
        points = " × ".join(str(len(self.costs.sizes(i))) for i in range(len(self.costs.axes)))
        lines.append(f"Costs are {COST_WORDS[self.costs.kind]}, at {points} points.")
        lines.append(
            f"The mean run is between {format_ms(self.interval.low)} and "
            f"{format_ms(self.interval.high)} ms in {100 * self.interval.level:.0f} % of resampled "
            "traffic."
        )
        if self.held_out is not None:
            part = round(100 * self.held_out.samples / self.traffic.n)
            lines.append(
                f"Cross-check: a plan made from {100 - part} % of the inputs costs "
                f"{format_ms(self.held_out.held_out_ms)} ms on the other {part} %, "
                f"{format_share(max(0.0, self.held_out.excess))} above that part's own optimum."
            )
        return tuple(lines)

    def _fewer_programs(self) -> list[str]:
        """That another rule's runs take less time with more programs, and why it wasn't chosen."""
        own = self.results[OPTIMUM].evaluation
        others = [item for name, item in self.results.items() if name != OPTIMUM]
        best = min(others, key=lambda item: item.evaluation.expected_ms)
        less = 1 - best.evaluation.expected_ms / own.expected_ms
        if less <= _SAME or best.evaluation.programs <= own.programs:
            return []
        noun = "program" if own.programs == 1 else "programs"
        price = self.plan.price_per_bucket
        why = f"each one must save {format_ms(price)} ms of the mean run"
        return [
            f"{own.programs} {noun} instead of {best.evaluation.programs}, which would take "
            f"{format_share(less)} less time ({baseline_label(best.name)}): "
            f"{why if price else 'more are not allowed'}."
        ]

    def baseline_caption(self) -> str:
        """The meaning of the last columns of :meth:`baseline_table`."""
        price = self.plan.price_per_bucket
        text = "Time: the change of the mean run against the chosen plan"
        if price:
            text += (
                f"; with price: the same with the {format_ms(price)} ms that each program must save"
            )
        return f"{text}."

    def baseline_table(self) -> TextTable:
        """Headings and rows of the plan and the other rules, as texts, the plan first.

        Size and build time are there where it is known what buckets take.
        """
        own, cost = self.results[OPTIMUM], self.cost
        columns: dict[str, Callable[[BaselineResult], str]] = {
            "rule": lambda item: baseline_label(item.name),
            "mean ms": lambda item: format_ms(item.evaluation.expected_ms),
            "p99 ms": lambda item: format_ms(item.evaluation.p99_ms),
            "padding": lambda item: format_share(item.evaluation.padding_waste),
            "programs": lambda item: f"{item.evaluation.programs}",
        }
        if cost is not None and cost.base_size:
            columns["size"] = lambda item: format_bytes(cost.size(item.evaluation.programs))
            columns["predicted build"] = lambda item: format_duration(
                cost.build_s(item.evaluation.programs)
            )
        columns["time"] = lambda item: _excess_text(
            item is own, item.evaluation.expected_ms / own.evaluation.expected_ms - 1
        )
        if self.plan.price_per_bucket:
            columns["with price"] = lambda item: _excess_text(item is own, item.regret)
        rows = [tuple(cell(item) for cell in columns.values()) for item in self.results.values()]
        return tuple(columns), tuple(rows)


def assess_plan(
    plan: BucketPlan,
    sizes: Sizes,
    *,
    programs: int | None = None,
    modes: tuple[Mode, ...] | None = None,
    seed: int = 0,
    cost: BucketCost | None = None,
) -> PlanAssessment:
    """Compares a plan with other rules and with itself on inputs that it wasn't made from.

    Args:
        plan: the plan of :func:`edgecompile.buckets.planner.plan_buckets`.
        sizes: the traffic that it was made from, over the axes of its costs; of two axes the
            lengths alone count where its costs are over one.
        programs: the number of programs that the other rules may use; None: as many as the plan
            could have.
        modes: the modes that the plan could choose from; None: all that have costs.
        seed: the seed of splitting and resampling.
        cost: the cost of a bucket, if known.

    Raises:
        ValueError: the plan has no costs, or they are over other axes.
        PlanError: the traffic has sizes that are smaller than the plan serves.
    """
    costs = plan.cost_model
    if costs is None:
        raise ValueError("a plan without costs can't be judged")
    traffic = Traffic.of(sizes, plan.length_axis)
    if len(plan.divided) < len(traffic.axes):
        traffic = Traffic.of(traffic.lengths, plan.length_axis)
    if plan.divided != traffic.axes:
        raise ValueError(f"the plan is over {plan.divided}, the traffic over {traffic.axes}")
    served = _served(plan, traffic)
    held_out = None
    if traffic.n >= _LEAST_TO_HOLD_OUT:
        bounds = SearchBounds()
        held_out = held_out_cost(
            served,
            costs,
            seed=seed,
            max_buckets=len(plan.buckets),
            price_per_bucket=plan.price_per_bucket,
            min_sizes={axis: plan.extent(axis)[0] for axis in traffic.axes},
            max_sizes={axis: plan.extent(axis)[1] for axis in traffic.axes},
            modes=modes or costs.modes,
            bounds=SearchBounds(bounds.steps // 3, bounds.ends),  # two plans are made
            cuts=plan.cuts,
        )
    varies = len(traffic.axes) > 1 or plan.min_length < plan.max_length
    return PlanAssessment(
        plan=plan,
        costs=costs,
        traffic=traffic,
        results=compare_baselines(
            plan, traffic, costs, programs=programs or allowed_programs(plan)
        ),
        interval=bootstrap_interval(plan.buckets, served, costs, seed=seed),
        held_out=held_out,
        # Where one size is served, no other was to be seen.
        warnings=(*spread_warnings(costs), *(tail_warnings(traffic.lengths) if varies else ())),
        cost=cost,
    )


def allowed_programs(plan: BucketPlan) -> int:
    """The number of programs that a plan could have had itself.

    A plan that was bounded knows the costs of one bucket more than it was allowed.
    """
    allowed = len(plan.expected_by_count) - 1
    return max(len(plan.buckets), allowed if allowed > 0 else _UNBOUNDED_PROGRAMS)


def _served(plan: BucketPlan, traffic: Traffic) -> Traffic:
    return traffic.clip([plan.extent(axis)[1] for axis in traffic.axes])


def baseline_label(name: str) -> str:
    """A rule as people read it."""
    return {OPTIMUM: "chosen", ONE_RANGE: "one dynamic range"}.get(name, name.replace("_", " "))


def _excess_text(is_own: bool, share: float) -> str:
    """``+12.3 %``; from 100 % on the digit after the point says nothing."""
    if is_own:
        return "–"
    return f"{100 * share:+.0f} %" if abs(share) >= 1 else f"{100 * share:+.1f} %"
