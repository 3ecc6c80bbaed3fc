"""tests/gpu/check.py goes through all of its stages; on a fake of CUDA, which proves no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_gpu.build import FakeCudart

SCRIPT = Path(__file__).with_name("check.py")
SMALL = {"edges": "16,32", "lengths": "5,16,20,32", "width": 32, "layers": 1, "heads": 2}


def test_every_stage_is_gone_through(fake_cudart: FakeCudart) -> None:
    options = [item for name, value in SMALL.items() for item in (f"--{name}", str(value))]
    command = [sys.executable, str(SCRIPT), "--fake", str(fake_cudart.path), *options]
    command += ["--kinds", "eager", "--models", "plain", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["works"] == ["eager", "plain"]
    (attempt,) = report["attempts"]
    failed = {name: item["error"] for name, item in attempt["stages"].items() if not item["ok"]}
    assert failed == {} and attempt["ok"] and attempt["ended"] == 0
    assert len(attempt["stages"]) == 11
    timings = attempt["stages"]["timings"]["result"]
    assert list(timings["median_ms"]) == ["eager", "default", "graphs", "one_shape", "zero_copy"]
    assert attempt["stages"]["graphs"]["result"]["graphs"] == 2
    assert report["sticky"]["ok"], report["sticky"]


@pytest.mark.slow
def test_what_ends_a_process_is_recorded(fake_cudart: FakeCudart) -> None:
    command = [sys.executable, str(SCRIPT), "--fake", str(fake_cudart.path) + ".absent"]
    command += ["--kinds", "eager", "--models", "plain", "--rounds", "1", "--layers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["works"] is None
    stages = report["attempts"][0]["stages"]
    assert "can't be loaded" in stages["libcudart"]["error"]
    assert not any(stages[name]["ok"] for name in ("default", "graphs"))
