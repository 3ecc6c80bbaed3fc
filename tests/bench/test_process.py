"""The processes that a benchmark starts, and what they are asked."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from edgecompile.bench.baselines import bundle_baseline, eager_baseline, find_baseline, read_bundle
from edgecompile.bench.bench import bench_bundle
from edgecompile.bench.process import Baseline, WorkerProcess, clean_environment
from edgecompile.bench.report import BenchSettings
from edgecompile.bench.worker import make_inputs
from edgecompile.errors import BenchError
from edgecompile.runtime.base.errors import DamagedBundleError
from edgecompile.runtime.format.manifest.schema import Manifest
from tests.runtime.bundles import DummyBundle

SETTINGS = BenchSettings(threads=1)
WORKER = Path(sys.modules[WorkerProcess.__module__].__file__ or "").with_name("worker.py")

SPECS = [
    {"name": "ids", "dtype": "int64", "shape": ["batch", "length"], "bounds": [0, 30521]},
    {"name": "mask", "dtype": "int64", "shape": ["batch", "length"], "bounds": [0, 1]},
    {"name": "sound", "dtype": "float32", "shape": [2, "length"], "bounds": None},
    {"name": "level", "dtype": "float32", "shape": ["length"], "bounds": [5, 6]},
    {"name": "step", "dtype": "int32", "shape": [1], "bounds": [3, 4], "draw": [4, 4]},
]
SIZES = {"batch": 2, "length": 7}

# A model whose author prints, also past Python's own stream.
TALKATIVE = """
import os
import torch

print('{"ns": [1]}')
os.write(1, b'{"ns": [2]}\\n')

class Model(torch.nn.Module):
    def forward(self, x):
        print("running")
        return x * 2

def make():
    return Model(), {"x": torch.ones(1, 4)}, {"x": {1: "length"}}
"""


#: Seconds that no machine is too slow for: what is waited for comes, or the process ends.
NO_LIMIT = 1e6


def workload(*, dtype: str = "int64") -> dict[str, object]:
    """Inputs of the tiny model."""
    names = ("input_ids", "attention_mask")
    bounds = ([0, 39], [0, 1])
    specs = [
        {"name": name, "dtype": dtype, "shape": ["batch", "length"], "bounds": span}
        for name, span in zip(names, bounds, strict=True)
    ]
    return {"specs": specs, "sizes": {"batch": 1, "length": 5}, "length_axis": "length"}


def read_of_nothing() -> Manifest:
    """The manifest of a bundle without a batch axis, built with no options."""
    return cast(Manifest, SimpleNamespace(axes={}, plan={}))


# Inputs


def test_inputs_stay_within_their_bounds() -> None:
    made = make_inputs(SPECS, SIZES, 3)
    assert made["ids"].shape == (2, 7) and made["ids"].dtype == np.int64
    assert made["ids"].min() >= 0 and made["ids"].max() <= 30521
    assert len(np.unique(made["ids"])) > 10
    assert (made["mask"] == 1).all()
    assert made["sound"].dtype == np.float32 and 0.1 < made["sound"].std() < 10
    assert made["level"].min() >= 5 and made["level"].max() <= 6
    assert made["step"].tolist() == [4] and made["step"].dtype == np.int32


def test_inputs_depend_on_nothing_but_the_seed() -> None:
    first, again, other = (make_inputs(SPECS, SIZES, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["ids"], other["ids"])
    # What numpy promises never to change: figures of old records stay comparable.
    assert make_inputs(SPECS[:1], {"batch": 1, "length": 4}, 0)["ids"].tolist() == [
        [2732, 10799, 9845, 19648]
    ]


# Processes


def test_environments_are_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("EDGECOMPILE_VARIANT", "other")
    monkeypatch.setenv("HARMLESS", "1")
    baseline = Baseline("it", (), {}, path=("/a", "/b"), environment={"EXTRA": "2"})
    found = clean_environment(baseline, 3)
    assert found["OMP_NUM_THREADS"] == "3" and found["HARMLESS"] == "1" and found["EXTRA"] == "2"
    assert found["PYTHONPATH"] == os.pathsep.join(["/a", "/b"])
    assert not {"OMP_WAIT_POLICY", "EDGECOMPILE_VARIANT"} & set(found)


def test_a_bundle_runs_alone_in_its_process(tiny_bundle: Path, tmp_path: Path) -> None:
    before = sorted(path for path in tiny_bundle.rglob("*"))
    baseline = bundle_baseline("it", tiny_bundle, SETTINGS, tmp_path)
    with WorkerProcess(baseline, 1) as worker:
        opened = worker.open(workload(), timeout=NO_LIMIT)
        assert worker.spawned_ns < opened["begun_ns"] < opened["opened_ns"]
        assert opened["facts"]["threads"] == 1 and opened["loaded"] == []
        assert Path(opened["facts"]["runtime"]).is_relative_to(tiny_bundle.resolve() / "runtime")
        answer = worker.run([3, 9, 3], seed=1, timeout=NO_LIMIT)
        assert len(answer["ns"]) == 3 and min(answer["ns"]) > 0
        assert 0 < opened["memory"]["resident"] < worker.memory()["resident"]
        maps = Path(f"/proc/{worker.pid}/maps")
        assert not maps.exists() or "libtorch" not in maps.read_text()
        worker.save([3, 9], tmp_path / "out.npz", seed=1, timeout=NO_LIMIT)
        with np.load(tmp_path / "out.npz", allow_pickle=False) as saved:
            assert {name.partition(".")[0] for name in saved} == {"3", "9"}
    assert sorted(path for path in tiny_bundle.rglob("*")) == before, "nothing may fall into it"
    parts = baseline.measure_size(opened["facts"])
    assert set(parts) == {"weights", "programs", "native_runtime", "python_runtime"}
    whole = sum(path.stat().st_size for path in tiny_bundle.rglob("*") if path.is_file())
    assert min(parts.values()) > 0 and sum(parts.values()) < whole


def test_a_bundle_with_planted_files_does_not_start(tmp_path: Path) -> None:
    bundle = DummyBundle(tmp_path / "it.ecb")
    bundle.write()
    planted = bundle.folder / "runtime" / "sitecustomize.py"
    planted.parent.mkdir()
    planted.write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    with pytest.raises(DamagedBundleError, match=r"runtime: isn't listed"):
        bundle_baseline("it", bundle.folder, SETTINGS, tmp_path)
    assert not (tmp_path / "trace").exists()


def idle(command: tuple[str, ...] = (sys.executable, str(WORKER), "bundle")) -> Baseline:
    return Baseline("it", command, {"path": "/no/such.ecb", "threads": 1, "torch": False})


@pytest.mark.slow
def test_errors_of_a_process_are_reported() -> None:
    baseline = eager_baseline("/no/such.pt2", read_of_nothing(), 1)
    with WorkerProcess(baseline, 1) as worker:
        with pytest.raises(BenchError, match=r"eager failed to open: ModelError: .*such\.pt2"):
            worker.open(workload(), timeout=NO_LIMIT)
        with pytest.raises(BenchError, match="failed to open"):
            worker.open(workload(), timeout=NO_LIMIT)  # the process is still there


def test_a_process_that_dies() -> None:
    with WorkerProcess(idle(), 1) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(BenchError, match="the process of it ended with signal SIGKILL"):
            worker.open(workload(), timeout=NO_LIMIT)


def test_a_process_that_ends_says_why(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho cannot start >&2\nexit 7\n")
    program.chmod(0o755)
    with (
        WorkerProcess(idle((str(program),)), 1) as worker,
        pytest.raises(BenchError, match=r"(?s)exit code 7.*cannot start"),
    ):
        worker.open(workload(), timeout=NO_LIMIT)
    with pytest.raises(BenchError, match="the process of it can't be started"):
        WorkerProcess(idle((str(tmp_path / "absent"),)), 1)


def test_a_process_that_hangs() -> None:
    with WorkerProcess(idle(), 1) as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
        with pytest.raises(BenchError, match=r"it didn't open within 0\.2 seconds"):
            worker.open(workload(), timeout=0.2)


def test_processes_end_with_their_driver() -> None:
    with WorkerProcess(idle(), 1) as worker:
        pid = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_what_a_model_prints_spoils_nothing(tmp_path: Path) -> None:
    source = tmp_path / "talkative.py"
    source.write_text(TALKATIVE)
    baseline = eager_baseline(f"{source}:make", read_of_nothing(), 1)
    assert baseline.settings["spec"] == f"{source}:make"
    specs = [{"name": "x", "dtype": "float32", "shape": [1, "length"], "bounds": None}]
    with WorkerProcess(baseline, 1) as worker:
        worker.open({"specs": specs, "sizes": {}, "length_axis": "length"}, timeout=NO_LIMIT)
        assert len(worker.run([4, 5], seed=0, timeout=NO_LIMIT)["ns"]) == 2


# What --against names


def test_names_of_baselines(tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = read_bundle(tiny_bundle)
    for text in ("egaer", "=true", "mine=", "onnxruntime"):
        with pytest.raises(BenchError, match="is nothing to measure against") as caught:
            find_baseline(text, None, manifest, SETTINGS, tmp_path)
        assert "NAME=COMMAND" in str(caught.value.hint)
    with pytest.raises(BenchError, match="a bundle doesn't hold"):
        find_baseline("eager", None, manifest, SETTINGS, tmp_path)
    mine = find_baseline("mine=prog 'a b' x=1", None, manifest, SETTINGS, tmp_path)
    assert mine.name == "mine" and mine.command == ("prog", "a b", "x=1")
    other = find_baseline(f"{tiny_bundle}/", None, manifest, SETTINGS, tmp_path)
    assert other.name == tiny_bundle.stem and other.bundle == tiny_bundle.resolve()


def test_a_command_of_the_user_is_measured(tiny_bundle: Path, tmp_path: Path) -> None:
    """It needs nothing of edgecompile, and answers the least that the protocol asks for."""
    program = tmp_path / "mine.py"
    program.write_text(
        textwrap.dedent("""
            import json, sys
            for line in sys.stdin:
                request = json.loads(line)
                if request["op"] == "close":
                    break
                if request["op"] == "open":
                    assert request["settings"] == {"threads": 1} and request["specs"]
                lengths = request.get("lengths", [])
                print(json.dumps({"ns": [1000 * n for n in lengths]}), flush=True)
        """)
    )
    settings = BenchSettings(threads=1, rounds=1, runs=3, warmup_rounds=0, cold_runs=1, pause_s=0.0)
    command = f"mine={sys.executable} {program}"
    report = bench_bundle(tiny_bundle, settings, against=[command], cache=tmp_path)
    mine = report.results[1]
    assert mine.name == "mine" and mine.cold is not None and mine.cold.total_s > 0
    assert report.by_length["mine"] == {n: n / 1000 for n in report.by_length["mine"]}
    assert mine.to_json()["bytes"] is None
