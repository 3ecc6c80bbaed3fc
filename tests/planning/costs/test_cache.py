"""Costs that were measured before: found for the very same thing only, and never needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgecompile import installation
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.ranges import AxisRange
from edgecompile.export import store
from edgecompile.export.store import ExportStore
from edgecompile.hosts.detection import runnable_variants
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.planning.costs import cache as cost_cache
from edgecompile.planning.costs import sources
from edgecompile.planning.costs.cache import cost_key, find_kept, keep_costs
from edgecompile.planning.costs.calibration_bundle import CalibrationSpec, choose_calibration
from edgecompile.planning.planning import Planned, plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import PlanScope
from edgecompile.planning.subject import make_subject
from edgecompile.precision import FP32, Precision
from edgecompile.targets.profile import load_target

LENGTHS = LengthDistribution.from_samples([2, 3, 5, 5, 8, 13, 13, 13, 21, 30])
REQUEST = PlanRequest(LENGTHS, mode="exact", buckets=2, max_length=32)
PROFILE = load_target("cpu-x86-64")
AXES = (("length", AxisRange(2, 32, 13)), ("batch", AxisRange(1, 1, 1)))
SPEC = choose_calibration(PlanScope(LENGTHS, AXES), ("exact",))
KEY = "0123"


class Net(nn.Module):
    """A linear layer over each position."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


def save(path: Path, seed: int = 0) -> Path:
    """A saved program of a dynamic length."""
    torch.manual_seed(seed)
    dims = {
        "x": {
            0: torch.export.Dim("batch", min=1, max=4),
            1: torch.export.Dim("length", min=2, max=64),
        }
    }
    program = torch.export.export(Net(), (torch.randn(2, 6, 4),), dynamic_shapes=dims)
    torch.export.save(program, path)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of costs that is the test's own; objects stay where they are."""
    monkeypatch.setattr(cost_cache, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "costs"


def calibration(spec: CalibrationSpec = SPEC) -> dict[str, Any]:
    """The document that the runtime writes for a calibration bundle."""
    return {
        "calibration_version": 1,
        "edgecompile": "1",
        "model": "measured",
        "structure": None,
        "manifest_sha256": "0" * 64,
        "variant": "x86-64-v3",
        "arch": "x86-64",
        "threads": 2,
        "host": {},
        "date": "2026-11-23T00:00:00Z",
        "length_axis": "length",
        "precision": "fp32",
        "open_ms": 1.0,
        "load_ms": 3.0,
        "points": [
            {
                "bucket": index,
                "mode": spec.buckets[index].mode,
                "sizes": dict(sizes),
                "ms": 0.5,
                "spread_ms": 0.0,
                "samples": 9,
            }
            for index, sizes in spec.runs
        ],
    }


COST = BucketCost(base_size=7, bucket_size=5, bucket_build_s=2.5)


def test_what_was_kept_is_found() -> None:
    assert find_kept(KEY, SPEC) is None
    keep_costs(KEY, calibration(), COST)
    found = find_kept(KEY, SPEC)
    assert found is not None and found.date == "2026-11-23T00:00:00Z"
    assert found.bucket_cost == replace(COST, load_ms=3.0)
    assert [point.ms for point in found.points] == [0.5] * len(SPEC.runs)


def test_a_damaged_or_foreign_file_counts_as_none(cache: Path) -> None:
    keep_costs(KEY, calibration(), COST)
    path = cache / f"{KEY}.json"
    text = path.read_text()
    document = json.loads(text)
    other = choose_calibration(PlanScope(LENGTHS, AXES), ("exact", "pad"))
    broken = [
        "",
        text[: len(text) // 2],
        "[]",
        "\0" * 100,
        json.dumps({**document, "key": "4567"}),
        json.dumps({name: value for name, value in document.items() if name != "key"}),
        json.dumps({**document, "points": document["points"][1:]}),
        json.dumps({**document, "points": calibration(other)["points"]}),
        json.dumps({**document, "points": [{**p, "ms": -1} for p in document["points"]]}),
        json.dumps({**document, "bucket_cost": {"base_size": -1}}),
        json.dumps({**document, "calibration_version": 2}),
    ]
    for content in broken:
        path.write_text(content)
        assert find_kept(KEY, SPEC) is None, content[:200]
    path.write_bytes(b"\xff\xfe")
    assert find_kept(KEY, SPEC) is None
    path.unlink()
    path.mkdir()
    assert find_kept(KEY, SPEC) is None
    keep_costs(KEY, calibration(), COST)  # can't be written there, which nobody need know
    assert find_kept(KEY, SPEC) is None and [item.name for item in cache.iterdir()] == [path.name]
    path.rmdir()
    path.write_text(text)
    assert find_kept(KEY, SPEC) is not None


def test_a_cache_that_can_not_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    keep_costs(KEY, calibration(), COST)
    assert find_kept(KEY, SPEC) is None


def test_as_many_are_kept_as_are_allowed_the_last_used_ones(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_cache, "MOST_KEPT", 3)
    for number in range(3):
        keep_costs(f"{number}", calibration(), COST)
        os.utime(cache / f"{number}.json", (number, number))
    assert find_kept("0", SPEC) is not None  # used: now it is the newest
    keep_costs("3", calibration(), COST)
    assert {path.stem for path in cache.iterdir()} == {"0", "2", "3"}


def test_builds_side_by_side_may_keep_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_cache, "MOST_KEPT", 2)

    def one(number: int) -> bool:
        keep_costs(f"{number % 4}", calibration(), COST)
        found = find_kept("0", SPEC)
        return found is None or len(found.points) == len(SPEC.runs)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(64)))
    assert {path.suffix for path in cache.iterdir()} == {".json"}


def test_the_key_holds_all_that_decides_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "net.pt2")
    v3, v4 = (PROFILE.variant(f"x86-64-v{number}") for number in (3, 4))

    def key(
        spec: CalibrationSpec = SPEC,
        target: str = "cpu-x86-64",
        variant: Any = v3,
        precision: str = "fp32",
        **changes: Any,
    ) -> str | None:
        exports, request = ExportStore(load_model(path), tmp_path), replace(REQUEST, **changes)
        subject = make_subject(exports, load_target(target), request, tmp_path)
        return cost_key(subject, spec, variant, Precision(precision))

    known = key()
    assert known is not None and key() == known
    assert key(buckets=3) == known, "what is made of costs is no matter"
    # With a number of buckets none has a price, and one that is given follows no noise.
    assert key(price_per_bucket=1.0) == key(runs=1e6, buckets=None) == known
    later = LengthDistribution.from_samples([9, 30])
    others = [
        key(choose_calibration(PlanScope(later, AXES), ("exact",))),
        key(choose_calibration(PlanScope(LENGTHS, AXES), ("exact", "pad"))),
        key(CalibrationSpec(SPEC.buckets, SPEC.runs[1:])),
        key(target="cpu-x86-64-v3"),
        key(variant=v4),
        key(precision="bf16"),
        key(backend="torch"),
        key(threads=1),
        key(buckets=None),  # takes fewer runs
    ]

    def patched(place: Any, name: str, value: Any) -> str | None:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *_: value)
            return key()

    others += [
        patched(store, "installation_id", "another version"),
        patched(cost_cache, "cpu_identity", "another CPU"),
        patched(cost_cache, "usable_cpus", 4096),
        patched(
            cost_cache, "find_toolchain", replace(cost_cache.find_toolchain("x86-64"), version="9")
        ),
    ]
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    others.append(key())
    monkeypatch.delenv("OMP_NUM_THREADS")
    save(path, seed=1)
    others.append(key())
    assert None not in others and len({known, *others}) == 1 + len(others)
    assert installation.installation_id() == store.installation_id()


def test_what_a_factory_makes_is_measured_every_time(tmp_path: Path) -> None:
    model = load_model("tests.factories.tiny_models:masked_mlp")
    subject = make_subject(ExportStore(model, tmp_path), PROFILE, REQUEST, tmp_path)
    assert cost_key(subject, SPEC, PROFILE.variants[0], FP32) is None


def planner(tmp_path: Path) -> Callable[..., Planned]:
    path = save(tmp_path / "net.pt2")

    def plan(number: int, **changes: Any) -> Planned:
        exports = ExportStore(load_model(path), tmp_path / f"{number}" / "exported")
        request = replace(REQUEST, **changes)
        profile, folder = load_target("cpu-x86-64-v3"), tmp_path / f"{number}"
        return plan_model(make_subject(exports, profile, request, folder))

    return plan


def test_a_second_plan_measures_nothing_unless_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not runnable_variants(load_target("cpu-x86-64-v3"), tmp_path):
        pytest.skip("this machine can't run x86-64-v3")
    plan = planner(tmp_path)
    measured = []
    honest = sources.calibrate

    def counted(*arguments: Any, **options: Any) -> dict[str, Any]:
        measured.append(arguments)
        return honest(*arguments, **{**options, "seconds": 0.2})

    monkeypatch.setattr(sources, "calibrate", counted)
    first = plan(1)
    assert len(measured) == 1 and not any("measured here" in note for note in first.notes)
    second = plan(2)
    assert len(measured) == 1
    (note,) = [note for note in second.notes if "measured here on" in note]
    assert first.plan.cost_model is not None
    assert first.plan.cost_model.provenance["date"] in note
    assert (second.plan.buckets, second.plan.cost_model) == (
        first.plan.buckets,
        first.plan.cost_model,
    )
    assert second.cost.bucket_size == first.cost.bucket_size > 0
    assert second.cost.load_ms == first.cost.load_ms
    plan(3, measure_again=True)
    assert len(measured) == 2
