"""The lowest costs that a few static programs allow, and plans that need no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgecompile.buckets.costs.grid import CostGrid, Mode
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange
from edgecompile.export.store import ExportStore
from edgecompile.hosts.detection import runnable_variants
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.planning import planning
from edgecompile.planning.costs import sources
from edgecompile.planning.costs.calibration import CalibratedPoint, Calibration
from edgecompile.planning.costs.calibration_bundle import CalibrationSpec, choose_calibration
from edgecompile.planning.costs.lowest import TOLERANCE, lowest_costs
from edgecompile.planning.costs.measure import measured_costs
from edgecompile.planning.costs.sources import Costs
from edgecompile.planning.planning import plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import PlanScope
from edgecompile.planning.subject import Subject, make_subject
from edgecompile.runtime.measure.rounds import median_error
from edgecompile.targets.profile import load_target

BOTH: tuple[Mode, ...] = ("exact", "pad")


def calibration(points: Sequence[CalibratedPoint]) -> Calibration:
    fields: dict[str, Any] = {
        "source": "a test", "edgecompile": None, "model": "net", "structure": None,
        "manifest_sha256": "", "variant": "x86-64-v3", "arch": "x86-64", "threads": 1, "host": {},
        "date": "", "length_axis": "length", "precision": "fp32", "open_ms": None, "load_ms": None,
    }  # fmt: skip
    return Calibration(**fields, points=tuple(points))


def times(
    spec: CalibrationSpec,
    exact: Mapping[int, float],
    ratio: Mapping[int, float],
    spread: float,
    noise: np.random.Generator | None = None,
) -> Calibration:
    """What a machine measures: medians that are off by two standard errors at most; without noise the true ones."""
    points = []
    for index, sizes in spec.runs:
        mode, length = spec.buckets[index].mode, sizes["length"]
        ms = exact[length] * (ratio[length] if mode == "pad" else 1.0)
        error = 2 * median_error(spread * ms, 50)
        off = float(noise.uniform(-error, error)) if noise is not None else 0.0
        sized = tuple(sizes.items())
        points.append(CalibratedPoint(index, mode, sized, ms + off, spread * ms, samples=50))
    return calibration(points)


def point(mode: Mode, length: int, ms: float, spread_ms: float = 0.0) -> CalibratedPoint:
    return CalibratedPoint(0, mode, (("length", length),), ms, spread_ms, samples=100)


def test_the_lowest_cost_follows_the_least_ratio_of_the_modes() -> None:
    exact = [point("exact", length, length / 10) for length in (10, 20, 40)]
    measured = calibration([*exact, point("pad", 10, 0.9), point("pad", 40, 4.2)])
    lowest = lowest_costs(measured_costs(measured, "measured"), measured)
    ratio = 0.9 * (1 - TOLERANCE)
    for length in (10, 20, 40):
        assert lowest.cost(length, "pad") == pytest.approx(ratio * length / 10)
        assert lowest.cost(length, "exact") == length / 10


def test_what_spread_hides_may_be_lower_still() -> None:
    def lowest(spread: float) -> float:
        both = [point("exact", 10, 1.0, spread), point("pad", 10, 1.0, spread)]
        measured = calibration(both)
        return lowest_costs(measured_costs(measured, "measured"), measured).cost(10, "pad")

    assert lowest(0.0) == pytest.approx(1 - TOLERANCE)
    assert lowest(2.0) < lowest(0.5) < lowest(0.0)
    assert lowest(1e6) > 0  # a cost is


@st.composite
def models(draw: st.DrawFn) -> tuple[PlanScope, dict[int, float], dict[int, float], float]:
    """Traffic, the true cost of every length, the true ratio of its modes, and a spread."""
    hi = draw(st.integers(20, 120))
    counts = draw(st.dictionaries(st.integers(1, hi), st.integers(1, 50), min_size=1, max_size=12))
    scope = PlanScope(LengthDistribution.from_counts(counts), (("length", AxisRange(1, hi, hi)),))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    base, bend = draw(st.sampled_from([0.0, 0.3, 3.0])), draw(st.sampled_from([1.0, 1.3]))
    exact = {n: base + 0.02 * n**bend for n in range(1, hi + 1)}
    middle = draw(st.sampled_from([0.7, 0.9, 1.0, 1.0, 1.05]))
    width = draw(st.sampled_from([0.0, 0.02, TOLERANCE / 2.1]))
    ratio = {n: middle * (1 + float(rng.uniform(-width, width))) for n in exact}
    return scope, exact, ratio, draw(st.sampled_from([0.0, 0.05, 0.3]))


def plan_from(scope: PlanScope, grid: CostGrid) -> BucketPlan:
    return planning._choose(scope, PlanRequest(scope.traffic), grid, BucketCost(), None)[0]


@given(models(), st.integers(0, 10**6))
def test_stopping_early_changes_no_decision(
    drawn: tuple[PlanScope, dict[int, float], dict[int, float], float], seed: int
) -> None:
    """Where two programs settle it, neither their own times nor the true ones plan anything else."""
    scope, exact, ratio, spread = drawn
    spec = choose_calibration(scope, BOTH)
    first = times(spec.beginning, exact, ratio, spread, np.random.default_rng(seed))
    grid = measured_costs(first, "measured")
    lowest = Costs(lowest_costs(grid, first), scope)
    if not planning._needs_no_padding(PlanRequest(scope.traffic), None, lowest):
        return
    everything = plan_from(scope, measured_costs(times(spec, exact, ratio, spread), "measured"))
    assert [bucket.mode for bucket in everything.buckets] == ["exact"]
    assert [bucket.mode for bucket in plan_from(scope, grid).buckets] == ["exact"]


def test_both_outcomes_occur() -> None:
    traffic = LengthDistribution.from_counts({n: 5 for n in range(4, 100)})
    scope = PlanScope(traffic, (("length", AxisRange(1, 100, 30)),))
    spec = choose_calibration(scope, BOTH)
    assert len(spec.beginning.buckets) == 3 < len(spec.buckets)
    exact = {n: 0.1 + 0.02 * n for n in range(1, 101)}

    def clear(share: float, spread: float = 0.02, **asked: Any) -> bool:
        measured = times(spec.beginning, exact, dict.fromkeys(exact, share), spread)
        model = lowest_costs(measured_costs(measured, "measured"), measured)
        request = PlanRequest(traffic, **asked)
        return planning._needs_no_padding(request, None, Costs(model, scope))

    assert clear(1.0)
    assert not clear(0.5)
    assert not clear(1.0, spread=3.0), "nothing is clear that is only noise"
    assert not clear(1.0, buckets=3)
    assert clear(1.0, price_per_bucket=1.0)


def test_noise_alone_ends_no_measurement() -> None:
    """Padding pays here, and no medians within their errors say that it can't."""
    traffic = LengthDistribution.from_counts({n: 5 for n in range(4, 100)})
    scope = PlanScope(traffic, (("length", AxisRange(1, 100, 30)),))
    spec = choose_calibration(scope, BOTH)
    exact = {n: 0.1 + 0.02 * n for n in range(1, 101)}
    ratio = dict.fromkeys(exact, 0.8)
    everything = plan_from(scope, measured_costs(times(spec, exact, ratio, 0.0), "measured"))
    assert "pad" in [bucket.mode for bucket in everything.buckets]
    for seed in range(30):
        first = times(spec.beginning, exact, ratio, 1.0, np.random.default_rng(seed))
        lowest = Costs(lowest_costs(measured_costs(first, "measured"), first), scope)
        assert not planning._needs_no_padding(PlanRequest(traffic), None, lowest)


def test_the_beginning_is_a_part_of_the_whole() -> None:
    traffic = LengthDistribution.from_counts({n: 5 for n in range(4, 100)})
    scope = PlanScope(traffic, (("length", AxisRange(1, 100, 30)),))
    spec = choose_calibration(scope, BOTH)
    part = spec.beginning
    # At the same places, so that the programs are found again.
    assert part.buckets == spec.buckets[:3] and set(map(str, part.runs)) <= set(map(str, spec.runs))
    assert [bucket.hi for bucket in part.buckets[1:]] == [
        min(bucket.hi for bucket in spec.buckets[1:]),
        100,
    ]
    assert part.beginning is part
    for modes in (("exact",), ("pad",)):
        alone = choose_calibration(scope, modes)
        assert alone.beginning is alone


class Tokens(nn.Module):
    """One vector for each token: padding can't reach the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.table(ids)
        return vectors


@pytest.mark.parametrize(("ratio", "compare"), [(1.0, False), (0.4, False), (1.0, True)])
def test_a_build_measures_no_more_than_settles_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, compare: bool
) -> None:
    profile = load_target("cpu-x86-64-v3")
    if not runnable_variants(profile, tmp_path):
        pytest.skip("this machine can't run x86-64-v3")
    asked: list[CalibrationSpec] = []

    def recorded(
        subject: Subject, spec: CalibrationSpec, *_: object
    ) -> tuple[dict[str, Any], BucketCost]:
        """Times of a machine on which a run takes a millisecond for each position."""
        asked.append(spec)
        points = [
            {
                "bucket": index,
                "mode": spec.buckets[index].mode,
                "sizes": dict(sizes),
                "ms": sizes["length"] * (ratio if spec.buckets[index].mode == "pad" else 1.0),
                "spread_ms": 0.01,
                "samples": 50,
            }
            for index, sizes in spec.runs
        ]
        return {**document, "points": points}, BucketCost(bucket_size=5)

    document = {
        "calibration_version": 1, "edgecompile": "1", "model": "net", "structure": None,
        "manifest_sha256": "0" * 64, "variant": "x86-64-v3", "arch": "x86-64", "threads": 2,
        "host": {}, "date": "2026-11-23T00:00:00Z", "length_axis": "length", "precision": "fp32",
        "open_ms": 1.0, "load_ms": 3.0,
    }  # fmt: skip
    monkeypatch.setattr(sources, "_measure", recorded)
    model = load_model(
        {
            "module": Tokens(),
            "inputs": {"ids": torch.ones(1, 6, dtype=torch.int64)},
            "axes": {"ids": {0: "batch", 1: "length"}},
            "limits": {"length": (1, 64)},
            "pad": {"ids": 0},
            "bounds": {"ids": (0, 19)},
        }
    )
    request = PlanRequest(LengthDistribution.from_samples(range(4, 60)), max_length=64)
    exports = ExportStore(model, tmp_path / "exported")
    planned = plan_model(make_subject(exports, profile, request, tmp_path), compare=compare)
    whole, first = max(asked, key=lambda spec: len(spec.buckets)), asked[0]
    settled = ratio == 1.0 and not compare
    assert len(first.buckets) == (4 if compare else 3)
    assert (whole is first) == (settled or compare) and len(asked) == (1 if whole is first else 2)
    assert any("alone were measured" in note for note in planned.notes) == settled
    assert [bucket.mode for bucket in planned.plan.buckets].count("exact") == (
        1 if ratio == 1.0 else 0
    )
    costs = planned.plan.cost_model
    assert costs is not None and costs.modes == BOTH
    assert len(costs.provenance["pad_measured_at"].split(", ")) == len(whole.buckets) - 1
