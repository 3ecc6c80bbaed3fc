"""A bundle of ``edgecompile build --target jetson-orin-nano``, all the way on a device of fakes.

TensorRT and CUDA are fakes (tests/fake_gpu): the fake engine runs the shipped ONNX with onnxruntime.
What is real are the bundle, the finishing, the loader and the plan that a calibration makes. The one
thing changed is the architecture that the bundle says, so that this machine takes it.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from edgecompile import BuildOptions, build
from edgecompile.errors import CostError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import model_structure
from edgecompile.planning.costs.calibration import check_calibration
from edgecompile.planning.costs.calibration_files import read_calibration
from edgecompile.planning.planning import plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import make_subject
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import UnfinishedBundleError
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.finish.finish import finish_bundle
from edgecompile.runtime.measure.calibrate import calibrate_bundle
from edgecompile.targets.profile import load_target
from tests.fake_gpu.build import FakeCudart

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bundle(jetson_bundle: Path, tmp_path: Path) -> str:
    """A copy whose GPU variant says that it is for this machine's architecture."""
    copy = tmp_path / "jetson.ecb"
    shutil.copytree(jetson_bundle, copy)
    return made_for_here(copy)


def made_for_here(bundle: Path) -> str:
    manifest = json.loads((bundle / "manifest.json").read_text())
    here = architecture(platform.machine())
    for variant in manifest["variants"]:
        if variant["backend"] == "tensorrt":
            variant["arch"] = here
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return str(bundle)


class Conditional(torch.nn.Module):
    """Pads what is short, takes another way at one length, and keeps the last twelve positions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if x.shape[1] < 4:
            x = torch.nn.functional.pad(x, (0, 0, 0, 4 - x.shape[1]))
        if x.shape[1] == 20:
            x = x.cumsum(1)
        return x[:, -12:]


@pytest.mark.slow
def test_each_side_of_a_condition_is_right_at_every_length(
    fake_device: FakeCudart, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    factory = {
        "module": Conditional(),
        "inputs": {"x": torch.randn(1, 16, 8)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (1, 32)},
    }
    build(
        factory,
        lengths=[2, 9, 16, 20, 32],
        target="jetson-orin-nano",
        output=tmp_path / "sides.ecb",
        precision="fp32",
        quick=True,
        build_options=BuildOptions(fallback=False),
    )
    bundle = made_for_here(tmp_path / "sides.ecb")
    recipe = json.loads((tmp_path / "sides.ecb/code/jetson-orin-nano/recipe.json").read_text())
    assert len(recipe["sides"]) == len(recipe["profiles"]) - 1 >= 4
    assert finish_bundle(bundle)["profile_of"] == list(range(len(recipe["profiles"])))
    eager = load_model(factory)
    with open_bundle(bundle) as model:
        for length in range(1, 33):
            inputs = eager.make_example({"length": length})
            (got,) = model.run({"x": inputs["x"].numpy()}).values()
            (want,) = eager.run(inputs).values()
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_finish_open_run_and_plan_anew(
    bundle: str, fake_device: FakeCudart, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnfinishedBundleError) as caught:
        open_bundle(bundle)
    assert caught.value.hint is not None and "edgecompile.runtime finish" in caught.value.hint
    said: list[str] = []
    report = finish_bundle(bundle, say=said.append)
    assert report["ok"] and report["selftest"]["cases"]
    assert report["profile_of"] == [0, 1, 2]

    eager = load_model(str(tiny_model))
    with open_bundle(bundle) as model:
        modes = [bucket.mode for bucket in model.manifest.buckets]
        assert model.info["backend"] == "tensorrt" and model.info["mode"] == "planned"
        # Buckets of one shape replay graphs.
        assert model.info["graphs"] == modes.count("pad")
        random = np.random.default_rng(0)
        for length in range(1, 33):
            ids = random.integers(3, 15, (1, length))
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            got = model.run(inputs)
            want = eager.run({k: torch.from_numpy(v) for k, v in inputs.items()})
            assert set(got) == set(want)
            for name, tensor in want.items():
                array = tensor.numpy()
                assert got[name].shape == array.shape
                assert np.abs(got[name] - array).max() <= 0.01 * np.abs(array).max()
    assert run_selftest(bundle)["ok"]

    file = tmp_path / "calibration.json"
    calibrate_bundle(bundle, str(file), seconds=0.1, cold_runs=0)
    found = read_calibration(file)
    wanted = {
        "structure": model_structure(eager),
        "edgecompile_version": found.edgecompile,
        "precision": "fp16",
    }
    # The bundle was made to say this machine's architecture; on an Orin the file would say its own.
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "arch": "aarch64"}))
    found = read_calibration(file)
    check_calibration(found, target=load_target("jetson-orin-nano"), **wanted)
    lengths = LengthDistribution.from_samples([3, 4, 4, 7, 9, 9, 9, 20, 31])
    subject = make_subject(
        ExportStore(eager, tmp_path / "exported"),
        load_target("jetson-orin-nano"),
        PlanRequest(lengths, max_length=32, calibration=file),
        tmp_path,
    )
    planned = plan_model(subject)
    assert planned.plan.cost_model is not None and planned.plan.cost_model.kind == "calibrated"
    assert planned.plan.max_length == 32
    with pytest.raises(CostError) as refused:
        check_calibration(found, target=load_target("jetson-orin-nx"), **wanted)
    assert "jetson-orin-nx has jetson-orin-nx (aarch64)" in refused.value.message
    assert "measured in" not in refused.value.message
    with pytest.raises(CostError, match="measured in fp16, not in int8"):
        check_calibration(
            found, target=load_target("jetson-orin-nano"), **{**wanted, "precision": "int8"}
        )


def test_a_changed_weight_is_damage_not_an_engine(bundle: str, fake_device: FakeCudart) -> None:
    from edgecompile.runtime.base.errors import DamagedBundleError

    weights = Path(bundle) / "code" / "jetson-orin-nano" / "weights.fp16"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(DamagedBundleError, match=r"weights\.fp16"):
        finish_bundle(bundle)


def test_a_bundle_without_programs_for_the_cores(fake_device: FakeCudart, tmp_path: Path) -> None:
    """The GPU's engine alone, and one copy of the weights."""
    import torch

    import edgecompile

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    made = {
        "module": net,
        "inputs": {"input": torch.randn(1, 6, 8)},
        "axes": {"input": {1: "length"}},
        "limits": {"length": (1, 16)},
    }
    path = tmp_path / "gpu.ecb"
    edgecompile.build(
        made, lengths=[3, 9], target="jetson-orin", quick=True, output=path,
        build_options=edgecompile.BuildOptions(fallback=False),
    )  # fmt: skip
    manifest = json.loads((path / "manifest.json").read_text())
    (variant,) = manifest["variants"]
    assert variant["backend"] == "tensorrt"
    assert manifest["weights"] == {"fp16": "code/jetson-orin/weights.fp16"}
    assert not list(path.rglob("libeckernels*")) and not list(path.rglob("bucket-*"))
    variant["arch"] = architecture(platform.machine())
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnfinishedBundleError):
        open_bundle(path)
    assert finish_bundle(str(path), say=lambda text: None)["ok"]
    x = np.random.default_rng(0).standard_normal((1, 11, 8)).astype(np.float32)
    with open_bundle(path) as model:
        assert model.info["backend"] == "tensorrt"
        (got,) = model.run({"input": x}).values()
    with torch.no_grad():
        np.testing.assert_allclose(got, net(torch.from_numpy(x)).numpy(), atol=5e-3)
