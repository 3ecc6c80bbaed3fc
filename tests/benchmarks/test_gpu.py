"""benchmarks/gpu.py on a fake of CUDA's driver: that it runs, not what it measures."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu import main
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import TritonBundle


def test_it_times_every_size_that_the_bundle_takes(
    fake_driver: FakeCudart, triton_bundle: TritonBundle, tmp_path: Path
) -> None:
    path, output = triton_bundle.write(), tmp_path / "report.json"
    options = ["--lengths", "3,50,99", "--batches", "1,2,3", "--rounds", "2", "--cold", "1"]
    assert main([path, *options, "--json", str(output)]) == 0
    report = json.loads(output.read_text())
    sizes = [(row["length"], row["batch"]) for row in report["sizes"]]
    assert sizes == [(3, 1), (50, 1), (3, 2), (50, 2)]
    assert set(report["sizes"][0]["us"]) == {
        "call: default", "call: planned", "call: reduce-overhead",
        "device: plain", "device: graph", "host: plain", "host: graph",
    }  # fmt: skip
    assert report["cold"]["libraries"] == ["libfake_cuda.so"] or report["cold"]["process_ms"] > 0


def test_the_smoke_test_sees_wrong_results(
    fake_driver: FakeCudart, triton_bundle: TritonBundle, tmp_path: Path
) -> None:
    output = tmp_path / "report.json"
    assert main([triton_bundle.write(), "--smoke", "--json", str(output)]) == 0
    report = json.loads(output.read_text())
    assert report["ok"] and report["runs"] == 4 and report["differing"] == []
    assert all(mode["ok"] for mode in report["modes"].values())
    files = triton_bundle.bundle.files
    files["golden/0-hint.npz"], files["golden/1-hint.npz"] = (
        files["golden/0-hint.npz"],
        files["golden/0-hint.npz"],
    )
    triton_bundle.gpu["tolerance"] = {"atol": 0.0, "rtol": 0.0}
    wrong = files["weights.fp32"].replace(b"\x00\x00\x80\x3f", b"\x00\x00\x00\x40", 1)
    files["weights.fp32"] = wrong
    triton_bundle.bundle.folder = tmp_path / "other.ecb"
    assert main([triton_bundle.write(), "--smoke", "--json", str(output)]) == 1
