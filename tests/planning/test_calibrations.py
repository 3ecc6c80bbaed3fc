"""Planning with a calibration: what it decides, which are refused, and what a device's costs bound."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgecompile.errors import CostError, PlanError
from edgecompile.export.store import ExportStore
from edgecompile.loaders.load import load_model
from edgecompile.planning.costs.measure import run_calibration
from edgecompile.planning.costs.sources import make_calibration_bundle
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import make_subject
from edgecompile.precision import FP32
from edgecompile.targets.profile import load_target
from tests.planning.test_planning import LENGTHS, plan_with


@pytest.fixture(scope="module")
def calibration(
    tiny_model: Path, device_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A calibration bundle of the tiny model, timed by a Python that has no torch."""
    folder = tmp_path_factory.mktemp("calibration")
    exports = ExportStore(load_model(str(tiny_model)), folder / "exported")
    request = PlanRequest(LENGTHS, max_length=32)
    subject = make_subject(exports, load_target("cpu-x86-64-v3"), request, folder)
    bundle = make_calibration_bundle(subject, FP32, folder / "calibration.ecb")
    assert {bucket.mode for bucket in bundle.spec.buckets} == {"exact", "pad"}
    assert bundle.cost.bucket_size > 0
    assert bundle.cost.bucket_build_s > 0
    assert bundle.cost.base_size > bundle.cost.bucket_size
    file = folder / "calibration.json"
    found = run_calibration(bundle.path, seconds=0.5, python=device_python)
    assert len(found.points) == len(bundle.spec.runs)
    # Run once more by hand, as a device would, to get the file itself.
    command = [device_python, "-m", "edgecompile.runtime", "bench", str(bundle.path)]
    command += ["--calibrate", str(file), "--seconds", "0.5"]
    environment = {**os.environ, "PYTHONPATH": str(bundle.path / "runtime")}
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=folder)
    return file


def test_a_device_s_costs_make_the_plan(
    calibration: Path, tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model))
    planned = plan_with(model, tmp_path, "cpu-x86-64-v3", calibration=calibration)
    curve = planned.plan.cost_model
    assert curve is not None
    assert curve.kind == "calibrated"
    assert curve.modes == ("exact", "pad")
    assert curve.provenance["variant"] == "x86-64-v3"
    assert planned.plan.max_length == 32
    assert any("% of the mean run" in note for note in planned.notes)
    again = plan_with(model, tmp_path, "cpu-x86-64-v3", calibration=calibration)
    assert json.dumps(again.plan.to_json()) == json.dumps(planned.plan.to_json())


@pytest.mark.parametrize("mode", ["exact", "pad"])
def test_a_mode_that_was_asked_for_holds_for_a_calibration_with_both(
    calibration: Path, tiny_model: Path, tmp_path: Path, mode: str
) -> None:
    document = json.loads(calibration.read_text())
    for point in document["points"]:  # whatever wasn't asked for costs nearly nothing
        point["ms"] = point["sizes"]["length"] * (1.0 if point["mode"] == mode else 0.01)
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(document))
    model = load_model(str(tiny_model))
    plan = plan_with(model, tmp_path, "cpu-x86-64-v3", calibration=file, mode=mode).plan
    assert {bucket.mode for bucket in plan.buckets} == {mode}
    assert plan.cost_model is not None and plan.cost_model.modes == (mode,)

    document["points"] = [point for point in document["points"] if point["mode"] != mode]
    file.write_text(json.dumps(document))
    with pytest.raises(CostError, match=f"`mode` {mode}: there are only costs of the mode"):
        plan_with(model, tmp_path, "cpu-x86-64-v3", calibration=file, mode=mode)


def test_a_calibration_at_another_batch_is_refused(
    calibration: Path, tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model), batch=(8, 8))
    with pytest.raises(CostError, match="nothing was measured at batch 8") as caught:
        plan_with(model, tmp_path, "cpu-x86-64-v3", calibration=calibration)
    assert "batch 1" in (caught.value.hint or "")


def test_a_price_may_be_given_or_follow_from_the_runs(
    calibration: Path, tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model))
    options = {"calibration": calibration, "mode": "pad"}
    cheap = plan_with(model, tmp_path, "cpu-x86-64-v3", price_per_bucket=0.0, **options).plan
    dear = plan_with(model, tmp_path, "cpu-x86-64-v3", price_per_bucket=1e9, **options).plan
    assert len(dear.buckets) == 1 <= len(cheap.buckets)
    few = plan_with(model, tmp_path, "cpu-x86-64-v3", runs=1, **options)
    build_ms = 1000 * few.cost.bucket_build_s
    assert build_ms > 0
    assert few.plan.price_per_bucket == pytest.approx(build_ms + few.cost.load_ms)
    assert any("over 1 runs" in note for note in few.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"structure": "0" * 64}, "another model"),
        ({"structure": None}, "recorded no structure"),
        ({"variant": "x86-64-v4"}, "another machine"),
        ({"edgecompile": "0.0.1"}, "another version"),
        ({"length_axis": "frames"}, "along frames"),
    ],
)
def test_a_calibration_of_something_else_is_refused(
    calibration: Path, tiny_model: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    document = json.loads(calibration.read_text())
    if "length_axis" in change:
        for point in document["points"]:
            point["sizes"]["frames"] = point["sizes"].pop("length")
    file = tmp_path / "changed.json"
    file.write_text(json.dumps({**document, **change}))
    with pytest.raises(CostError, match=message):
        plan_with(load_model(str(tiny_model)), tmp_path, "cpu-x86-64-v3", calibration=file)


def test_constraints_on_size_and_time_are_told_with_what_lacks(
    calibration: Path, tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model))
    limits = {"max_size": 1000, "max_build_time": 0.001}
    with pytest.raises(PlanError) as caught:
        plan_with(model, tmp_path, "cpu-x86-64-v3", calibration=calibration, **limits)
    assert "`max_size` allows 1.00 kB, but 1 bucket needs" in caught.value.message
    assert "`max_build_time` allows" in caught.value.message
