"""The parts of benchmarks/run plans that need no building, and its process on a bundle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.plans import device
from benchmarks.plans.bundles import union_of_programs
from benchmarks.plans.figures import (
    BatchFigures,
    PlansReport,
    judge_policies,
    percent,
    pool_programs,
    shortfalls,
    twins,
)
from benchmarks.plans.plans import parse_arguments
from benchmarks.plans.process import measure_rounds
from benchmarks.plans.record import render_record
from edgecompile.bench.timings import Round
from edgecompile.buckets.baselines import BaselineResult, compare_baselines
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import BenchError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.progress import NULL_PROGRESS
from edgecompile.runtime import open_bundle

# A dynamic program takes 1 ms and 0.1 for each element, a static one a fifth less.
CURVE = CostGrid(
    tuple(CostPoint(n, 1 + 0.1 * n, 0.8 * (1 + 0.1 * n)) for n in (1, 100)), "measured"
)
LENGTHS = LengthDistribution.from_samples([10, 10, 20, 50, 100])


def results() -> dict[str, BaselineResult]:
    plan = plan_buckets(
        LENGTHS, CURVE, max_buckets=3, min_sizes={"length": 1}, max_sizes={"length": 100}
    )
    return compare_baselines(plan, LENGTHS, CURVE, programs=3)


def run(buckets: Sequence[Bucket], lengths: Sequence[int], factor: float) -> Round:
    """The measurements of a machine that runs ``factor`` times as long as the curve says."""
    ns = []
    for length in lengths:
        bucket = next(b for b in buckets if b.lo <= length <= b.hi)
        ns.append(round(1e6 * factor * CURVE.cost(bucket.run_length(length), bucket.mode)))
    return Round(tuple(lengths), tuple(ns))


def made_batch(factors: dict[str, float]) -> BatchFigures:
    """Figures of two rounds, in which the policies ran so many times as long as predicted."""
    policies = results()
    orders = ([10, 10, 20, 50, 100], [100, 10, 50, 10, 20])
    rounds = {
        name: [run(result.buckets, order, factors.get(name, 1.0)) for order in orders]
        for name, result in policies.items()
    }
    plans = {name: result.buckets for name, result in policies.items()}
    return BatchFigures(
        batch=1,
        traffic=LENGTHS,
        lengths=LENGTHS,
        curve=CURVE,
        notes=("a note",),
        policies=judge_policies(policies, rounds, LENGTHS, CURVE),
        programs=pool_programs(plans, rounds, CURVE),
        rounds=2,
        load={"average_1min": 0.1, "foreign_cpus": 0.0, "stolen_cpus": 0.0},
        facts={"threads": 2, "error_share": 0.5},
    )


def made_report(batch: BatchFigures) -> PlansReport:
    return PlansReport(
        model="m",
        model_sha256={"config.json": "0" * 64},
        started="2026-11-21T00:00:00+00:00",
        command=("benchmarks/run", "plans"),
        settings={"seed": 0},
        machine={"cpu": "a cpu"},
        versions={"edgecompile": "0"},
        batches=(batch,),
    )


def test_a_machine_as_predicted_has_ratios_of_one() -> None:
    batch = made_batch({})
    for item in batch.policies:
        assert item.ratio == pytest.approx(1.0)
        assert item.typical_ms == pytest.approx(item.predicted_ms)
        assert item.predicted_traffic_ms == pytest.approx(item.predicted_ms)
        assert item.measured_regret.median - 1 == pytest.approx(item.predicted_regret)
    assert batch.best.times.mean_ms == pytest.approx(batch.optimum.times.mean_ms)
    assert shortfalls(batch) == []
    text = render_record(made_report(batch), "Title")
    assert f"**all {len(batch.policies)}** policies run within 10 %" in text
    assert "fell short" not in text


def test_what_misses_the_mark_is_named() -> None:
    batch = made_batch({"linear": 1.25, "quantiles": 0.85, "pad_to_max": 1.09})
    assert [item.name for item in batch.policies if item.missed] == ["linear", "quantiles"]
    count = len(batch.policies)
    text = render_record(made_report(batch), "Title", ["A remark."])
    assert f"**{count - 2} of {count}** policies" in text.split("\n")[2]
    assert "linear (1.25), quantiles (0.85)" in text.split("\n")[2]
    assert "\n\nA remark.\n\n" in text
    assert "a ratio of 1.25, off by more than 10 %" in text


def test_a_rival_that_is_faster_is_named() -> None:
    batch = made_batch({"optimum": 1.09, "one_range": 0.5})
    assert batch.best.name == "one_range"
    lines = shortfalls(batch)
    assert any("one_range was measured faster than the planner's choice" in x for x in lines)
    assert "The fastest measured is one_range" in render_record(made_report(batch), "Title")


def test_disturbances_are_doubts() -> None:
    quiet = made_batch({})
    loud = replace(
        quiet,
        load={"foreign_cpus": 0.5, "stolen_cpus": 0.25},
        facts={"threads": 2, "error_share": 3.0},
    )
    text = " ".join(shortfalls(loud))
    assert "0.50 CPUs busy" in text and "0.25 CPUs away" in text and "3.0 times" in text


def test_programs_are_pooled_over_policies() -> None:
    batch = made_batch({})
    found = {(item.mode, item.length): item for item in batch.programs}
    full = [p for p in batch.policies if any(b.mode == "pad" and b.hi == 100 for b in p.buckets)]
    assert len(full) > 2
    # Two rounds; pad_to_max runs all five lengths there.
    assert found["pad", 100].runs >= 2 * (5 + len(full) - 1)
    assert sum(item.runs for item in batch.programs) == 2 * 5 * len(batch.policies)
    for item in batch.programs:
        assert item.measured_ms == pytest.approx(item.predicted_ms)


def test_json_has_what_the_record_says() -> None:
    batch = made_batch({"linear": 1.25})
    document = json.loads(json.dumps(made_report(batch).to_json(), allow_nan=False))
    (found,) = document["batches"]
    assert found["missed"] == ["linear"]
    assert list(found["policies"]) == [item.name for item in batch.policies]
    linear = found["policies"]["linear"]
    assert linear["ratio"] == pytest.approx(linear["measured_ms"] / linear["predicted_ms"])
    assert linear["programs"] == len(linear["buckets"])


def test_policies_of_the_same_programs_are_told() -> None:
    batch = made_batch({})
    one = batch.policies[-1]
    assert not twins((batch.policies[1], one))
    again = replace(one, name="again")
    assert twins((batch.policies[1], one, again)) == [(one, again)]


def test_every_program_is_needed_once() -> None:
    plans = {name: result.buckets for name, result in results().items()}
    found = union_of_programs(plans.values(), lambda bucket: json.dumps(bucket.program_json()))
    every = [bucket for buckets in plans.values() for bucket in buckets]
    assert len(found) < len(every)
    assert {json.dumps(bucket.program_json()) for bucket in every} == set(found)


@pytest.mark.parametrize(("share", "text"), [(0.0312, "3.1 %"), (-0.0001, "0.0 %")])
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_options_without_sense_are_all_named() -> None:
    with pytest.raises(BenchError, match=r"--runs is 0.*--rounds is -1.*--batches is '1,x'"):
        parse_arguments(["--runs", "0", "--rounds", "-1", "--batches", "1,x"])


def test_quick_leaves_what_is_given() -> None:
    options = parse_arguments(["--quick", "--runs", "7", "--batches", "8,1,8"])
    assert options.runs == 7 and options.rounds < parse_arguments([]).rounds
    assert options.batches == [8, 1]


def job(bundles: dict[str, Path]) -> dict[str, Any]:
    return {
        "bundles": {name: str(path) for name, path in bundles.items()},
        "axis": "length",
        "sizes": {"batch": 2},
        "lengths": [3, 5, 5, 30],
        "threads": 1,
        "rounds": 2,
        "seconds": 0.0,
        "lead_in": 1,
        "seed": 0,
    }


def test_rounds_of_a_process_without_torch(tiny_bundle: Path) -> None:
    with NULL_PROGRESS.step("") as step:
        found = measure_rounds(job({"one": tiny_bundle, "two": tiny_bundle}), step)
    assert found.facts["threads"] == 1 and found.facts["error_share"] == 0.0
    assert set(found.rounds) == {"one", "two"}
    for one, two in zip(*found.rounds.values(), strict=True):
        assert one.lengths == two.lengths and sorted(one.lengths) == [3, 5, 5, 30]
        assert min(*one.ns, *two.ns) > 0
    assert len(found.rounds["one"]) == 2


def test_a_process_that_fails_says_why(tiny_bundle: Path) -> None:
    long = {**job({"one": tiny_bundle}), "lengths": [33]}
    with NULL_PROGRESS.step("") as step, pytest.raises(BenchError, match="33"):
        measure_rounds(long, step)


def test_outputs_that_differ_are_noticed(tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle, threads=1) as model:

        def run_off(inputs: Any) -> dict[str, Any]:
            return {name: value + 1.0 for name, value in model.run(inputs).items()}

        work = job({})
        assert device.largest_error(work, [model, model]) == 0.0
        assert device.largest_error(work, [model, SimpleNamespace(run=run_off)]) > 100

        def run_nan(inputs: Any) -> dict[str, Any]:
            return {name: value * np.nan for name, value in model.run(inputs).items()}

        broken = SimpleNamespace(run=run_nan)
        assert device.largest_error(work, [model, broken]) == float("inf")
