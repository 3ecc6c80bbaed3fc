"""The rules that others make buckets by, judged by the same costs on the same traffic.

Each rule gives upper ends of padded buckets on one axis; the first bucket starts at the smallest
size served and the last ends at the largest. All may use the same number of programs. On two axes
its boxes are the products of the sizes on each, padded on both, and the number of programs has to be
shared out: with n of them every split into floor(n / j) sizes on the length axis and j on the other
one is tried, and the one that costs least is taken. So each rule is shown at its best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.buckets.evaluation import Evaluation, evaluate_buckets, expected_cost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.search.cut_points import TIE
from edgecompile.buckets.traffic import Sizes, Traffic
from edgecompile.lengths.distribution import LengthDistribution

OPTIMUM = "optimum"
ONE_RANGE = "one_range"

SizeRule = Callable[[LengthDistribution, int, int], "list[int]"]


@dataclass(frozen=True)
class BaselineResult:
    """One rule's buckets and their costs.

    Attributes:
        name: name of the rule.
        buckets: ready to be built.
        axes: the axes that it divides, the length axis first.
        evaluation: figures of the buckets on the traffic.
        regret: the share by which its mean run, with the price of its buckets, costs more than the
            plan's that it is compared with; 0.1 is 10 %.
    """

    name: str
    buckets: tuple[Bucket, ...]
    axes: tuple[str, ...]
    evaluation: Evaluation
    regret: float

    def to_json(self) -> dict[str, Any]:
        """``{"expected_ms", "p50_ms", "p99_ms", "padding_waste", "programs", "regret", "sizes"}``.

        ``sizes`` are the upper ends of the buckets; over several axes objects with the end on each.
        """
        sizes: list[Any] = [bucket.hi for bucket in self.buckets]
        if len(self.axes) > 1:
            sizes = [{axis: b.range(axis).hi for axis in self.axes} for b in self.buckets]
        return {**vars(self.evaluation), "regret": self.regret, "sizes": sizes}


def pad_to_max(sample: LengthDistribution, max_length: int, programs: int) -> list[int]:
    """One static program of the longest length."""
    return [max_length]


def powers_of_two(sample: LengthDistribution, max_length: int, programs: int) -> list[int]:
    """The longest length, and the powers of two under it that samples can use, longest first.

    This is the rule of hand-written lists and of the bucketing in AWS Neuron.
    """
    powers = [1 << i for i in range(max_length.bit_length()) if sample.min <= 1 << i < max_length]
    return [*powers[max(0, len(powers) - programs + 1) :], max_length]


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
    """The same number of samples in each bucket."""
    return sorted({*(sample.quantile(i / programs) for i in range(1, programs)), max_length})


BASELINES: dict[str, SizeRule] = {
    "pad_to_max": pad_to_max,
    "powers_of_two": powers_of_two,
    "linear": linear,
    "exponential": exponential,
    "quantiles": quantiles,
}

# What a rule does on the second axis, where that differs: a batch grows in steps of 1, not of 8.
_SECOND: dict[str, SizeRule] = {"exponential": partial(exponential, step=1)}


def baseline_buckets(
    optimum: BucketPlan, sizes: Sizes, costs: CostGrid, *, programs: int
) -> dict[str, tuple[Bucket, ...]]:
    """The buckets of all rules by name: the padded ones, then one dynamic range.

    Rules whose mode has no costs are left out.

    Args:
        optimum: the plan whose axes and extents they share.
        sizes: the traffic; larger sizes than it serves count as the largest.
        costs: the costs by which the programs are shared out.
        programs: the most programs that a rule may use, from 1 up.
    """
    traffic = Traffic.of(sizes, optimum.length_axis)
    axes = traffic.axes
    extents = [optimum.extent(axis) for axis in axes]
    others = tuple(item for item in optimum.buckets[0].axes if item[0] not in axes)
    served = traffic.clip([high for _, high in extents])
    marginals = [served.marginal(index) for index in range(len(axes))]
    splits: list[tuple[int, ...]] = [(programs,)]
    if len(axes) > 1:
        splits = [(programs // j, j) for j in range(1, programs + 1)]

    def boxes(rules: tuple[SizeRule, ...], split: tuple[int, ...]) -> tuple[Bucket, ...]:
        """The padded boxes of a rule that may use ``split`` sizes on the axes."""
        parts = []
        for axis, sample, (low, high), rule, budget in zip(
            axes, marginals, extents, rules, split, strict=False
        ):
            ends = [size for size in rule(sample, high, budget) if size >= low]
            if axis == optimum.length_axis:
                ends = sorted({*ends, *(cut - 1 for cut in optimum.cuts)})
            starts = [low, *(end + 1 for end in ends)]
            parts.append(
                [(axis, AxisRange(lo, hi, hi)) for lo, hi in zip(starts, ends, strict=False)]
            )
        return tuple(Bucket("pad", (*item, *others), axes) for item in product(*parts))

    results = {}
    for name, rule in BASELINES.items() if "pad" in costs.modes else ():
        rules = (rule, _SECOND.get(name, rule))
        # In a fixed order, so that of splits that cost the same it's always the same one.
        tried = sorted(
            {boxes(rules, split) for split in splits},
            key=lambda item: (len(item), [b.hi for b in item]),
        )
        ms = [expected_cost(item, served, costs) for item in tried]
        results[name] = next(
            b for b, cost in zip(tried, ms, strict=True) if cost <= min(ms) * (1 + TIE)
        )
    if "exact" in costs.modes:
        low, high = extents[0]
        starts = (low, *optimum.cuts)
        further = tuple(
            (axis, AxisRange(lo, hi, max(lo, sample.quantile(0.5))))
            for axis, sample, (lo, hi) in list(zip(axes, marginals, extents, strict=True))[1:]
        )
        middle = marginals[0].quantile(0.5)
        results[ONE_RANGE] = tuple(
            Bucket(
                "exact",
                ((axes[0], AxisRange(lo, hi, min(max(lo, middle), hi))), *further, *others),
            )
            for lo, hi in zip(starts, (*(c - 1 for c in optimum.cuts), high), strict=True)
        )
    return results


def compare_baselines(
    optimum: BucketPlan, sizes: Sizes, costs: CostGrid, *, programs: int
) -> dict[str, BaselineResult]:
    """Judges a plan and the rules by the same costs on the same traffic, the plan first.

    Regret is over the plan. Where that is a heuristic, a rule may come out with a regret under 0.

    Args:
        optimum: a plan of :func:`edgecompile.buckets.planner.plan_buckets`.
        sizes: the traffic that it was planned from; larger sizes than it serves are clipped.
        costs: the costs that it was planned with.
        programs: the most programs that a rule may use: the bound that the plan had.

    Raises:
        PlanError: the traffic has sizes that are smaller than the plan serves.
    """
    traffic = Traffic.of(sizes, optimum.length_axis)
    served = traffic.clip([optimum.extent(axis)[1] for axis in traffic.axes])
    others = baseline_buckets(optimum, served, costs, programs=programs)
    results: dict[str, BaselineResult] = {}
    least = 0.0
    for name, buckets in {OPTIMUM: optimum.buckets, **others}.items():
        evaluation = evaluate_buckets(buckets, served, costs)
        total = evaluation.expected_ms + optimum.price_per_bucket * evaluation.programs
        least = least or total
        results[name] = BaselineResult(name, buckets, traffic.axes, evaluation, total / least - 1)
    return results
