"""Contenders, and the processes they run in."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import edgecompile.bench.contenders.process as process_module
from edgecompile.bench.agreement import measure_agreement
from edgecompile.bench.contenders import (
    CONTENDERS,
    BundleContender,
    Launch,
    Workshop,
    available_contenders,
    check_needs,
    resolve_contenders,
)
from edgecompile.bench.contenders.executorch import PYTHON_VARIABLE
from edgecompile.bench.contenders.process import WorkerProcess, clean_environment
from edgecompile.bench.contenders.sizes import folder_bytes, package_bytes
from edgecompile.bench.contenders.worker.inputs import make_inputs
from edgecompile.errors import BenchError, MissingDependencyError, ModelError
from edgecompile.runtime.errors import DamagedBundleError
from tests.needs import lack
from tests.runtime.bundles import DummyBundle

pytestmark = pytest.mark.slow

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


def workload(*, dtype: str = "int64") -> dict[str, object]:
    """Inputs of the tiny model."""
    names = ("input_ids", "attention_mask")
    bounds = ([0, 39], [0, 1])
    specs = [
        {"name": name, "dtype": dtype, "shape": ["batch", "length"], "bounds": span}
        for name, span in zip(names, bounds, strict=True)
    ]
    return {"specs": specs, "sizes": {"batch": 1, "length": 5}, "length_axis": "length"}


@pytest.fixture(scope="module")
def workshop(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(
        str(tiny_model),
        {"batch": (1, 2), "length": (1, 32)},
        threads=2,
        cache=tmp_path_factory.mktemp("cache"),
        python=sys.executable,
    )


def empty_workshop(folder: Path) -> Workshop:
    return Workshop(None, {}, threads=1, cache=folder, python=sys.executable)


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


# Names and needs


def test_resolving_names(tmp_path: Path) -> None:
    found = resolve_contenders(["eager", "eager", "other/a.ecb", "b/a.ecb/"])
    assert [item.name for item in found] == ["eager", "a", "a'"]
    assert [item.needs_model for item in found] == [True, False, False]
    with pytest.raises(BenchError, match="unknown contenders: egaer, x") as caught:
        resolve_contenders(["egaer", "eager", "x"])
    assert "openvino" in str(caught.value.hint)


def test_missing_packages_are_all_named() -> None:
    @dataclass(frozen=True)
    class Absent:
        name: str
        needs: tuple[str, ...] = ("torch", "no_such_package")
        needs_model: bool = False
        precision: str = "fp32"
        prepare = CONTENDERS["eager"].prepare
        measure_size = CONTENDERS["eager"].measure_size

    check_needs([CONTENDERS["eager"]])
    with pytest.raises(MissingDependencyError, match="one needs no_such_package; two needs"):
        check_needs([Absent("one"), CONTENDERS["eager"], Absent("two")])
    assert "eager" in available_contenders()


def test_without_a_model_nothing_can_be_made_from_it(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="a bundle doesn't hold it"):
        CONTENDERS["eager"].prepare(empty_workshop(tmp_path))
    wrong = Workshop("no/such", {}, threads=1, cache=tmp_path, python=sys.executable)
    with pytest.raises(ModelError):
        CONTENDERS["eager"].prepare(wrong)


# The cache


def test_artefacts_are_made_once(workshop: Workshop) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("made")

    first = workshop.artefact("thing", {"version": "1"}, make)
    assert workshop.artefact("thing", {"version": "1"}, make) == first
    assert (first / "file").read_text() == "made" and len(calls) == 1
    assert workshop.artefact("thing", {"version": "2"}, make) != first
    assert json.loads((first / "request.json").read_text())["version"] == "1"


def test_a_failure_leaves_nothing_in_the_cache(workshop: Workshop) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise BenchError("no")

    before = sorted(workshop.cache.iterdir())
    with pytest.raises(BenchError, match="no"):
        workshop.artefact("failing", {}, fail)
    assert sorted(workshop.cache.iterdir()) == before


def test_the_fingerprint_is_of_graph_ranges_and_weights(workshop: Workshop) -> None:
    def another(**changes: object) -> Workshop:
        ranges = {"batch": (1, 2), "length": (1, 32), **changes}
        return Workshop(
            workshop.spec,
            ranges,  # type: ignore[arg-type]
            threads=1,
            cache=workshop.cache,
            python=sys.executable,
        )

    same, wider, changed = another(), another(length=(1, 40)), another()
    assert same.fingerprint == workshop.fingerprint
    assert wider.fingerprint != workshop.fingerprint
    weight = next(iter(changed.exported.program.state_dict.values()))
    weight.data.view(-1)[0] += 1
    assert changed.fingerprint != workshop.fingerprint


# Sizes


def test_package_sizes_follow_requirements_and_leave_numpy_out() -> None:
    found = package_bytes("Torch", "no-such-package")
    assert found["torch"] > 10**8
    assert {"sympy", "filelock", "typing-extensions"} <= set(found)
    assert "numpy" not in found and "no-such-package" not in found


def test_folder_sizes(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "inner" / "b").write_bytes(b"345")
    assert folder_bytes(tmp_path) == 5
    assert folder_bytes(tmp_path, ["inner/b"]) == 3


# Processes


def test_environments_are_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("EDGECOMPILE_VARIANT", "other")
    monkeypatch.setenv("HARMLESS", "1")
    launch = Launch("bundle", {}, sys.executable, ("/a", "/b"), {"EXTRA": "2"})
    found = clean_environment(launch, 3)
    assert found["OMP_NUM_THREADS"] == "3" and found["HARMLESS"] == "1" and found["EXTRA"] == "2"
    assert found["PYTHONPATH"] == os.pathsep.join(["/a", "/b"])
    assert not {"OMP_WAIT_POLICY", "EDGECOMPILE_VARIANT"} & set(found)


def test_a_bundle_runs_alone_in_its_process(tiny_bundle: Path, tmp_path: Path) -> None:
    before = sorted(path for path in tiny_bundle.rglob("*"))
    contender = BundleContender("it", tiny_bundle)
    workshop = empty_workshop(tmp_path)
    launch = contender.prepare(workshop)
    with WorkerProcess("it", launch, 1) as worker:
        opened = worker.open(launch, workload(), timeout=60)
        assert worker.spawned_ns < opened["started_ns"] <= opened["begun_ns"] < opened["opened_ns"]
        assert opened["facts"]["threads"] == 1
        assert Path(opened["facts"]["runtime"]).is_relative_to(tiny_bundle.resolve() / "runtime")
        answer = worker.run([3, 9, 3], seed=1, timeout=60)
        assert len(answer["ns"]) == 3 and min(answer["ns"]) > 0
        facts = worker.facts()
        assert facts["loaded"] == []
        worker.save([3, 9], tmp_path / "out.npz", seed=1, timeout=60)
        with np.load(tmp_path / "out.npz", allow_pickle=False) as saved:
            assert {name.partition(".")[0] for name in saved} == {"3", "9"}
    assert sorted(path for path in tiny_bundle.rglob("*")) == before, "nothing may fall into it"
    parts = contender.measure_size(workshop, launch, opened["facts"])
    assert set(parts) == {"weights", "programs", "native runtime", "Python runtime"}
    whole = folder_bytes(tiny_bundle)
    assert min(parts.values()) > 0 and sum(parts.values()) < whole


def test_a_bundle_with_planted_files_does_not_start(tmp_path: Path) -> None:
    bundle = DummyBundle(tmp_path / "it.ecb")
    bundle.write()
    planted = bundle.folder / "runtime" / "sitecustomize.py"
    planted.parent.mkdir()
    planted.write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    with pytest.raises(DamagedBundleError, match=r"runtime: isn't listed"):
        BundleContender("it", bundle.folder).prepare(empty_workshop(tmp_path))
    assert not (tmp_path / "trace").exists()


def test_errors_of_a_contender_are_told(tmp_path: Path) -> None:
    launch = Launch("onnx_runtime", {"path": "/no/such.onnx", "threads": 1}, sys.executable)
    pytest.importorskip("onnxruntime")
    with WorkerProcess("it", launch, 1) as worker:
        with pytest.raises(BenchError, match=r"it failed to open: NoSuchFile: .*such\.onnx"):
            worker.open(launch, workload(), timeout=60)
        assert worker.facts()["loaded"] == ["onnxruntime"], "the process is still there"


def test_a_contender_that_dies() -> None:
    with WorkerProcess("it", Launch("bundle", {}, sys.executable), 1) as worker:
        worker.facts()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(BenchError, match="the process of it ended with signal SIGKILL"):
            worker.facts()


def test_a_contender_that_ends_says_why(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho cannot start >&2\nexit 7\n")
    program.chmod(0o755)
    with (
        WorkerProcess("it", Launch("bundle", {}, str(program)), 1) as worker,
        pytest.raises(BenchError, match=r"(?s)exit code 7.*cannot start"),
    ):
        worker.facts()
    with pytest.raises(BenchError, match="the process of it can't be started"):
        WorkerProcess("it", Launch("bundle", {}, str(tmp_path / "absent")), 1)


def test_a_contender_that_hangs() -> None:
    with WorkerProcess("it", Launch("bundle", {}, sys.executable), 1) as worker:
        worker.facts()
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(BenchError, match=r"it didn't facts within 0\.2 seconds"):
            worker.facts(timeout=0.2)


def test_processes_end_with_their_driver() -> None:
    with WorkerProcess("it", Launch("bundle", {}, sys.executable), 1) as worker:
        worker.facts()
        pid = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_a_model_prints_spoils_nothing(tmp_path: Path) -> None:
    source = tmp_path / "talkative.py"
    source.write_text(TALKATIVE)
    workshop = Workshop(f"{source}:make", {}, threads=1, cache=tmp_path, python=sys.executable)
    launch = CONTENDERS["eager"].prepare(workshop)
    assert launch.settings["spec"] == f"{source}:make"
    specs = [{"name": "x", "dtype": "float32", "shape": [1, "length"], "bounds": None}]
    with WorkerProcess("it", launch, 1) as worker:
        worker.open(launch, {"specs": specs, "sizes": {}, "length_axis": "length"}, timeout=120)
        assert len(worker.run([4, 5], seed=0, timeout=60)["ns"]) == 2


def test_the_worker_imports_nothing_of_the_builder() -> None:
    """It has to work beside the runtime in a bundle, and cost other runtimes nothing."""
    with WorkerProcess("it", Launch("bundle", {}, sys.executable), 1) as worker:
        modules = Path(f"/proc/{worker.pid}/maps")
        worker.facts()
        if modules.exists():
            assert "libtorch" not in modules.read_text()
    folder = process_module._FOLDER
    for path in folder.glob("*.py"):
        text = path.read_text()
        allowed = {"bundle.py": "edgecompile.runtime", "eager.py": "edgecompile.models.loaded"}
        for line in text.splitlines():
            if line.strip().startswith(("import edgecompile", "from edgecompile")):
                assert path.name in allowed, f"{path.name}: {line}"


# Each of them on the tiny model


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-opset23", "openvino"])
def test_a_contender_agrees_with_eager(name: str, workshop: Workshop, tmp_path: Path) -> None:
    check_agreement(name, workshop, tmp_path)


@pytest.mark.parametrize("name", ["aoti", "torch-compile"])
def test_a_compiled_contender_agrees_with_eager(
    name: str, workshop: Workshop, tmp_path: Path
) -> None:
    launch = check_agreement(name, workshop, tmp_path)
    if name == "aoti":
        import zipfile

        with zipfile.ZipFile(launch.settings["path"]) as package:
            (wrapper,) = [item for item in package.namelist() if item.endswith("wrapper.cpp")]
            source = package.read(wrapper).decode()
        assert "linear_pointwise" in source, "frozen: weights are packed for oneDNN"


@pytest.mark.parametrize("name", ["onnxruntime-int8", "onnxruntime-int8-reduced", "openvino-int8"])
def test_a_narrow_contender_is_near_eager_and_smaller(
    name: str, workshop: Workshop, tmp_path: Path
) -> None:
    assert CONTENDERS[name].precision == "int8"
    launch = check_agreement(name, workshop, tmp_path, cosine=0.95, error=0.5)
    wide = CONTENDERS[name.partition("-")[0]].prepare(workshop)
    assert "int8" in launch.settings["path"] and launch.settings != wide.settings
    with WorkerProcess(name, launch, 2) as worker, WorkerProcess("wide", wide, 2) as reference:
        worker.open(launch, workload(), timeout=300)
        reference.open(wide, workload(), timeout=300)
        (tmp_path / "narrow").mkdir()
        found = measure_agreement(reference, {name: worker}, [7], tmp_path / "narrow", seed=1)
    assert found[name].max_abs_error > 1e-5, "it isn't the wide one that was run"


def test_reduced_weights_are_another_file(workshop: Workshop) -> None:
    pytest.importorskip("onnxruntime")
    names = ("onnxruntime-int8", "onnxruntime-int8-reduced")
    paths = {CONTENDERS[name].prepare(workshop).settings["path"] for name in names}
    assert len(paths) == 2


def test_bfloat16_is_refused_where_openvino_would_ignore_it(
    workshop: Workshop, tmp_path: Path
) -> None:
    openvino = pytest.importorskip("openvino")
    offered = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "BF16" in offered:
        launch = check_agreement("openvino-bf16", workshop, tmp_path, cosine=0.999, error=0.2)
        assert launch.settings["precision"] == "bf16"
    else:
        with pytest.raises(BenchError, match="OpenVINO has no bfloat16"):
            CONTENDERS["openvino-bf16"].prepare(workshop)


# ExecuTorch, in the environment that has it


def test_executorch_agrees_with_eager(workshop: Workshop, tmp_path: Path) -> None:
    if not os.environ.get(PYTHON_VARIABLE) and "executorch" not in available_contenders():
        lack(f"no ExecuTorch: {PYTHON_VARIABLE} names no Python that has it")
    launch = check_agreement("executorch", workshop, tmp_path)
    assert Path(launch.settings["path"]).stat().st_size > workshop.weight_bytes


def test_executorch_is_missed_by_name(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contender = CONTENDERS["executorch"]
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    assert contender.needs == ("torch", "executorch")
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "python"))
    assert contender.needs == ("torch",)
    with pytest.raises(MissingDependencyError, match="python can't be run") as caught:
        contender.prepare(workshop)
    assert PYTHON_VARIABLE in str(caught.value.hint)
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho No package metadata was found for executorch >&2\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="has no ExecuTorch: No package metadata"):
        contender.prepare(workshop)


def check_agreement(
    name: str,
    workshop: Workshop,
    folder: Path,
    *,
    cosine: float = 0.999999,
    error: float = 1e-4,
) -> Launch:
    contender = CONTENDERS[name]
    for package in contender.needs:
        pytest.importorskip(package)
    eager = CONTENDERS["eager"].prepare(workshop)
    launch = contender.prepare(workshop)
    with WorkerProcess("eager", eager, 2) as reference, WorkerProcess(name, launch, 2) as worker:
        reference.open(eager, workload(), timeout=300)
        opened = worker.open(launch, workload(), timeout=300)
        assert opened["facts"]["threads"] == 2
        found = measure_agreement(reference, {name: worker}, [1, 2, 7, 32], folder, seed=1)
        alien = {"torch", "transformers"} & set(worker.facts()["loaded"])
        assert name in ("aoti", "torch-compile", "executorch") or not alien, (
            "their memory would be counted"
        )
    assert found[name].cosine > cosine
    assert found[name].max_abs_error < error
    parts = contender.measure_size(workshop, launch, opened["facts"])
    assert sum(parts.values()) > workshop.weight_bytes
    return launch
