"""What a plan means for a sample of traffic, in the figures that tables and pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgecompile.buckets.costs.curves import Mode
from edgecompile.buckets.evidence import (
    HeldOutCost,
    Interval,
    bootstrap_interval,
    held_out_cost,
    spread_warnings,
    tail_warnings,
)
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.plan import Bucket, BucketPlan
from edgecompile.buckets.policies import ONE_RANGE, OPTIMUM, PolicyResult, compare_policies
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.units import format_bytes, format_duration, format_ms, format_share

__all__ = [
    "BUCKET_COLUMNS",
    "BucketFigures",
    "PlanFigures",
    "PlanJudgement",
    "bucket_rows",
    "SAME",
    "excess_text",
    "judge_plan",
    "plan_figures",
    "policy_caption",
    "policy_columns",
    "policy_label",
    "policy_rows",
    "rival_programs",
]

#: What rivals may use where the plan itself isn't bounded.
UNBOUNDED_RIVALS = 8

#: With less between two means, as a share, they count as equal.
SAME = 1e-9
# With fewer inputs a fifth of them says nothing.
LEAST_TO_HOLD_OUT = 50
COST_WORDS = {
    "measured": "measured",
    "calibrated": "measured on the device",
    "modelled": "modelled, not measured",
}


@dataclass(frozen=True)
class BucketFigures:
    """One bucket and the part of the sample that it serves.

    Attributes:
        bucket: the bucket.
        share: of the samples, 0 to 1.
        padding_waste: of what the bucket computes, the share that is padding; 0 if it serves
            none of the samples.
        expected_ms: mean of its runs under the plan's cost model; None without a cost model or
            without samples.
    """

    bucket: Bucket
    share: float
    padding_waste: float
    expected_ms: float | None

    def to_json(self) -> dict[str, Any]:
        """The bucket's own JSON and these figures beside it."""
        return {
            **self.bucket.to_json(),
            "share": self.share,
            "padding_waste": self.padding_waste,
            "expected_ms": self.expected_ms,
        }


@dataclass(frozen=True)
class PlanFigures:
    """A plan against a sample.

    Attributes:
        buckets: in the plan's order.
        covered: share of the samples that some bucket serves.
        padding_waste: of all that is computed, the share that is padding.
        expected_ms: mean run of the covered samples; None without a cost model.
    """

    buckets: tuple[BucketFigures, ...]
    covered: float
    padding_waste: float
    expected_ms: float | None


def plan_figures(plan: BucketPlan, distribution: LengthDistribution) -> PlanFigures:
    """Sends every sample to the first bucket whose lengths hold it, and adds up.

    Only the length axis is looked at: a sample says nothing about the others.
    """
    samples = [0] * len(plan.buckets)
    useful = [0] * len(plan.buckets)
    run = [0] * len(plan.buckets)
    ms = [0.0] * len(plan.buckets)
    for length, count in zip(distribution.lengths, distribution.counts, strict=True):
        for i, bucket in enumerate(plan.buckets):
            if bucket.lo <= length <= bucket.hi:
                size = bucket.run_length(length)
                samples[i] += count
                useful[i] += count * length
                run[i] += count * size
                if plan.curve is not None:
                    ms[i] += count * plan.curve.cost(size, bucket.mode)
                break
    figures = tuple(
        BucketFigures(
            bucket=bucket,
            share=samples[i] / distribution.n,
            padding_waste=1.0 - useful[i] / run[i] if run[i] else 0.0,
            expected_ms=ms[i] / samples[i] if samples[i] and plan.curve is not None else None,
        )
        for i, bucket in enumerate(plan.buckets)
    )
    served = sum(samples)
    return PlanFigures(
        buckets=figures,
        covered=served / distribution.n,
        padding_waste=1.0 - sum(useful) / sum(run) if served else 0.0,
        expected_ms=sum(ms) / served if served and plan.curve is not None else None,
    )


@dataclass(frozen=True)
class PlanJudgement:
    """A plan, what other rules would have cost, and how far its promise can be trusted.

    Attributes:
        plan: made with a cost model.
        traffic: the whole sample, also what is longer than the plan serves.
        policies: the plan and its rivals by the same costs, the plan first.
        interval: of the plan's mean run, over the chance in the sample.
        held_out: what planning from a part costs on the rest; None for small samples.
        warnings: where the sample is too thin, or measurements spread.
        cost: what buckets take to build and ship, where programs were built to tell.
    """

    plan: BucketPlan
    traffic: LengthDistribution
    policies: Mapping[str, PolicyResult]
    interval: Interval
    held_out: HeldOutCost | None
    warnings: tuple[str, ...]
    cost: BucketCost | None = None

    @property
    def served(self) -> LengthDistribution:
        """The sample with longer inputs cut to the longest length served."""
        return self.traffic.clip(self.plan.max_length)[0]

    def to_json(self) -> dict[str, Any]:
        """The plan's own JSON, which every later stage reads, and the judgement beside it."""
        return {
            **self.plan.to_json(),
            "policies": {name: self._policy_json(result) for name, result in self.policies.items()},
            "bucket_cost": None if self.cost is None else self.cost.to_json(),
            "lengths": self.traffic.summary().to_json(),
            "interval": self.interval.to_json(),
            "held_out": None if self.held_out is None else self.held_out.to_json(),
            "warnings": list(self.warnings),
        }

    def _policy_json(self, result: PolicyResult) -> dict[str, Any]:
        """A policy's figures, with size and build time where it is known what buckets take."""
        value = result.to_json()
        if self.cost is not None:
            programs = result.evaluation.programs
            value["size_bytes"] = self.cost.size(programs) if self.cost.base_size else None
            value["build_s"] = self.cost.build_s(programs) if self.cost.bucket_build_s else None
        return value

    def sentences(self) -> tuple[str, ...]:
        """The plan's notes, and what there is to know beside them, for people; no warnings."""
        curve = self.plan.curve
        lines = [note for note in self.plan.notes if note not in self.warnings]
        fewer = self.fewer_programs()
        if fewer:
            lines.append(f"{fewer}.")
        if curve is not None:
            lines.append(f"Costs are {COST_WORDS[curve.kind]}, at {len(curve.points)} lengths.")
        lines.append(
            f"The mean run lies between {format_ms(self.interval.low)} and "
            f"{format_ms(self.interval.high)} ms in {100 * self.interval.level:.0f} % of resampled "
            "traffic."
        )
        if self.held_out is not None:
            lines.append(self.held_out.sentence(self.traffic.n))
        return tuple(lines)

    def best_rival(self) -> PolicyResult | None:
        """The rule with the least mean run beside the plan; None: there is none."""
        rivals = [item for name, item in self.policies.items() if name != OPTIMUM]
        return min(rivals, key=lambda item: item.evaluation.expected_ms, default=None)

    def fewer_programs(self) -> str:
        """That another rule's runs take less time with more programs, and why it wasn't chosen; "" if
        none do."""
        own, rival = self.policies[OPTIMUM].evaluation, self.best_rival()
        if rival is None:
            return ""
        less = 1 - rival.evaluation.expected_ms / own.expected_ms
        if less <= SAME or rival.evaluation.programs <= own.programs:
            return ""
        noun = "program" if own.programs == 1 else "programs"
        price = self.plan.price_per_bucket
        why = (
            f"each one must save {format_ms(price)} ms of the mean run"
            if price
            else "more aren't allowed"
        )
        return (
            f"{own.programs} {noun} instead of {rival.evaluation.programs}, which would take "
            f"{format_share(less)} less time ({policy_label(rival.name)}): {why}"
        )


def judge_plan(
    plan: BucketPlan,
    traffic: LengthDistribution,
    *,
    programs: int,
    modes: tuple[Mode, ...] | None = None,
    seed: int = 0,
    cost: BucketCost | None = None,
) -> PlanJudgement:
    """Compares a plan with its rivals and with itself on inputs that it wasn't made from.

    Args:
        plan: of :func:`edgecompile.buckets.plan.plan_buckets`.
        traffic: the sample that it was made from.
        programs: how many programs rivals may use.
        modes: the modes that the plan could choose from; None: all that have costs.
        seed: of splitting and resampling.
        cost: what buckets take, if that is known.

    Raises:
        ValueError: the plan has no cost model.
        PlanError: the sample has lengths that are shorter than the plan serves.
    """
    curve = plan.curve
    if curve is None:
        raise ValueError("a plan without a cost model can't be judged")
    served, _ = traffic.clip(plan.max_length)
    held_out = None
    if traffic.n >= LEAST_TO_HOLD_OUT:
        held_out = held_out_cost(
            served,
            curve,
            seed=seed,
            max_buckets=len(plan.buckets),
            price_per_bucket=plan.price_per_bucket,
            min_length=plan.min_length,
            max_length=plan.max_length,
            modes=modes or curve.modes,
            length_axis=plan.length_axis,
        )
    return PlanJudgement(
        plan=plan,
        traffic=traffic,
        policies=compare_policies(plan, traffic, curve, programs=programs),
        interval=bootstrap_interval(plan.buckets, served, curve, seed=seed),
        held_out=held_out,
        warnings=(
            *spread_warnings(curve),
            # Where one size is served, no other was to be seen.
            *(tail_warnings(traffic) if plan.min_length < plan.max_length else ()),
        ),
        cost=cost,
    )


def rival_programs(plan: BucketPlan) -> int:
    """How many programs rivals of a plan may use: as many as it could have had itself.

    A plan that was bounded knows the costs of one bucket more than it was allowed.
    """
    allowed = len(plan.expected_by_count) - 1
    return max(len(plan.buckets), allowed if allowed > 0 else UNBOUNDED_RIVALS)


#: Headings of :func:`bucket_rows`.
BUCKET_COLUMNS = ("bucket", "mode", "lengths", "tuned for", "inputs", "padding", "mean ms")


def bucket_rows(figures: PlanFigures) -> tuple[tuple[str, ...], ...]:
    """A plan's buckets as texts, a row each."""
    return tuple(
        (
            f"{i}",
            item.bucket.mode,
            f"{item.bucket.lo}–{item.bucket.hi}",
            f"{item.bucket.hint}",
            format_share(item.share),
            format_share(item.padding_waste),
            format_ms(item.expected_ms),
        )
        for i, item in enumerate(figures.buckets)
    )


def policy_label(name: str) -> str:
    """A policy as people read it."""
    return {OPTIMUM: "chosen", ONE_RANGE: "one dynamic range"}.get(name, name.replace("_", " "))


def excess_text(share: float) -> str:
    """``+12.3 %``; from 100 % on the digit after the point says nothing."""
    return f"{100 * share:+.0f} %" if abs(share) >= 1 else f"{100 * share:+.1f} %"


def policy_columns(judgement: PlanJudgement) -> tuple[str, ...]:
    """Headings of :func:`policy_rows`; size and build time where it is known what buckets take."""
    columns = ["policy", "mean ms", "p99 ms", "padding", "programs"]
    columns += ["size", "predicted build"] if _tells_size(judgement) else []
    return (*columns, "time", *(["with price"] if judgement.plan.price_per_bucket else []))


def policy_caption(judgement: PlanJudgement) -> str:
    """What the last columns of :func:`policy_rows` mean."""
    price = judgement.plan.price_per_bucket
    text = "Time: the mean run over that of the chosen plan"
    if price:
        text += f"; with price: the same with the {format_ms(price)} ms that each program must save"
    return f"{text}."


def policy_rows(judgement: PlanJudgement) -> tuple[tuple[str, ...], ...]:
    """The policies as texts, a row each, the plan first."""
    rows = []
    own = judgement.policies[OPTIMUM].evaluation.expected_ms
    for name, result in judgement.policies.items():
        found = result.evaluation
        row = [
            policy_label(name),
            format_ms(found.expected_ms),
            format_ms(found.p99_ms),
            format_share(found.padding_waste),
            f"{found.programs}",
        ]
        if _tells_size(judgement):
            assert judgement.cost is not None
            row.append(format_bytes(judgement.cost.size(found.programs)))
            row.append(format_duration(judgement.cost.build_s(found.programs)))
        shares = [found.expected_ms / own - 1]
        shares += [result.regret] if judgement.plan.price_per_bucket else []
        rows.append((*row, *("–" if name == OPTIMUM else excess_text(x) for x in shares)))
    return tuple(rows)


def _tells_size(judgement: PlanJudgement) -> bool:
    return judgement.cost is not None and judgement.cost.base_size > 0
