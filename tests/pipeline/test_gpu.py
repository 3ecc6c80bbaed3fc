"""build() for a Jetson: everything but the engine, which no build host can make."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from edgecompile.cli import cli
from edgecompile.errors import CompileError, PlanError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.onnx_files.memory import MemoryEstimate, estimate_memory, peak_live_bytes
from edgecompile.pipeline import triton_backend
from edgecompile.pipeline.ahead import NICENESS, compiling_ahead
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.run import Run
from edgecompile.planning.request import PlanRequest
from edgecompile.progress import NULL_PROGRESS
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import (
    BucketSpec,
    Extent,
    Manifest,
    TensorSpec,
    Tolerance,
    Variant,
)
from edgecompile.runtime.format.recipe.parse import read_recipe
from edgecompile.targets.jetpack import load_jetpack
from edgecompile.targets.profile import VariantSpec, load_target
from edgecompile.tensorrt_recipes.recipes import make_recipe, require_memory, shape_ranges
from tests.needs import need_aarch64_compiler

MIB = 1 << 20


def gpu_variant(manifest: Manifest) -> Variant:
    (found,) = (item for item in manifest.variants if item.backend == "tensorrt")
    return found


@pytest.fixture(scope="module")
def folder(jetson_bundle: Path) -> BundleFolder:
    return BundleFolder(str(jetson_bundle))


def test_the_gpu_comes_before_the_cores(folder: BundleFolder) -> None:
    gpu, *cpus = sorted(folder.manifest.variants, key=lambda item: -item.rank)
    assert (gpu.name, gpu.backend, gpu.arch) == ("jetson-orin-nano", "tensorrt", "aarch64")
    assert [item.name for item in cpus] == ["aarch64-dotprod"]
    folder.check_hashes()


def test_one_profile_for_each_bucket_and_one_program_for_all(folder: BundleFolder) -> None:
    manifest = folder.manifest
    recipe = read_recipe(folder, gpu_variant(manifest))
    assert len(manifest.buckets) == len(recipe.profiles) == 3
    for bucket, profile in zip(manifest.buckets, recipe.profiles, strict=True):
        length = bucket.axes["length"]
        for shapes in profile.values():
            assert shapes.max == (1, length.hi)
            if bucket.mode == "pad":
                assert shapes.min == shapes.opt == shapes.max
            else:
                assert (shapes.min, shapes.opt) == ((1, length.lo), (1, length.hint))
    (cpu,) = (item for item in manifest.variants if item.backend != "tensorrt")
    assert len(cpu.programs) == 3 and len(set(cpu.programs)) == 1


def test_the_recipe_is_for_the_module_and_its_system(folder: BundleFolder) -> None:
    recipe = read_recipe(folder, gpu_variant(folder.manifest))
    gpu = load_target("jetson-orin-nano").gpu
    assert gpu is not None
    assert recipe.device.compute_capability == "8.7" and recipe.device.sm_count == 8
    assert recipe.device.memory_bytes == gpu.memory_bytes
    assert (recipe.jetpack, recipe.least, recipe.below, recipe.opset) == ("6.2", "10.3", "10.4", 17)
    older = recipe.for_tensorrt("8.6.2")
    assert (older.jetpack, older.least, older.below, older.opset) == ("6.0", "8.6", "8.7", 17)
    assert older.onnx == "model-8.6.onnx" and older.weights == recipe.weights
    assert recipe.float32 is None and older.float32 is not None
    assert recipe.for_tensorrt("10.3.0") == recipe
    assert recipe.precision == "fp16" and recipe.padding
    scratch = recipe.predicted.scratch_bytes
    assert list(scratch) == sorted(scratch) and scratch[0] > 0
    assert recipe.predicted.build_bytes > recipe.predicted.engine_bytes > 0


CHOOSING = """
import torch

class Choosing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 8)

    def forward(self, ids, mask):
        x = self.table(ids)
        scores = x.sum(-1) + (1.0 - mask.to(x.dtype)) * -1e4
        return (scores.softmax(-1).unsqueeze(-1) * x).sum(1)

def make():
    ones = torch.ones(1, 6, dtype=torch.int64)
    return {
        "module": Choosing(),
        "inputs": {"ids": ones, "mask": ones},
        "axes": {"ids": {1: "length"}, "mask": {1: "length"}},
        "pad": {"ids": 0, "mask": 0},
        "bounds": {"ids": (0, 19), "mask": (0, 1)},
        "limits": {"length": (1, 30)},
    }
"""


def test_padding_that_is_assumed_is_told_where_the_loader_alone_pads(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    need_aarch64_compiler()
    source = tmp_path / "choosing.py"
    source.write_text(CHOOSING)
    lengths = LengthDistribution.from_samples([3, 9, 20])
    plan = PlanRequest(lengths, mode="exact", quick=True, assume_paddable=True)
    output = tmp_path / "made.ecb"
    result = build(BuildRequest(f"{source}:make", "jetson-orin-nano", plan, output=output))
    assert [bucket.mode for bucket in result.plan.buckets] == ["exact"]
    bundle = BundleFolder(str(output))
    assert read_recipe(bundle, gpu_variant(bundle.manifest)).padding
    assert bundle.manifest.plan["padding"] == "assumed"
    assert sum("proves that padding" in note for note in result.notes) == 1


def test_the_onnx_gives_what_eager_gave(folder: BundleFolder) -> None:
    import onnxruntime

    manifest = folder.manifest
    recipe = read_recipe(folder, gpu_variant(manifest))
    path = Path(folder.path) / "code" / "jetson-orin-nano" / recipe.onnx
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert len(manifest.golden) == 9
    for case in manifest.golden:
        with np.load(Path(folder.path) / case.file) as arrays:
            inputs = {k[3:]: arrays[k] for k in arrays.files if k.startswith("in.")}
            names = [item.name for item in manifest.outputs]
            for name, got in zip(names, session.run(names, inputs), strict=True):
                want = arrays[f"out.{name}"]
                assert np.abs(got - want).max() <= 0.01 * np.abs(want).max()


def test_reports_say_what_was_run(folder: BundleFolder) -> None:
    reports = Path(folder.path) / "reports"
    verify = json.loads((reports / "verify.json").read_text())
    emulated = set(verify["emulated"])
    # The module's own cores are another CPU's, which an emulator runs where there is one.
    assert emulated == ({"aarch64-dotprod"} if shutil.which("qemu-aarch64") else set())
    unrun = {"jetson-orin-nano", "aarch64-dotprod"} - emulated
    assert verify["ok"] and set(verify["not_executed"]) == unrun
    assert "the device builds its engine (finish)" in verify["not_executed"]["jetson-orin-nano"]
    ran = {item["variant"] for item in verify["results"]}
    assert ran == {"jetson-orin-nano (ONNX)", *emulated}
    found = json.loads((reports / "onnx.json").read_text())
    assert found["check"]["ok"] and found["check"]["padding"]
    plan = json.loads((reports / "plan.json").read_text())
    assert "modelled" in json.dumps(plan)
    assert (reports / "report.html").is_file()


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--target", "jetson-orin", "--precision", "bf16"),
            "Target jetson-orin does not support --precision bf16",
        ),
        (("--target", "jetson-orin", "--precision", "auto"), "choose fp32 or fp16 or int8"),
        (
            ("--target", "cpu-x86-64", "--precision", "fp16"),
            "choose fp32 or bf16 or int8 or int4 or auto",
        ),
        (("--target", "jetson-orin", "--jetpack", "5.1"), "choose 6.2 or 6.0 or 7.2"),
        (("--target", "cpu-x86-64", "--jetpack", "6.2"), "it is for targets such as jetson"),
    ],
)
def test_options_that_do_not_fit_the_target(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "lengths.txt").write_text("3\n")
    code, output = command("build", "m", "--lengths", str(tmp_path / "lengths.txt"), *arguments)
    assert code == 2 and said in output


def test_calibration_bundles_and_stages_are_for_cpus(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("3\n")
    lengths = str(tmp_path / "lengths.txt")
    code, output = command(
        *(
            "plan",
            lengths,
            "--model",
            "m",
            "--target",
            "jetson-orin",
            "--calibration-bundle",
            "k.ecb",
        )
    )
    assert code == 2 and "--calibration-bundle is for CPUs" in output
    code, output = command("compile", "--work-dir", str(tmp_path), "--target", "jetson-orin")
    assert code == 2 and "edgecompile build --target jetson-orin" in output


def chain(*sizes: int) -> onnx.ModelProto:
    """x -> a -> b -> y, where a and b have so many times the elements of x."""
    first, second = sizes
    nodes = [
        helper.make_node("Tile", ["x", "first"], ["a"]),
        helper.make_node("Tile", ["a", "second"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["y"], keepdims=1),
    ]
    constants = [
        helper.make_tensor("first", TensorProto.INT64, [2], [first, 1]),
        helper.make_tensor("second", TensorProto.INT64, [2], [second, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_live_bytes_are_those_of_tensors_that_wait_for_their_readers() -> None:
    model = chain(4, 2)
    # a and b live together: 4 and 8 times 64 x 128 floats; x isn't counted, y is 256 bytes by then.
    once = 4 * 64 * 128
    assert peak_live_bytes(model, {"batch": 64, "length": 128}) == 12 * once
    assert peak_live_bytes(model, {"batch": 128, "length": 128}) == 24 * once


def test_what_is_made_of_constants_is_not_alive() -> None:
    model = chain(4, 2)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT16, [64], [0.0] * 64))
    model.graph.node.insert(0, helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT))
    model.graph.node.insert(1, helper.make_node("Neg", ["wide"], ["negative"]))
    sizes = {"batch": 64, "length": 128}
    assert peak_live_bytes(model, sizes) == peak_live_bytes(chain(4, 2), sizes)


def test_live_bytes_need_every_size() -> None:
    with pytest.raises(CompileError, match="aren't known: length"):
        peak_live_bytes(chain(1, 1), {"batch": 1})


def test_a_build_that_does_not_fit_is_refused_with_its_numbers(
    folder: BundleFolder, tmp_path: Path
) -> None:
    onnx.save(chain(4, 2), tmp_path / "model.onnx")
    (tmp_path / "weights.fp16").write_bytes(b"")
    manifest = folder.manifest._replace(
        inputs=(TensorSpec("x", "float32", ("batch", "length")),),
        outputs=(TensorSpec("y", "float32", (1, 1)),),
        axes={"batch": Extent(1, 4096), "length": Extent(1, 65536)},
        buckets=(
            BucketSpec("exact", {"batch": Extent(1, 1, 1), "length": Extent(1, 8, 8)}),
            BucketSpec("exact", {"batch": Extent(1, 4096, 1), "length": Extent(9, 65536, 9)}),
        ),
    )
    with pytest.raises(PlanError) as caught:
        make_recipe(
            manifest,
            load_target("jetson-orin-nano"),
            load_jetpack("6.2"),
            tmp_path / "model.onnx",
            tmp_path / "weights.fp16",
            opset=20,
            precision="fp16",
            tolerance=Tolerance(1e-6, 2e-5),
            padding=True,
        )
    assert "bucket 1" in caught.value.message and "8,192 MiB" in caught.value.message
    assert f"{12 * 4 * 4096 * 65536 / MIB:,.0f} MiB of scratch" in caught.value.message


def test_what_fits_is_not_refused(folder: BundleFolder, tmp_path: Path) -> None:
    onnx.save(chain(1, 1), tmp_path / "model.onnx")

    def estimate(profiles: int, precision: str, host: int | None = None) -> MemoryEstimate:
        sizes = [{"batch": 1, "length": 1}] * profiles
        return estimate_memory(
            {tmp_path / "model.onnx": range(len(sizes))}, sizes, 100 * MIB, precision, 8 << 30, host
        )

    memory = estimate(1, "fp16")
    require_memory(memory, folder.manifest, load_target("jetson-orin-nano"))
    assert memory.predicted.engine_bytes == 105 * MIB
    assert memory.predicted.build_bytes >= 300 * MIB
    # Profiles share all weights in fp32, two thirds of them in fp16.
    assert estimate(4, "fp32").predicted.engine_bytes == 120 * MIB
    assert estimate(4, "fp16").predicted.engine_bytes == 225 * MIB
    assert memory.predicted.host_bytes is None
    assert estimate(1, "fp16", 6 << 30).predicted.host_bytes == (6 << 30) + 300 * MIB


def test_an_engine_whose_profiles_do_not_fit_is_refused(
    folder: BundleFolder, tmp_path: Path
) -> None:
    """A build takes three times the weights; an engine of many profiles takes more."""
    onnx.save(chain(1, 1), tmp_path / "model.onnx")

    def estimate(profiles: int) -> MemoryEstimate:
        sizes = [{"batch": 1, "length": 1}] * profiles
        return estimate_memory(
            {tmp_path / "model.onnx": range(len(sizes))}, sizes, 1500 * MIB, "fp16", 8 << 30
        )

    device = load_target("jetson-orin-nano")
    fits, many = estimate(8), estimate(12)
    assert fits.run_bytes < fits.predicted.build_bytes < many.run_bytes
    require_memory(fits, folder.manifest, device)
    manifest = folder.manifest._replace(buckets=folder.manifest.buckets * 4)
    with pytest.raises(PlanError, match="running the engine's 12 profiles is predicted to take"):
        require_memory(many, manifest, device)


def test_a_padded_axis_has_one_size_in_its_profile() -> None:
    spec = TensorSpec("x", "float32", (2, "batch", "length"))
    axes = {"batch": Extent(1, 4, 2), "length": Extent(5, 9, 6)}
    exact = shape_ranges(spec, BucketSpec("exact", axes), "length")
    assert (exact.min, exact.opt, exact.max) == ((2, 1, 5), (2, 2, 6), (2, 4, 9))
    padded = shape_ranges(spec, BucketSpec("pad", axes), "length")
    # The batch isn't padded.
    assert (padded.min, padded.opt, padded.max) == ((2, 1, 9), (2, 2, 9), (2, 4, 9))


def test_native_code_is_compiled_beside_the_first_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    all_begun = threading.Event()

    def fail(variant: VariantSpec, folder: Path) -> None:
        begun.append(variant.name)
        raise CompileError("the stage that needs it says so")

    def last(arch: str, program: Path) -> None:
        begun.append("replay")
        all_begun.set()

    def first(arch: str, folder: Path) -> None:
        begun.append(arch)
        child = subprocess.run(["nice"], capture_output=True, text=True, check=True)
        begun.append(f"nice {child.stdout.strip()}")

    monkeypatch.setattr(triton_backend, "build_gpu_runtime", first)
    monkeypatch.setattr(triton_backend, "build_runtime", fail)
    monkeypatch.setattr(triton_backend, "find_emulator", lambda arch: "qemu")
    monkeypatch.setattr(triton_backend, "build_replay", last)
    monkeypatch.setattr(triton_backend.platform, "machine", lambda: "x86_64")
    run = Run(BuildRequest("model"), load_target("jetson-orin"), NULL_PROGRESS)
    with compiling_ahead(triton_backend.TritonBackend().ahead(run)):
        all_begun.wait()
        own = os.nice(0)
    # The compilers give way to the stages, whose priority stays.
    nice = f"nice {min(19, own + NICENESS)}"
    assert begun == ["aarch64", nice, "aarch64-dotprod", "replay"]
