"""What given buckets cost on a given sample: every policy is judged by these functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.costs.sources import CostModel, FloatArray
from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import PlanError
from edgecompile.lengths.distribution import LengthDistribution


@dataclass(frozen=True)
class Evaluation:
    """Figures of one set of buckets under one cost model and sample.

    Attributes:
        expected_ms: mean milliseconds of a run.
        p50_ms, p99_ms: what 50 % and 99 % of the runs don't exceed, as far as the length decides.
        padding_waste: share of the computed elements that are padding, 0 where nothing is padded.
        programs: number of buckets.
    """

    expected_ms: float
    p50_ms: float
    p99_ms: float
    padding_waste: float
    programs: int

    def to_json(self) -> dict[str, Any]:
        """A dict of plain numbers."""
        return dict(vars(self))


def evaluate_buckets(
    buckets: Sequence[Bucket], distribution: LengthDistribution, cost_model: CostModel
) -> Evaluation:
    """Judges buckets of one axis, ascending, that serve the whole sample.

    Raises:
        PlanError: some lengths lie outside every bucket.
        CostError: the cost model has no costs in a bucket's mode.
    """
    costs = run_costs(buckets, distribution, cost_model)
    counts = distribution.count_array
    lengths = distribution.length_array
    run_lengths = _run_lengths(buckets, lengths)
    real = float(np.dot(lengths, counts))
    computed = float(np.dot(run_lengths, counts))
    return Evaluation(
        expected_ms=_mean(costs, distribution),
        p50_ms=weighted_quantile(costs, counts, 0.5),
        p99_ms=weighted_quantile(costs, counts, 0.99),
        padding_waste=(computed - real) / computed,
        programs=len(buckets),
    )


def expected_cost(
    buckets: Sequence[Bucket], distribution: LengthDistribution, cost_model: CostModel
) -> float:
    """Mean milliseconds of one run over the sample; see :func:`evaluate_buckets`."""
    return _mean(run_costs(buckets, distribution, cost_model), distribution)


def run_costs(
    buckets: Sequence[Bucket], distribution: LengthDistribution, cost_model: CostModel
) -> FloatArray:
    """Milliseconds of one run at each distinct length of the sample, shape [distinct].

    Raises:
        PlanError: some lengths lie outside every bucket.
        CostError: the cost model has no costs in a bucket's mode.
    """
    lengths = distribution.length_array
    run_lengths = _run_lengths(buckets, lengths)
    padded = _padded(buckets, lengths)
    costs = np.empty(len(lengths))
    if padded.any():
        costs[padded] = cost_model.cost(run_lengths[padded], "pad")
    if not padded.all():
        costs[~padded] = cost_model.cost(run_lengths[~padded], "exact")
    return costs


def weighted_quantile(costs: FloatArray, counts: npt.NDArray[np.int64], q: float) -> float:
    """The least cost that a share ``q`` of the samples doesn't exceed; both of shape [cells]."""
    order = np.argsort(costs, kind="stable")
    reached = np.cumsum(counts[order])
    return float(costs[order][np.searchsorted(reached, np.ceil(q * int(counts.sum()) - 1e-6))])


def _mean(costs: FloatArray, distribution: LengthDistribution) -> float:
    return float(np.dot(costs, distribution.count_array) / distribution.n)


def _index(buckets: Sequence[Bucket], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    his = np.array([bucket.hi for bucket in buckets])
    index = np.searchsorted(his, lengths)
    outside = (index == len(buckets)) | (lengths < buckets[0].lo)
    if outside.any():
        shown = ", ".join(str(length) for length in lengths[outside][:5])
        raise PlanError(
            f"the buckets serve {buckets[0].lo}..{his[-1]}, but the sample has the lengths {shown}"
            + (" and others" if outside.sum() > 5 else ""),
            hint="clip the sample, or plan with a larger --max-length",
        )
    return index


def _padded(buckets: Sequence[Bucket], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    modes = np.array([bucket.mode == "pad" for bucket in buckets])
    padded: npt.NDArray[np.bool_] = modes[_index(buckets, lengths)]
    return padded


def _run_lengths(
    buckets: Sequence[Bucket], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    his = np.array([bucket.hi for bucket in buckets], dtype=np.int64)
    return np.where(_padded(buckets, lengths), his[_index(buckets, lengths)], lengths)
