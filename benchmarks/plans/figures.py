"""The findings of benchmarks/run plans: predictions beside measurements, as plain values."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgecompile.bench.bench import FOREIGN_LIMIT, SPREAD_LIMIT
from edgecompile.bench.timings import (
    Ratio,
    Round,
    TimeSummary,
    compare,
    median_by_length,
    summarise,
)
from edgecompile.buckets.baselines import BaselineResult
from edgecompile.buckets.costs.grid import CostGrid, Mode
from edgecompile.buckets.evaluation import expected_cost
from edgecompile.buckets.ranges import Bucket
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.units import format_ms

REPORT_VERSION = 1
#: How far a measured mean may be from the predicted one.
MARK = 0.10

Rounds = Mapping[str, Sequence[Round]]


@dataclass(frozen=True)
class PolicyFigures:
    """One policy: what was predicted, what was measured. Milliseconds of one run.

    Attributes:
        name: of the policy.
        buckets: its buckets.
        predicted_traffic_ms: mean over all traffic by the curve.
        predicted_ms: mean over the lengths that were run, by the curve.
        times: of the rounds.
        typical_ms: mean over the lengths of each length's median run: without disturbances.
        predicted_regret: share by which ``predicted_ms`` is over the least of all policies.
        measured_regret: the same of the rounds' means, taken in each round first.
    """

    name: str
    buckets: tuple[Bucket, ...]
    predicted_traffic_ms: float
    predicted_ms: float
    times: TimeSummary
    typical_ms: float
    predicted_regret: float
    measured_regret: Ratio

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.times.mean_ms / self.predicted_ms

    @property
    def missed(self) -> bool:
        """Whether the prediction is off by more than the mark."""
        return abs(self.ratio - 1.0) > MARK

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        regret = self.measured_regret
        return {
            "programs": len(self.buckets),
            "predicted_ms": self.predicted_ms,
            "predicted_traffic_ms": self.predicted_traffic_ms,
            "measured_ms": self.times.mean_ms,
            "ratio": self.ratio,
            "spread": self.times.spread,
            "p50": self.times.p50,
            "p90": self.times.p90,
            "p99": self.times.p99,
            "typical_ms": self.typical_ms,
            "predicted_regret": self.predicted_regret,
            "measured_regret": {k: v - 1.0 for k, v in asdict(regret).items()},
            "round_means_ms": list(self.times.round_means_ms),
            "buckets": [bucket.to_json() for bucket in self.buckets],
        }


@dataclass(frozen=True)
class ProgramFigures:
    """One size at which programs ran: predicted and median milliseconds, over all policies."""

    mode: Mode
    length: int
    predicted_ms: float
    measured_ms: float
    runs: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class BatchFigures:
    """All policies at one batch size.

    Attributes:
        batch: inputs of one run, all of one length.
        traffic: the lengths that were planned for.
        lengths: those of a round.
        curve: what the predictions are made from.
        notes: of the planner.
        policies: the planner's first.
        programs: what each size cost.
        rounds: how many.
        load: load average before the rounds; CPUs that others used, and that the hypervisor took.
        facts: what the process that measured said about itself.
    """

    batch: int
    traffic: LengthDistribution
    lengths: LengthDistribution
    curve: CostGrid
    notes: tuple[str, ...]
    policies: tuple[PolicyFigures, ...]
    programs: tuple[ProgramFigures, ...]
    rounds: int
    load: Mapping[str, float]
    facts: Mapping[str, Any]

    @property
    def best(self) -> PolicyFigures:
        """The policy with the least measured mean."""
        return min(self.policies, key=lambda item: item.times.mean_ms)

    @property
    def optimum(self) -> PolicyFigures:
        """The planner's own."""
        return self.policies[0]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "batch": self.batch,
            "traffic": {"source": self.traffic.source, **self.traffic.summary().to_json()},
            "lengths": dict(zip(map(str, self.lengths.lengths), self.lengths.counts, strict=True)),
            "cost_model": self.curve.to_json(),
            "notes": list(self.notes),
            "rounds": self.rounds,
            "policies": {item.name: item.to_json() for item in self.policies},
            "best_measured": self.best.name,
            "missed": [item.name for item in self.policies if item.missed],
            "programs": [item.to_json() for item in self.programs],
            "load": dict(self.load),
            "facts": dict(self.facts),
            "shortfalls": shortfalls(self),
        }


@dataclass(frozen=True)
class PlansReport:
    """The whole benchmark."""

    model: str
    model_sha256: Mapping[str, str]
    started: str
    command: tuple[str, ...]
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    batches: tuple[BatchFigures, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self),
            "version": REPORT_VERSION,
            "mark": MARK,
            "model_sha256": dict(self.model_sha256),
            "command": list(self.command),
            "batches": [item.to_json() for item in self.batches],
            "notes": list(self.notes),
        }


def judge_policies(
    results: Mapping[str, BaselineResult],
    rounds: Rounds,
    lengths: LengthDistribution,
    curve: CostGrid,
) -> tuple[PolicyFigures, ...]:
    """Puts predictions beside measurements.

    Args:
        results: the policies, the planner's first.
        rounds: of each, interleaved.
        lengths: that each round ran.
        curve: the costs that were planned with.
    """
    times = {name: summarise(rounds[name]) for name in results}
    best = min(results, key=lambda name: times[name].mean_ms)
    predicted = {
        name: expected_cost(result.buckets, lengths, curve) for name, result in results.items()
    }
    least = min(predicted.values())
    figures = []
    for name, result in results.items():
        typical = median_by_length(rounds[name])
        counted = zip(lengths.lengths, lengths.counts, strict=True)
        figures.append(
            PolicyFigures(
                name=name,
                buckets=result.buckets,
                predicted_traffic_ms=result.evaluation.expected_ms,
                predicted_ms=predicted[name],
                times=times[name],
                typical_ms=sum(typical[n] * count for n, count in counted) / lengths.n,
                predicted_regret=predicted[name] / least - 1.0,
                measured_regret=compare(rounds[name], rounds[best]),
            )
        )
    return tuple(figures)


def pool_programs(
    policies: Mapping[str, Sequence[Bucket]], rounds: Rounds, curve: CostGrid
) -> tuple[ProgramFigures, ...]:
    """The cost of each size, whichever baseline ran it: dynamic programs by length, then static ones.

    Dynamic programs of different ranges are thrown together.
    """
    samples: dict[tuple[Mode, int], list[int]] = {}
    for name, buckets in policies.items():
        for item in rounds[name]:
            for length, ns in zip(item.lengths, item.ns, strict=True):
                bucket = next(b for b in buckets if b.lo <= length <= b.hi)
                samples.setdefault((bucket.mode, bucket.run_length(length)), []).append(ns)
    return tuple(
        ProgramFigures(mode, length, curve.cost(length, mode), statistics.median(ns) / 1e6, len(ns))
        for (mode, length), ns in sorted(samples.items())
    )


def twins(policies: Sequence[PolicyFigures]) -> list[tuple[PolicyFigures, PolicyFigures]]:
    """Policies that came to the same programs: how far apart they are tells what noise does."""
    pairs = []
    for i, one in enumerate(policies):
        for other in policies[i + 1 :]:
            if [(b.mode, b.lo, b.hi) for b in one.buckets] == [
                (b.mode, b.lo, b.hi) for b in other.buckets
            ]:
                pairs.append((one, other))
    return pairs


def shortfalls(batch: BatchFigures) -> list[str]:
    """Doubts about the figures, in sentences."""
    lines = []
    for item in batch.policies:
        if item.missed:
            typical = item.typical_ms / item.predicted_ms
            lines.append(
                f"{item.name}: measured {format_ms(item.times.mean_ms)} ms, predicted "
                f"{format_ms(item.predicted_ms)} ms, a ratio of {item.ratio:.2f}, off by more than "
                f"{100 * MARK:g} %; by each length's median run the ratio is {typical:.2f}"
            )
    regret = batch.optimum.measured_regret
    if batch.best is not batch.optimum and regret.p10 > 1.0:
        lines.append(
            f"{batch.best.name} was measured faster than the planner's choice, which takes "
            f"{percent(regret.median - 1)} more ({percent(regret.p10 - 1)} to "
            f"{percent(regret.p90 - 1)} over the rounds)"
        )
    lines += [
        f"{item.name}: the means of the rounds spread by {percent(item.times.spread)}"
        for item in batch.policies
        if item.times.spread > SPREAD_LIMIT
    ]
    if batch.load.get("foreign_cpus", 0.0) > FOREIGN_LIMIT:
        foreign = batch.load["foreign_cpus"]
        lines.append(f"other processes kept {foreign:.2f} CPUs busy during the rounds")
    if batch.load.get("stolen_cpus", 0.0) > FOREIGN_LIMIT:
        stolen = batch.load["stolen_cpus"]
        lines.append(f"the hypervisor took {stolen:.2f} CPUs away during the rounds")
    # Two bundles may each be off by what is allowed.
    error = batch.facts.get("error_share", 0.0)
    if error > 2.0:
        lines.append(f"outputs of two policies differ by {error:.1f} times what a bundle may")
    return lines


def percent(share: float) -> str:
    """``3.1 %``; nothing has no sign."""
    text = f"{100 * share:.1f} %"
    return "0.0 %" if text == "-0.0 %" else text
