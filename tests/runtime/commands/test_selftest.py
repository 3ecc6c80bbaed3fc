"""selftest: verdicts over golden vectors and over cases of another folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.base.errors import DamagedBundleError
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.commands.selftest import format_selftest, run_selftest
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.runtime.golden_files import write_case


def test_the_bundles_own_vectors(native_bundle: str) -> None:
    said: list[str] = []
    report = run_selftest(native_bundle, say=said.append)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["ok"] and report["failed"] == 0 and report["missing_buckets"] == []
    assert len(said) == 1
    for item in report["cases"]:
        assert item["ok"] and item["ms"] > 0
        assert 0 <= item["max_abs_error"] <= item["limit"]
    assert "numpy" in report["imported"] and "json" in report["imported"]
    lines = format_selftest(report)
    assert lines[-1].startswith("PASSED: ") and len(lines) == len(report["cases"]) + 2


def test_cases_of_a_folder(native_bundle: str, tmp_path: Path) -> None:
    with open_bundle(native_bundle) as model:
        manifest = model.manifest
        sizes = {axis: extent.lo for axis, extent in manifest.buckets[0].axes.items()}
        inputs = make_inputs(manifest, sizes, 3)
        outputs = model.run_bucket(0, inputs)
    wrong = {name: array.copy() for name, array in outputs.items()}
    wrong[manifest.outputs[-1].name].flat[0] += 1
    odd = {name: array.copy() for name, array in outputs.items()}
    odd[manifest.outputs[0].name].flat[0] = np.nan
    bucket = len(manifest.buckets)
    files = {
        "0-good.npz": write_case(inputs, outputs),
        "0-wrong.npz": write_case(inputs, wrong),
        "0-odd.npz": write_case(inputs, odd),
        "0-broken.npz": b"PK",
        f"{bucket}-nowhere.npz": write_case(inputs, outputs),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    report = run_selftest(native_bundle, cases=str(tmp_path), verify="fast")
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert not report["ok"] and report["failed"] == 4
    verdicts = {item["case"]: item for item in report["cases"]}
    assert verdicts["good"]["ok"] and verdicts["good"]["max_abs_error"] == 0
    assert verdicts["wrong"]["max_abs_error"] == pytest.approx(1, rel=1e-3)
    assert "differs by" in verdicts["wrong"]["error"]
    assert "NaN" in verdicts["odd"]["error"]
    assert "[golden-archive]" in verdicts["broken"]["error"]
    assert verdicts["broken"]["max_abs_error"] is None
    assert "there is no bucket" in verdicts["nowhere"]["error"]
    assert format_selftest(report)[-1].startswith("FAILED: 1 of 5 cases ok")


def test_a_bucket_without_a_vector_fails(native_copy: Path) -> None:

    place = native_copy / "manifest.json"
    manifest = parse_manifest(place.read_bytes())
    place.unlink()
    place.write_bytes(manifest._replace(golden=()).to_bytes())
    report = run_selftest(str(native_copy))
    assert not report["ok"] and report["cases"] == []
    assert report["missing_buckets"] == list(range(len(manifest.buckets)))


def test_damage_anywhere_is_found_first(native_copy: Path) -> None:
    manifest = parse_manifest((native_copy / "manifest.json").read_bytes())
    place = native_copy / manifest.golden[0].file
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.unlink()
    place.write_bytes(data)
    with pytest.raises(DamagedBundleError, match="golden/"):
        run_selftest(str(native_copy))
