"""--backend torch-tensorrt, on FAKES of torch-tensorrt, TensorRT and CUDA: none of them was ever run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from edgecompile.cli import cli
from edgecompile.errors import CompileError, MissingDependencyError
from edgecompile.export.program import ExportedModel
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from edgecompile.runtime import open_bundle
from edgecompile.runtime.errors import SelftestError
from edgecompile.runtime.finish.finish import finish_bundle
from edgecompile.runtime.format.folder import BundleFolder
from edgecompile.runtime.format.recipe import read_recipe
from edgecompile.runtime.gpu.device import DeviceIdentity
from edgecompile.tensorrt import torch_tensorrt as torch_tensorrt_build
from edgecompile.tensorrt import torch_tensorrt_check
from edgecompile.tensorrt.recipes import engine_profiles
from edgecompile.tensorrt.torch_tensorrt import build_engine
from edgecompile.tensorrt.torch_tensorrt_worker import convert_options
from tests.fake_gpu.build import MODULES, FakeCudart
from tests.fake_gpu.servers import GPU, write_profile

pytestmark = pytest.mark.slow

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[2]
LENGTHS = LengthDistribution.from_samples([3, 4, 4, 7, 9, 9, 9, 20, 31])
DEVICE = DeviceIdentity(
    *("", "", "FAKE H1", "9.0", 132, False, "13.0", "13.0", "10.16.1"), memory_bytes=80 << 30
)


@pytest.fixture
def server(
    fake_cudart: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.MonkeyPatch]:
    """The environment of a server made of fakes, with an empty cache; nothing may leak."""
    monkeypatch.setenv("FAKE_CUDART_DEVICE", GPU)
    monkeypatch.setenv("FAKE_TRT_VERSION", "10.16.1")
    monkeypatch.setenv("FAKE_TORCH_TENSORRT_PRECISION", "fp16")
    monkeypatch.setenv("EDGECOMPILE_DEVICE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(MODULES), str(ROOT)]))
    monkeypatch.syspath_prepend(str(MODULES))
    for name in ("EDGECOMPILE_MODE", "EDGECOMPILE_FALLBACK", "FAKE_TORCH_TENSORRT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch_tensorrt_check, "_sees_gpu", lambda: True)
    monkeypatch.setattr(torch_tensorrt_check, "torch_tensorrt_version", lambda: torch.__version__)
    # There is no GPU to move the program to.
    monkeypatch.setattr(torch_tensorrt_build, "_DEVICE", "cpu")
    yield monkeypatch
    for name in [*sys.modules]:
        if name.partition(".")[0] == "tensorrt":
            del sys.modules[name]
    assert fake_cudart.live == 0 and fake_cudart.misuses == 0


@pytest.fixture(scope="module")
def exported(tiny_model: Path, shared_folder: Path) -> ExportedModel:
    """The tiny model for lengths up to 32."""
    model = load_model(str(tiny_model))
    scope = plan_scope(model, PlanRequest(LENGTHS, max_length=32))
    return ExportStore(model, shared_folder / "torch-tensorrt-exports").get(scope.whole_bucket)


def two_buckets(exported: ExportedModel, tiny_model: Path) -> list[Any]:
    """One of lengths 1 to 16, one that is padded to 32."""
    scope = plan_scope(load_model(str(tiny_model)), PlanRequest(LENGTHS, max_length=32))
    whole = scope.whole_bucket
    axes = dict(whole.axes)
    low, high = (replace(axes["length"], lo=lo, hi=hi, hint=hi) for lo, hi in ((1, 16), (17, 32)))
    rest = tuple(item for item in whole.axes if item[0] != "length")
    return [replace(whole, axes=(("length", extent), *rest)) for extent in (low, high)]


@pytest.mark.parametrize(
    ("how", "precision", "profiles", "notes"),
    [
        ("", "fp32", 1, "this release has one profile for an engine"),
        ("old", "fp16", 1, "this release has one profile for an engine"),
        ("profiles", "fp16", 2, ""),
        ("profiles,one", "fp16", 1, "only one profile is implemented"),
    ],
)
def test_what_releases_take(
    how: str,
    precision: str,
    profiles: int,
    notes: str,
    exported: ExportedModel,
    tiny_model: Path,
    server: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server.setenv("FAKE_TORCH_TENSORRT", how)
    server.setenv("FAKE_TORCH_TENSORRT_PRECISION", precision)
    buckets = two_buckets(exported, tiny_model)
    made = build_engine(exported, buckets, precision, DEVICE, tmp_path / "work")
    assert made.profiles == profiles
    assert made.shipped.profile_of == ((0, 1) if profiles == 2 else (0, 0))
    assert made.shipped.made_by == "torch-tensorrt 2.13.9"
    assert made.shipped.device == DEVICE.key_json()
    assert (notes in made.notes[0]) if notes else not made.notes
    names = [spec.name for spec in exported.inputs]
    outputs = [spec.name for spec in exported.outputs]
    wanted = {name: f"output{i}" for i, name in enumerate(outputs)}
    assert made.shipped.tensors == {**{name: name for name in names}, **wanted}
    head = made.path.read_bytes().split(b"\n", 2)
    assert head[0] == b"FAKE TENSORRT PLAN" and made.path.name == made.shipped.file
    found = json.loads(head[1])
    shapes = [item["input_ids"] for item in found["profiles"]]
    if profiles == 2:
        assert shapes == [[[1, 1], [1, 16], [1, 16]], [[1, 17], [1, 32], [1, 32]]]
    else:
        # Tuned for the larger bucket, good for all.
        assert shapes == [[[1, 1], [1, 32], [1, 32]]]


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("broken", MissingDependencyError, "undefined symbol (a fake failure)"),
        ("typed-only", CompileError, "this release can't be told to compute in fp16"),
        ("silent", CompileError, "it gave nothing back, and its log says nothing"),
        ("raises", CompileError, "'convert': Conversion of module GraphModule() not currently"),
    ],
)
def test_no_engine(
    how: str,
    error: type[Exception],
    said: str,
    exported: ExportedModel,
    tiny_model: Path,
    server: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server.setenv("FAKE_TORCH_TENSORRT", how)
    with pytest.raises(error) as caught:
        build_engine(exported, two_buckets(exported, tiny_model), "fp16", DEVICE, tmp_path / "work")
    assert said in str(caught.value) and "UnboundLocalError" not in str(caught.value)
    assert not list((tmp_path / "work").glob("*.plan"))


def test_how_a_release_is_told_the_precision() -> None:
    def newer(*, use_explicit_typing=True, enable_autocast=False, low_precision_type=None): ...  # type: ignore[no-untyped-def]

    def older(*, enabled_precisions=(), use_explicit_typing=False): ...  # type: ignore[no-untyped-def]

    def neither(**kwargs): ...  # type: ignore[no-untyped-def]

    half = {"enable_autocast": True, "low_precision_type": torch.float16}
    assert convert_options(newer, "fp16") == {"use_explicit_typing": True, **half}
    assert convert_options(older, "fp16") == {
        "use_explicit_typing": False,
        "enabled_precisions": {torch.float32, torch.float16},
    }
    for function in (newer, older, neither):
        assert convert_options(function, "fp32") == {"use_explicit_typing": True}
    with pytest.raises(Exception, match="can't be told to compute in fp16"):
        convert_options(neither, "fp16")


def test_a_process_that_dies(
    exported: ExportedModel, tiny_model: Path, server: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.setenv("FAKE_TRT_FAIL", "build_serialized_network:1:segv")
    with pytest.raises(CompileError, match=r"at the stage 'convert': the process ended with -11"):
        build_engine(
            exported, two_buckets(exported, tiny_model)[:1], "fp16", DEVICE, tmp_path / "work"
        )


def test_profiles_are_those_of_the_recipe(exported: ExportedModel, tiny_model: Path) -> None:
    first, second = engine_profiles(exported.inputs, two_buckets(exported, tiny_model))
    assert first.keys() == {spec.name for spec in exported.inputs}
    assert (first["input_ids"].min, first["input_ids"].max) == ((1, 1), (1, 16))
    assert (second["input_ids"].min, second["input_ids"].max) == ((1, 17), (1, 32))


def test_build_finish_and_run(tiny_model: Path, server: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = write_profile(tmp_path)
    (tmp_path / "lengths.txt").write_text("3\n4\n4\n7\n9\n9\n9\n20\n31\n")
    bundle = tmp_path / "tiny.ecb"
    arguments = ["build", str(tiny_model), "--target", str(target), "--json", "--buckets", "3"]
    arguments += ["--lengths", str(tmp_path / "lengths.txt"), "--max-length", "32"]
    arguments += ["--backend", "torch-tensorrt", "--output", str(bundle)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["engine"]["made_by"] == "torch-tensorrt 2.13.9"
    assert report["engine"]["profile_of"] == [0, 0, 0]
    assert any("it passed the golden vectors here" in note for note in report["notes"])
    # The engine was run here, unlike one that only a device can build.
    assert "my-gpu" not in report["verify"]["not_executed"]
    ran = [item for item in report["verify"]["results"] if item["variant"] == "my-gpu"]
    assert {item["bucket"] for item in ran} == {0, 1, 2} and all(item["ok"] for item in ran)

    folder = BundleFolder(str(bundle))
    folder.check_hashes()
    (variant,) = (item for item in folder.manifest.variants if item.backend == "tensorrt")
    recipe = read_recipe(folder, variant)
    folder.close()
    assert recipe.engine is not None and recipe.jetpack == "" and recipe.precision == "fp16"
    assert (bundle / "code" / "my-gpu" / recipe.engine.file).is_file()
    assert (bundle / "code" / "my-gpu" / "model.onnx").is_file()
    assert json.loads((bundle / "reports" / "engine.json").read_text())["profiles"] == 1

    # It is finished on this machine, and can be on one like it, and on others in their way.
    assert finish_bundle(str(bundle))["state"] == "already finished"
    eager = load_model(str(tiny_model))
    for mode in ("planned", "default", "reduce-overhead"):
        with open_bundle(str(bundle), mode=mode) as model:
            assert model.info["backend"] == "tensorrt"
            random = np.random.default_rng(0)
            for length in (1, 4, 9, 10, 31, 32):
                ids = random.integers(3, 15, (1, length))
                inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
                got = model.run(inputs)
                want = eager.run({k: torch.from_numpy(v) for k, v in inputs.items()})
                for name, tensor in want.items():
                    array = tensor.numpy()
                    assert np.abs(got[name] - array).max() <= 0.01 * np.abs(array).max()
    server.setenv("EDGECOMPILE_CACHE", str(tmp_path / "another"))
    like = finish_bundle(str(bundle))
    assert like["built"] == {"made_by": "torch-tensorrt 2.13.9", "profiles": 1}
    server.setenv("FAKE_CUDART_DEVICE", GPU.replace("driver=13000", "driver=13010"))
    other = finish_bundle(str(bundle))
    assert other["built"]["profiles"] == 3 and other["attempts"]
    assert any("driver was 13.0, is 13.1" in note for note in other["notes"])


def test_a_wrong_engine_ends_the_build(
    tiny_model: Path, server: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The fakes can't compute wrongly, so the engine is said to call its two inputs the other way round.
    real = torch_tensorrt_build.build_engine

    def build_wrongly(*arguments: Any) -> Any:
        made = real(*arguments)
        tensors = dict(made.shipped.tensors)
        first, second = list(tensors)[:2]
        tensors[first], tensors[second] = tensors[second], tensors[first]
        return replace(made, shipped=replace(made.shipped, tensors=tensors))

    server.setattr("edgecompile.pipeline.gpu.build_engine", build_wrongly)
    request = BuildRequest(
        model=str(tiny_model),
        target=str(write_profile(tmp_path)),
        plan=PlanRequest(LENGTHS, buckets=1, max_length=32, backend="torch-tensorrt"),
        output=tmp_path / "out.ecb",
    )
    with pytest.raises(SelftestError, match="doesn't reproduce the golden vectors"):
        build(request)
    assert not (tmp_path / "out.ecb").exists()
    assert [p for p in tmp_path.iterdir() if p.suffix == ".plan"] == []
