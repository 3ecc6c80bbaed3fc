"""A model of which nothing varies: built, run, verified and planned without lengths."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgecompile.bundle.verify import device_environment
from edgecompile.loaders.load import load_model
from tests.cli.command import run
from tests.factories import sizes

MODEL = f"{Path(sizes.__file__)}:picture"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one-size") / "picture.ecb"
    built = run("build", MODEL, "--target", "cpu-x86-64-v3", "--output", str(path))
    assert built.exit_code == 0, built.stderr
    assert "There is nothing to plan: picture has one size of batch, 1." in built.stderr
    return path


def test_it_runs_on_a_device(bundle: Path, device_python: str, tmp_path: Path) -> None:
    model = load_model(MODEL)
    inputs = model.make_example({"batch": 1}, seed=3)
    np.save(tmp_path / "x.npy", inputs["input"].numpy())
    code = (
        "import sys, numpy as np\n"
        "from edgecompile.runtime import open_bundle\n"
        "with open_bundle(sys.argv[1]) as model:\n"
        "    got = model.run({'input': np.load('x.npy')})\n"
        "np.save('y.npy', got['output'])\n"
    )
    environment = device_environment(bundle)
    command = [device_python, "-c", code, os.fspath(bundle)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    want = model.run(inputs)["output"].numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=2e-5, atol=1e-6)
    for arguments in (["selftest", os.fspath(bundle)], ["info", os.fspath(bundle)]):
        command = [device_python, "-m", "edgecompile.runtime", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_it_is_inspected_and_verified(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["axes"] == {"batch": {"lo": 1, "hi": 1}}
    assert run("inspect", str(bundle)).exit_code == 0
    verified = run("verify", str(bundle), "--model", MODEL, "--json")
    assert verified.exit_code == 0, verified.stderr
    report = json.loads(verified.stdout)
    assert report["lengths"] == {"axis": "batch", "run": 1, "total": 1}
    assert "the one size that there is" in run("verify", str(bundle)).stdout
    assert "the one size that there is" in (bundle / "reports" / "report.html").read_text()


def test_a_plan_says_that_there_is_nothing_to_plan(tmp_path: Path) -> None:
    made = run("plan", "--model", MODEL, "--target", "cpu-x86-64-v3", "--work-dir", str(tmp_path))
    assert made.exit_code == 0, made.stderr
    assert "There is nothing to plan: picture has one size of batch, 1." in made.stdout
    assert "after padding" not in made.stdout and "few" not in made.stdout
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [(bucket["lo"], bucket["hi"]) for bucket in plan["buckets"]] == [(1, 1)]


def test_lengths_and_batches_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("5\n17\n")
    output = ["--target", "cpu-x86-64-v3", "--output", str(tmp_path / "x.ecb")]
    given = run("build", MODEL, "--lengths", str(tmp_path / "lengths.txt"), *output)
    assert given.exit_code != 0
    assert "takes inputs of one size only, but the lengths given are 5 to 17" in given.stderr
    assert "leave them out" in given.stderr
    batch = run("build", MODEL, "--batch", "1:8", *output)
    assert batch.exit_code != 0 and "none of its axes is 'batch'" in batch.stderr
    assert 'axes={"input": {0: "batch"}}' in batch.stderr
    longest = run("build", MODEL, "--max-length", "8", *output)
    assert longest.exit_code != 0 and not (tmp_path / "x.ecb").exists()
