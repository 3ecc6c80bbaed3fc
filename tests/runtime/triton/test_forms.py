"""Buckets with a second program for few rows: which one runs, in every mode.

The programs are written by hand and CUDA's driver is a fake; those for few rows launch one kernel more often, so that
the calls of the driver tell which one ran.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.commands.info import describe_bundle, format_bundle
from edgecompile.runtime.measure.tune import format_tune, tune_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.triton_bundle import VARIANT, TritonBundle, make_inputs
from tests.runtime.bundles import make_case
from tests.runtime.golden_files import write_case

MORE = 5
OFTEN = f"TOY_REPEAT={MORE + 1}"


@pytest.fixture
def split(triton_bundle: TritonBundle) -> TritonBundle:
    """A bundle whose first bucket, of lengths 1 to 32, has another program for up to 8 rows."""
    triton_bundle.add_few(8, OFTEN, bucket=0)
    return triton_bundle


def launches(driver: FakeCudart, model: object, length: int, batch: int = 1) -> int:
    """Kernels that a run launches; it gives what it should."""
    before = driver.calls("cuLaunchKernel")
    inputs = make_inputs(length, batch)
    got = model.run(inputs)  # type: ignore[attr-defined]
    for name, want in embed(inputs).items():
        np.testing.assert_array_equal(got[name], want)
    return driver.calls("cuLaunchKernel") - before


def test_rows_choose_the_program(fake_driver: FakeCudart, split: TritonBundle) -> None:
    with open_bundle(split.write(), mode="default") as model:
        assert model.info["few_rows"] == {"0": 8}
        own = launches(fake_driver, model, 9)
        for length, batch, more in [
            (8, 1, MORE),
            (1, 1, MORE),
            (4, 2, MORE),
            (5, 2, 0),
            (32, 1, 0),
            (8, 1, MORE),
        ]:
            assert launches(fake_driver, model, length, batch) == own + more, (length, batch)
        assert launches(fake_driver, model, 40) == own  # another bucket


def test_info_tells_of_both(fake_driver: FakeCudart, split: TritonBundle) -> None:
    report = describe_bundle(split.write())
    assert f"bucket 0  {VARIANT}: another program for at most 8 rows" in format_bundle(report)
    size = len(split.bundle.files[split.programs[0]])
    assert report["device_bytes"]["programs"] > 2 * size


def test_kernels_of_both_are_loaded_before_the_first_run(
    fake_driver: FakeCudart, split: TritonBundle
) -> None:
    with open_bundle(split.write(), mode="default") as model:
        loaded = fake_driver.calls("cuModuleLoadDataEx")
        for length in (8, 9):
            launches(fake_driver, model, length)
        assert fake_driver.calls("cuModuleLoadDataEx") == loaded == 3 * 4  # kernels of each program


def test_graphs_are_of_the_program_for_their_shapes(
    fake_driver: FakeCudart, split: TritonBundle
) -> None:
    with open_bundle(split.write()) as model:
        for length in (8, 9, 8, 9) * 10:
            launches(fake_driver, model, length)
        assert model.info["graphs"] == 2 and launches(fake_driver, model, 8) == 0


def test_filled_up_runs_take_the_program_for_many(
    fake_driver: FakeCudart, split: TritonBundle
) -> None:
    with open_bundle(split.write(), mode="reduce-overhead") as model:
        before = fake_driver.calls("cuLaunchKernel")
        launches(fake_driver, model, 8)
        full = fake_driver.calls("cuLaunchKernel") - before
        before = fake_driver.calls("cuLaunchKernel")
        launches(fake_driver, model, 9)
        assert fake_driver.calls("cuLaunchKernel") - before == full


def test_each_program_is_tuned_by_itself(
    fake_driver: FakeCudart, split: TritonBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one for few rows is slow, and has a faster alternative; the others have wrong ones."""
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    split.add_few(8, "TOY_REPEAT=400", bucket=0)
    split.add_alternatives("TOY_FAULT=7")
    split.variant["few"][0]["alternatives"] = [split.programs[0]]
    inputs = make_case(20)[0]
    split.bundle.files["golden/0-upper.npz"] = write_case(inputs, embed(inputs))
    golden = split.bundle.document["golden"]
    golden.append({"bucket": 0, "case": "upper", "file": "golden/0-upper.npz"})
    path = split.write()
    report = tune_bundle(path, seconds=0.0)
    assert report["choice"] == [0, 0, 1]
    few = report["buckets"][2]
    assert few["rows"] == 8 and few["sizes"] == [{"batch": 1, "length": 1}]
    assert report["buckets"][0]["sizes"][0] == {"batch": 1, "length": 16}
    assert sum("candidate 2 is dropped" in note for note in report["notes"]) == 2
    assert any("for at most 8 rows" in line for line in format_tune(report))
    with open_bundle(path, mode="default") as model:
        assert model.info["tuned"]["choice"] == [0, 0, 1]
        assert launches(fake_driver, model, 8) == launches(fake_driver, model, 9)
