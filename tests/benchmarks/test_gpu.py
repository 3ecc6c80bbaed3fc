"""benchmarks/gpu/gpu.py on a fake of CUDA's driver: that it runs, not what it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.gpu import main
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import TritonBundle, TritonDecoder

REPOSITORY = Path(__file__).resolve().parents[2]


def test_it_times_every_size_that_the_bundle_takes(
    fake_driver: FakeCudart, triton_bundle: TritonBundle, tmp_path: Path
) -> None:
    path, output = triton_bundle.write(), tmp_path / "report.json"
    options = ["--lengths", "3,50,99", "--batches", "1,2,3", "--rounds", "2", "--cold", "1"]
    beside = ["--beside", f"{sys.executable},{path}"]
    assert main([path, *options, *beside, "--json", str(output)]) == 0
    report = json.loads(output.read_text())
    sizes = [(row["sizes"]["length"], row["sizes"]["batch"]) for row in report["sizes"]]
    assert sizes == [(3, 1), (50, 1), (3, 2), (50, 2)]
    ways = (
        "call: default", "call: planned", "call: reduce-overhead",
        "device: plain", "device: graph", "host: plain", "host: graph",
    )  # fmt: skip
    name = Path(path).stem
    assert set(report["sizes"][0]["us"]) == {*ways, *(f"{name} {way}" for way in ways)}
    assert all(figure > 0 for row in report["sizes"] for figure in row["us"].values())
    assert 0 < report["cold"]["answer_ms"] <= report["cold"]["process_ms"]
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


@pytest.mark.slow
def test_one_command_checks_bundles_of_both_kinds(
    fake_driver: FakeCudart, triton_bundle: TritonBundle, tmp_path: Path
) -> None:
    """scripts/gpu-check, with a compute-sanitizer that only runs what it is given."""
    decoder = TritonDecoder(tmp_path / "decoder.ecb")
    tools = tmp_path / "bin"
    tools.mkdir()
    sanitizer = tools / "compute-sanitizer"
    sanitizer.write_text('#!/bin/sh\n[ "$2" != initcheck ] || exit 99\nshift 6\nexec "$@"\n')
    sanitizer.chmod(0o755)
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    bundles = [triton_bundle.write(), decoder.write()]
    command = [sys.executable, "scripts/gpu-check", "--installed", "--seconds", "0.05"]

    def check(*more: str) -> tuple[int, list[dict[str, object]], str]:
        output = tmp_path / "checked"
        done = subprocess.run(
            [*command, "--output", str(output), *bundles, *more],
            cwd=REPOSITORY,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
        rows = json.loads((output / "gpu-check.json").read_text())
        return done.returncode, rows, done.stdout + done.stderr

    code, rows, text = check()
    assert code == 1, text
    assert [row["sanitizers"] for row in rows] == [
        "memcheck ok, racecheck ok, initcheck FAILED"
    ] * 2
    assert [row.get("texts") for row in rows] == [None, 9] and rows[0]["cases"] == 6
    assert [row.get("batches") for row in rows] == [2, None]
    assert all(len(row["failures"]) == 1 for row in rows), text
    sanitizer.unlink()
    code, rows, text = check()
    assert code == 0 and all(row["answer"] == "ok" for row in rows), text
