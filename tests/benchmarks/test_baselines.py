"""Other runtimes beside a bundle: how they are made, and that they agree with eager."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.baselines.executorch import PYTHON_VARIABLE
from benchmarks.baselines.registry import KINDS, missing_packages, prepare_baselines
from benchmarks.baselines.sizes import folder_bytes, package_bytes
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.agreement import measure_agreement
from edgecompile.bench.process import Baseline, WorkerProcess
from edgecompile.errors import BenchError, MissingDependencyError, ModelError
from tests.bench.test_process import NO_LIMIT, workload
from tests.needs import need_baseline, need_variable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    from tests.factories.folders import write_model

    return Workshop(
        str(write_model(tmp_path_factory.mktemp("layer"), num_hidden_layers=1)),
        {"batch": (1, 2), "length": (1, 32)},
        threads=2,
        cache=tmp_path_factory.mktemp("cache"),
    )


@pytest.fixture(scope="module")
def eager(workshop: Workshop) -> Iterator[WorkerProcess]:
    """The process that all others are compared with."""
    with WorkerProcess(KINDS["eager"].prepare(workshop), 2) as worker:
        worker.open(workload(), timeout=NO_LIMIT)
        yield worker


def empty_workshop(folder: Path) -> Workshop:
    return Workshop(None, {}, threads=1, cache=folder)


# Names and needs


def test_names(tmp_path: Path) -> None:
    assert prepare_baselines(["other/a.ecb", "b/a.ecb/"], empty_workshop(tmp_path)) == [
        "other/a.ecb",
        "b/a.ecb/",
    ]
    with pytest.raises(BenchError, match="unknown baselines: egaer, x") as caught:
        prepare_baselines(["egaer", "eager", "x"], empty_workshop(tmp_path))
    assert "openvino" in str(caught.value.hint)


def test_missing_packages_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(KINDS["aoti"], needs=("torch", "no_such_package"))  # type: ignore[type-var]
    kinds = {**KINDS, "one": absent, "two": absent}
    monkeypatch.setattr("benchmarks.baselines.registry.KINDS", kinds)
    assert missing_packages(KINDS["eager"]) == ()
    with pytest.raises(MissingDependencyError, match="one needs no_such_package; two needs"):
        prepare_baselines(["one", "eager", "two"], empty_workshop(tmp_path))


def test_without_a_model_nothing_can_be_made_from_it(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="a bundle doesn't hold it"):
        KINDS["eager"].prepare(empty_workshop(tmp_path))
    wrong = Workshop("no/such", {}, threads=1, cache=tmp_path)
    with pytest.raises(ModelError):
        KINDS["eager"].prepare(wrong)


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


# Each of them on a BERT of one layer


def test_eager_isn_t_compiled(workshop: Workshop) -> None:
    eager, compiled = (KINDS[name].prepare(workshop) for name in ("eager", "torch-compile"))
    assert eager.command[-2:] == ("edgecompile.bench.worker", "eager")
    assert compiled.command[-1].endswith(".compiled")
    assert eager.settings == compiled.settings and not eager.environment


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-opset23", "openvino"])
def test_a_runtime_agrees_with_eager(
    name: str, workshop: Workshop, eager: WorkerProcess, tmp_path: Path
) -> None:
    check_agreement(name, workshop, eager, tmp_path)


@pytest.mark.parametrize(
    "name", ["aoti", pytest.param("torch-compile", marks=pytest.mark.exhaustive)]
)
def test_a_compiled_model_agrees_with_eager(
    name: str, workshop: Workshop, eager: WorkerProcess, tmp_path: Path
) -> None:
    launch = check_agreement(name, workshop, eager, tmp_path)
    if name == "aoti":
        import zipfile

        with zipfile.ZipFile(launch.settings["path"]) as package:
            (wrapper,) = [item for item in package.namelist() if item.endswith("wrapper.cpp")]
            source = package.read(wrapper).decode()
        assert "linear_pointwise" in source, "frozen: weights are packed for oneDNN"


@pytest.mark.parametrize("name", ["onnxruntime-int8", "onnxruntime-int8-reduced", "openvino-int8"])
def test_a_narrow_model_is_near_eager_and_smaller(
    name: str, workshop: Workshop, eager: WorkerProcess, tmp_path: Path
) -> None:
    assert KINDS[name].precision == "int8"
    launch = check_agreement(name, workshop, eager, tmp_path, cosine=0.95, error=0.5)
    wide = KINDS[name.partition("-")[0]].prepare(workshop)
    assert "int8" in launch.settings["path"] and launch.settings != wide.settings
    with WorkerProcess(launch, 2) as worker, WorkerProcess(wide, 2) as reference:
        worker.open(workload(), timeout=NO_LIMIT)
        reference.open(workload(), timeout=NO_LIMIT)
        (tmp_path / "narrow").mkdir()
        found = measure_agreement(reference, {name: worker}, [7], tmp_path / "narrow", seed=1)
    assert found[name].max_abs_error > 1e-5, "it isn't the wide one that was run"


def test_reduced_weights_are_another_file(workshop: Workshop) -> None:
    need_baseline("onnxruntime")
    names = ("onnxruntime-int8", "onnxruntime-int8-reduced")
    paths = {KINDS[name].prepare(workshop).settings["path"] for name in names}
    assert len(paths) == 2


def test_bfloat16_is_refused_where_openvino_would_ignore_it(
    workshop: Workshop, eager: WorkerProcess, tmp_path: Path
) -> None:
    openvino = need_baseline("openvino")
    offered = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "BF16" in offered:
        launch = check_agreement(
            "openvino-bf16", workshop, eager, tmp_path, cosine=0.999, error=0.2
        )
        assert launch.settings["precision"] == "bf16"
    else:
        with pytest.raises(BenchError, match="OpenVINO has no bfloat16"):
            KINDS["openvino-bf16"].prepare(workshop)


# ExecuTorch, in the environment that has it


def test_executorch_agrees_with_eager(
    workshop: Workshop, eager: WorkerProcess, tmp_path: Path
) -> None:
    need_variable(PYTHON_VARIABLE)
    launch = check_agreement("executorch", workshop, eager, tmp_path)
    assert Path(launch.settings["path"]).stat().st_size > workshop.weight_bytes


def test_executorch_is_missed_by_name(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = KINDS["executorch"]
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    assert kind.needs == ("torch", "executorch")
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "python"))
    assert kind.needs == ("torch",)
    with pytest.raises(MissingDependencyError, match="python can't be run") as caught:
        kind.prepare(workshop)
    assert PYTHON_VARIABLE in str(caught.value.hint)
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho No package metadata was found for executorch >&2\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="has no ExecuTorch: No package metadata"):
        kind.prepare(workshop)


def check_agreement(
    name: str,
    workshop: Workshop,
    eager: WorkerProcess,
    folder: Path,
    *,
    cosine: float = 0.999999,
    error: float = 1e-4,
) -> Baseline:
    kind = KINDS[name]
    for package in kind.needs:
        need_baseline(package)
    launch = kind.prepare(workshop)
    with WorkerProcess(launch, 2) as worker:
        opened = worker.open(workload(), timeout=NO_LIMIT)
        assert opened["facts"]["threads"] == 2
        found = measure_agreement(eager, {name: worker}, [1, 2, 7, 32], folder, seed=1)
        alien = {"torch", "transformers"} & set(opened["loaded"])
        assert name in ("aoti", "torch-compile", "executorch") or not alien, (
            "their memory would be counted"
        )
    assert found[name].cosine > cosine
    assert found[name].max_abs_error < error
    parts = launch.measure_size(opened["facts"])
    assert sum(parts.values()) > workshop.weight_bytes
    return launch
