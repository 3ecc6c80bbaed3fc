"""What a plan over two axes means for a sample; :mod:`edgecompile.buckets.judgement` has one axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgecompile.buckets.costs.curves import Mode
from edgecompile.buckets.evidence import spread_warnings, tail_warnings
from edgecompile.buckets.joint.evaluation import find_buckets, joint_run_costs
from edgecompile.buckets.joint.evidence import held_out_joint, joint_interval
from edgecompile.buckets.joint.policies import compare_joint_policies, plan_extents
from edgecompile.buckets.joint.search import MOST_STEPS
from edgecompile.buckets.judgement import (
    BUCKET_COLUMNS,
    COST_WORDS,
    LEAST_TO_HOLD_OUT,
    BucketFigures,
    PlanFigures,
    PlanJudgement,
    bucket_rows,
    judge_plan,
    plan_figures,
)
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.units import format_ms, format_share

__all__ = [
    "JointJudgement",
    "bucket_table",
    "judge",
    "joint_bucket_columns",
    "joint_bucket_rows",
    "joint_figures",
    "judge_joint",
]


@dataclass(frozen=True)
class JointJudgement(PlanJudgement):
    """As :class:`PlanJudgement`, of a plan made with a surface.

    ``traffic`` and ``served`` are the lengths alone, whatever the other axis has.

    Attributes:
        joint: the whole sample, also what is larger than the plan serves.
    """

    joint: JointDistribution | None = None

    @property
    def sizes(self) -> JointDistribution:
        """The whole sample."""
        assert self.joint is not None  # the default is only there as fields before it have one
        return self.joint

    @property
    def served_sizes(self) -> JointDistribution:
        """The sample with larger inputs cut to the largest sizes served."""
        extents = plan_extents(self.plan, self.sizes.axes)
        return self.sizes.clip_all({axis: high for axis, (_, high) in extents.items()})

    def to_json(self) -> dict[str, Any]:
        """That of :class:`PlanJudgement`, and a summary of each axis under ``sizes``."""
        return {
            **super().to_json(),
            "sizes": {
                axis: self.sizes.marginal(axis).summary().to_json() for axis in self.sizes.axes
            },
        }

    def sentences(self) -> tuple[str, ...]:
        """The plan's notes, and what there is to doubt, for people."""
        surface = self.plan.surface
        if surface is None:
            return super().sentences()
        grid = [f"{len(surface.grid(axis))} sizes of {axis}" for axis in surface.axes]
        told = f"Costs are {COST_WORDS[surface.kind]}, at {' and '.join(grid)}."
        return (*super().sentences(), told)


def judge(
    plan: BucketPlan,
    lengths: LengthDistribution,
    joint: JointDistribution | None = None,
    **options: Any,
) -> PlanJudgement:
    """Judges a plan over one axis or over two.

    Args:
        plan: made with a cost model.
        lengths: the sample.
        joint: the sample over two axes; used if the plan has costs over both.
        options: those of :func:`edgecompile.buckets.judgement.judge_plan` and :func:`judge_joint`.

    Raises:
        ValueError: the plan has no cost model, or two axes and no joint sample.
        PlanError: the sample has sizes that are smaller than the plan serves.
    """
    if plan.surface is None:
        return judge_plan(plan, lengths, **options)
    if joint is None:
        raise ValueError("a plan over two axes needs a sample over both")
    return judge_joint(plan, joint, **options)


def bucket_table(judgement: PlanJudgement) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Headings and rows of the plan's buckets, as texts."""
    if not isinstance(judgement, JointJudgement):
        return BUCKET_COLUMNS, bucket_rows(plan_figures(judgement.plan, judgement.served))
    axes = judgement.sizes.axes
    figures = joint_figures(judgement.plan, judgement.served_sizes)
    return joint_bucket_columns(axes), joint_bucket_rows(figures, axes)


def judge_joint(
    plan: BucketPlan,
    traffic: JointDistribution,
    *,
    programs: int,
    modes: tuple[Mode, ...] | None = None,
    seed: int = 0,
    cost: BucketCost | None = None,
) -> JointJudgement:
    """Compares a plan with its rivals and with itself on inputs that it wasn't made from.

    Args:
        plan: of :func:`edgecompile.buckets.joint.plan.plan_joint`.
        traffic: the sample that it was made from.
        programs: how many programs rivals may use.
        modes: the modes that the plan could choose from; None: all that have costs.
        seed: of splitting and resampling.
        cost: what buckets take, if it is known.

    Raises:
        ValueError: the plan has no surface.
        PlanError: the sample has sizes that are smaller than the plan serves.
    """
    surface = plan.surface
    if surface is None:
        raise ValueError("a plan without costs over two axes can't be judged on two")
    extents = plan_extents(plan, traffic.axes)
    highs = {axis: high for axis, (_, high) in extents.items()}
    served = traffic.clip_all(highs)
    held_out = None
    if traffic.n >= LEAST_TO_HOLD_OUT:
        held_out = held_out_joint(
            served,
            surface,
            seed=seed,
            max_buckets=len(plan.buckets),
            price_per_bucket=plan.price_per_bucket,
            min_sizes={axis: low for axis, (low, _) in extents.items()},
            max_sizes=highs,
            modes=modes or surface.modes,
            most_steps=MOST_STEPS // 3,  # two plans are made
        )
    lengths = traffic.marginal(traffic.axes[0])
    return JointJudgement(
        plan=plan,
        traffic=lengths,
        policies=compare_joint_policies(plan, traffic, surface, programs=programs),
        interval=joint_interval(plan.buckets, served, surface, seed=seed),
        held_out=held_out,
        warnings=(*spread_warnings(surface), *tail_warnings(lengths)),
        cost=cost,
        joint=traffic,
    )


def joint_figures(plan: BucketPlan, distribution: JointDistribution) -> PlanFigures:
    """Sends every sample to the bucket that holds its sizes, and adds up.

    Samples outside every bucket count as not covered. A run has as many elements as the product
    of its two sizes. Costs are told if the plan has a surface.
    """
    which = find_buckets(plan.buckets, distribution, partly=True)
    counts = distribution.count_array
    useful = distribution.size_array.prod(axis=1, dtype=np.float64)
    figures = []
    real = computed = ms = 0.0
    for index, bucket in enumerate(plan.buckets):
        inside = which == index
        samples = int(counts[inside].sum())
        if not samples:
            figures.append(BucketFigures(bucket, 0.0, 0.0, None))
            continue
        run = np.ones(int(inside.sum()))
        for column, axis in enumerate(distribution.axes):
            sizes = distribution.size_array[inside, column]
            run *= bucket.range(axis).hi if axis in bucket.pad_axes else sizes
        own_real = float(useful[inside] @ counts[inside])
        own_run = float(run @ counts[inside])
        mean = None
        if plan.surface is not None:
            part = _part(distribution, inside)
            costs = joint_run_costs((bucket,), part, plan.surface)
            mean = float(costs @ part.count_array) / samples
            ms += mean * samples
        real, computed = real + own_real, computed + own_run
        waste = 1.0 - own_real / own_run
        figures.append(BucketFigures(bucket, samples / distribution.n, waste, mean))
    served = int(counts[which >= 0].sum())
    return PlanFigures(
        buckets=tuple(figures),
        covered=served / distribution.n,
        padding_waste=1.0 - real / computed if served else 0.0,
        expected_ms=ms / served if served and plan.surface is not None else None,
    )


def joint_bucket_columns(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Headings of :func:`joint_bucket_rows`."""
    return ("bucket", "mode", *axes, "tuned for", "inputs", "padding", "mean ms")


def joint_bucket_rows(figures: PlanFigures, axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The buckets as texts, a row each."""
    rows = []
    for index, item in enumerate(figures.buckets):
        ranges = [item.bucket.range(axis) for axis in axes]
        rows.append(
            (
                f"{index}",
                item.bucket.mode,
                *(f"{own.lo}–{own.hi}" for own in ranges),
                " × ".join(f"{own.hint}" for own in ranges),
                format_share(item.share),
                format_share(item.padding_waste),
                format_ms(item.expected_ms),
            )
        )
    return tuple(rows)


def _part(distribution: JointDistribution, inside: Any) -> JointDistribution:
    cells = zip(distribution.sizes, distribution.counts, inside.tolist(), strict=True)
    kept = {sizes: count for sizes, count, is_in in cells if is_in}
    return JointDistribution.from_counts(distribution.axes, kept, distribution.source)
