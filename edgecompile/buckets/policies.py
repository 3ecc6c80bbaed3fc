"""The rules that others make buckets by, judged by the same costs on the same sample.

Each rule gives upper ends of padded buckets; the first bucket starts at the shortest length served
and the last ends at the longest. All may use the same number of programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgecompile.buckets.costs.sources import CostCurve
from edgecompile.buckets.evaluation import Evaluation, evaluate_buckets
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket, OtherAxes
from edgecompile.lengths.distribution import LengthDistribution

OPTIMUM = "optimum"
ONE_RANGE = "one_range"

SizeRule = Callable[[LengthDistribution, int, int], "list[int]"]


@dataclass(frozen=True)
class PolicyResult:
    """One policy's buckets and what they cost.

    Attributes:
        name: name of the policy.
        plan: its buckets, ready to be built.
        evaluation: their figures on the sample.
        regret: by what share its mean run, with the price of its buckets, costs more than the
            optimum's; 0.1 is 10 %.
    """

    name: str
    plan: BucketPlan
    evaluation: Evaluation
    regret: float

    def to_json(self) -> dict[str, Any]:
        """``{"expected_ms", "p50_ms", "p99_ms", "padding_waste", "programs", "regret", "sizes"}``.

        ``sizes`` are the upper ends of the buckets; of a plan over several axes objects with the
        end on each.
        """
        sizes: list[Any] = [bucket.hi for bucket in self.plan.buckets]
        surface = self.plan.surface
        if surface is not None:
            buckets = self.plan.buckets
            sizes = [{axis: b.range(axis).hi for axis in surface.axes} for b in buckets]
        return {**self.evaluation.to_json(), "regret": self.regret, "sizes": sizes}


def pad_to_max(sample: LengthDistribution, max_length: int, programs: int) -> list[int]:
    """One static program of the longest length."""
    return [max_length]


def powers_of_two(sample: LengthDistribution, max_length: int, programs: int) -> list[int]:
    """The longest length, and the powers of two under it that samples can use, longest first.

    This is the rule of hand-written lists and of the bucketing in AWS Neuron.
    """
    sizes = [max_length]
    power = 1 << (max_length - 1).bit_length() >> 1
    while len(sizes) < programs and power >= sample.min:
        if power < max_length:
            sizes.append(power)
        power //= 2
    return sorted(sizes)


def linear(sample: LengthDistribution, max_length: int, programs: int) -> list[int]:
    """Equal steps up to the longest length."""
    return sorted({math.ceil(max_length * i / programs) for i in range(1, programs + 1)})


def exponential(
    sample: LengthDistribution, max_length: int, programs: int, step: int = 8
) -> list[int]:
    """Equal ratios from ``step`` to the longest length, rounded up to multiples of ``step``.

    This is the exponential strategy of vLLM on Gaudi: size i of n is step·(max/step)^(i/(n−1)),
    rounded up, duplicates dropped, the last cut to the maximum. Its step is the block size of the
    device, 128; that would leave one bucket for the lengths of short models, hence 8 here.
    """
    if programs == 1 or max_length <= step:
        return [max_length]
    ratio = max_length / step
    exact = [step * ratio ** (i / (programs - 1)) for i in range(programs)]
    # The root of a power may come out a hair above the whole number that it is.
    rounded = {step * math.ceil(size / step - 1e-9) for size in exact}
    return sorted({*(size for size in rounded if size < max_length), max_length})


def quantiles(sample: LengthDistribution, max_length: int, programs: int) -> list[int]:
    """As many samples in each bucket."""
    sizes = {sample.quantile(i / programs) for i in range(1, programs)}
    return sorted({*sizes, max_length})


RIVALS: dict[str, SizeRule] = {
    "pad_to_max": pad_to_max,
    "powers_of_two": powers_of_two,
    "linear": linear,
    "exponential": exponential,
    "quantiles": quantiles,
}


def rival_plans(
    sample: LengthDistribution,
    *,
    programs: int,
    min_length: int = 1,
    max_length: int | None = None,
    length_axis: str = "length",
    other_axes: OtherAxes = (),
) -> tuple[BucketPlan, ...]:
    """The plans of all rival rules: the padded ones, then one dynamic range.

    Args:
        sample: the lengths; those over ``max_length`` count as ``max_length``.
        programs: the most programs that a rule may use, from 1 up.
        min_length: the shortest length to serve.
        max_length: the longest length to serve; None means the longest of the sample.
        length_axis: name of the axis that is divided.
        other_axes: further axes, the same in every bucket.
    """
    if programs < 1:
        raise ValueError(f"programs is {programs}, not 1 or more")
    if max_length is None:
        max_length = sample.max
    served, _ = sample.clip(max_length)
    plans = []
    for name, rule in RIVALS.items():
        sizes = [size for size in rule(served, max_length, programs) if size >= min_length]
        buckets = []
        lo = min_length
        for size in sizes:
            buckets.append(Bucket("pad", ((length_axis, AxisRange(lo, size, size)), *other_axes)))
            lo = size + 1
        plans.append(BucketPlan(length_axis, tuple(buckets), policy=name, source=sample.source))
    middle = max(min_length, served.quantile(0.5))
    whole = AxisRange(min_length, max_length, middle)
    one = Bucket("exact", ((length_axis, whole), *other_axes))
    plans.append(BucketPlan(length_axis, (one,), policy=ONE_RANGE, source=sample.source))
    return tuple(plans)


def compare_policies(
    optimum: BucketPlan, sample: LengthDistribution, cost_model: CostCurve, *, programs: int
) -> dict[str, PolicyResult]:
    """Judges a plan and its rivals by one cost model on one sample, the plan first.

    Rules whose mode the cost model has no costs for are left out.

    Args:
        optimum: a plan of :func:`edgecompile.buckets.plan.plan_buckets`.
        sample: the lengths that it was planned from; longer ones than it serves are clipped.
        cost_model: the costs that it was planned with.
        programs: the most programs that a rival may use: the bound that the optimum had.

    Raises:
        PlanError: the sample has lengths that are shorter than the plan serves.
    """
    first = optimum.buckets[0]
    served, _ = sample.clip(optimum.max_length)
    plans = rival_plans(
        served,
        programs=programs,
        min_length=optimum.min_length,
        max_length=optimum.max_length,
        length_axis=optimum.length_axis,
        other_axes=first.other_axes,
    )
    results: dict[str, PolicyResult] = {}
    price = optimum.price_per_bucket
    least = 0.0
    for plan in (optimum, *plans):
        if any(bucket.mode not in cost_model.modes for bucket in plan.buckets):
            continue
        evaluation = evaluate_buckets(plan.buckets, served, cost_model)
        total = evaluation.expected_ms + price * evaluation.programs
        name = OPTIMUM if plan is optimum else plan.policy
        least = least or total
        judged = BucketPlan(
            plan.length_axis,
            plan.buckets,
            expected_ms=evaluation.expected_ms,
            policy=name,
            cost_model=cost_model,
            price_per_bucket=price,
            source=sample.source,
        )
        kept = optimum if plan is optimum else judged
        results[name] = PolicyResult(name, kept, evaluation, total / least - 1.0)
    return results
