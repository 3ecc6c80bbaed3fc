"""build --backend triton: a bundle for a GPU that this host lacks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edgecompile.audit.elf import read_elf
from edgecompile.errors import AuditError, TargetError, UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.options import LoadOptions
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import SelftestError
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import map_weights
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import TRITON
from edgecompile.runtime.format.recipe.parse import read_recipe
from edgecompile.runtime.measure.tune import tune_bundle
from edgecompile.runtime.triton.tuning import TuningFolder
from edgecompile.targets.profile import load_target
from edgecompile.toolchain.torch_versions import torch_version
from tests.cli.command import run
from tests.factories.folders import write_model
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import FakeCublasLt
from tests.native.c_runtime.c_library import CLibrary, build_library
from tests.needs import need_aarch64_compiler, need_triton

LENGTHS = LengthDistribution.from_samples([3, 4, 7, 9, 20, 31])


def request(
    model: Path, folder: Path, target: str, precision: str, **options: object
) -> BuildRequest:
    plan = PlanRequest(
        LENGTHS, quick=True, max_length=32, backend="triton", precision=precision, **options
    )
    return BuildRequest(
        str(model), target, plan, output=folder / "out.ecb", work_dir=folder / "work"
    )


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer: a second one has the same kernels."""
    return write_model(tmp_path_factory.mktemp("layer"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def built(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    need_triton()
    folder = tmp_path_factory.mktemp("triton")
    return build(request(layer, folder, "cuda-sm90", "fp16", alternatives=2))


def test_the_bundle_has_programs_for_the_gpu_and_the_cores(built: BuildResult) -> None:
    manifest = parse_manifest((built.bundle_path / "manifest.json").read_bytes())
    cpu, gpu = manifest.variants
    assert (cpu.name, gpu.name, gpu.backend) == ("x86-64-v3", "triton-x86-64", TRITON)
    assert gpu.rank > cpu.rank and gpu.gpu is not None
    assert gpu.gpu.compute_capabilities == ("9.0",)
    assert gpu.gpu.precision == "fp16" and gpu.gpu.tolerance.rtol == 0.02
    assert set(gpu.gpu.checks) == {"audit", "graph", "interpreter", "rehearsal"}
    assert set(manifest.weights) == {"fp32", "fp16"}
    assert manifest.built_by["gpu"].startswith(f"triton {torch_version().triton}, ptxas V12.")
    assert manifest.built_by["torch"] == torch.__version__
    assert "triton-x86-64: not run, it needs a GPU" in manifest.built_by["verified"]


def test_libraries_need_our_runtime_alone(built: BuildResult) -> None:
    manifest = parse_manifest((built.bundle_path / "manifest.json").read_bytes())
    gpu = manifest.variants[-1]
    program = read_elf(built.bundle_path / gpu.programs[0])
    native = read_elf(built.bundle_path / gpu.runtime)
    assert Path(gpu.runtime).name in program.needed
    assert not any(
        "cuda" in name and "eccuda" not in name for name in (*program.needed, *native.needed)
    )
    own = {symbol.name for symbol in program.undefined if not symbol.library}
    assert {"ec_cuLaunchKernel", "ec_cuModuleLoadData"} <= own
    assert all(name.startswith(("ec_", "_", "__")) for name in own)
    assert b"ECUBIN1\0" in (built.bundle_path / gpu.programs[0]).read_bytes()


def test_weights_are_half_as_large(built: BuildResult) -> None:
    sizes = {
        name: (built.bundle_path / f"weights.{name}").stat().st_size for name in ("fp16", "fp32")
    }
    assert sizes["fp16"] < 0.75 * sizes["fp32"]


def test_reports_say_what_was_checked(built: BuildResult) -> None:
    report = json.loads((built.bundle_path / "reports" / "gpu.json").read_text())
    (program,) = report["programs"]
    graphs = [item for item in program["checks"] if item["kind"] == "graph"]
    assert graphs[0]["sizes"]["length"] <= 4 and len(graphs) >= 2
    assert all(item["cosine"] > 0.9999 for item in program["checks"])
    names = [kernel["name"] for kernel in program["kernels"]]
    assert any("attention" in name for name in names)
    assert all(image["arch"] == 90 for kernel in program["kernels"] for image in kernel["images"])
    audit = json.loads((built.bundle_path / "reports" / "audit.json").read_text())
    # Those of the program, and those of its alternatives.
    assert [item["ok"] for item in audit if item["library"] == "kernels"] == [True, True, True]


def test_inspect_shows_what_it_had(built: BuildResult) -> None:
    result = run("inspect", str(built.bundle_path))
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    # Its products use wgmma, which no later architecture has: there is no PTX for later ones.
    assert (
        "fp16; machine code for 9.0; checked without one by audit, graph, interpreter, rehearsal"
        in text
    )


def test_alternatives_are_packed_and_tuned(
    fake_driver: FakeCudart,
    fake_driver_path: Path,
    built: BuildResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the fake of the driver, where kernels compute nothing, so that every program is wrong."""
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    # A process looks for it once.
    monkeypatch.setenv("EDGECOMPILE_CUBLASLT", FakeCublasLt(fake_driver_path).path)
    path = built.bundle_path
    manifest = parse_manifest((path / "manifest.json").read_bytes())
    gpu = manifest.variants[-1]
    rules = ("larger", "smaller")
    assert gpu.alternatives == (tuple(f"code/triton-x86-64/bucket-0-{x}.so" for x in rules),)
    others = gpu.alternatives[0]
    hashes = [manifest.files[path].sha256 for path in (*gpu.programs, *others)]
    assert len(set(hashes)) == 3
    # The weights are there once.
    assert set(manifest.weights) == {"fp32", "fp16"}
    report = json.loads((path / "reports" / "gpu.json").read_text())
    assert [item["tiles"] for item in report["alternatives"][0]] == [*rules]
    audit = json.loads((path / "reports" / "audit.json").read_text())
    libraries = {item["library"] for item in audit if item["ok"]}
    assert {Path(path).name for path in others} <= libraries
    with pytest.raises(SelftestError, match="no program of bucket 0 reproduces"):
        tune_bundle(str(path), seconds=0.0)
    with open_bundle(path) as model:
        assert model.info["tuned"] is None


def test_products_may_be_computed_by_cublaslt(
    fake_driver: FakeCudart,
    fake_driver_path: Path,
    built: BuildResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On fakes, which compute nothing in half precision: of a layer the three products that have only a bias behind them."""
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    cublaslt = FakeCublasLt(fake_driver_path)
    monkeypatch.setenv("EDGECOMPILE_CUBLASLT", cublaslt.path)
    manifest = BundleFolder(str(built.bundle_path)).manifest
    variant = manifest.variants[-1]
    assert variant.gpu is not None and variant.gpu.cublaslt
    inputs = make_inputs(manifest, {"batch": 1, "length": 20})
    launches = fake_driver.library.fake_cuda_launches

    def count(rows: list[int]) -> tuple[int, int]:
        folder = TuningFolder(BundleFolder(str(built.bundle_path)), variant)
        folder.make()
        products = {"version": 130002, "rows": [rows]}
        folder.write({"choice": [0], "cublaslt": products})
        with open_bundle(built.bundle_path, mode="default") as model:
            model.run(inputs)
            before = cublaslt.products, launches()
            assert before[0] >= 0
            model.run(inputs)
            return cublaslt.products, launches()

    _, all_launches = count([-1])
    assert count([0] * 3) == (3, all_launches - 3)
    assert count([0, 21, 20]) == (2, all_launches - 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "target"), [("bert", "cuda-sm90"), ("gpt2", "jetson-orin")])
def test_weights_of_int8(layer: Path, tmp_path: Path, kind: str, target: str) -> None:
    need_triton()
    model, load = layer, LoadOptions()
    if kind == "gpt2":
        need_aarch64_compiler()
        model = write_model(tmp_path / "gpt2", "gpt2", "LMHeadModel", n_layer=1)
        load = LoadOptions(max_context=40, max_length=16)
    wanted = request(model, tmp_path, target, "int8")
    wanted = replace(wanted, load=load, plan=replace(wanted.plan, max_length=16))
    result = build(wanted)
    manifest = parse_manifest((result.bundle_path / "manifest.json").read_bytes())
    gpu = next(variant for variant in manifest.variants if variant.backend == TRITON)
    assert gpu.gpu is not None and gpu.gpu.precision == "int8-gpu"
    assert gpu.gpu.min_cosine == 0.999 and gpu.gpu.tolerance.rtol == 0.06
    report = json.loads((result.bundle_path / "reports" / "gpu.json").read_text())
    checks = [item for program in report["programs"] for item in program["checks"]]
    assert all(item["cosine"] > 0.999 for item in checks)
    folder = BundleFolder(str(result.bundle_path))
    constants = map_weights(folder, manifest.weights["int8-gpu"], False).constants
    folder.close()
    kinds = {item.type.name for item in constants}
    assert {"int8", "float16", "float32"} <= kinds
    whole = [item for item in constants if item.type.name == "int8"]
    # Each is there once, for prompts and for steps.
    assert len({item.name for item in whole}) == len(whole)
    assert all("_int8_" in item.name for item in whole)


@pytest.mark.slow
def test_products_of_fp8(fake_driver: FakeCudart, tmp_path: Path) -> None:
    """Both loaders run it on the fake of the driver, where kernels compute nothing: the same launches and weights."""
    need_triton()
    changes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    model = write_model(tmp_path / "bert", **changes)
    result = build(request(model, tmp_path, "cuda-sm90", "fp8"))
    manifest = parse_manifest((result.bundle_path / "manifest.json").read_bytes())
    gpu = manifest.variants[-1].gpu
    assert gpu is not None and gpu.precision == "fp8"
    assert gpu.min_cosine == 0.99 and gpu.tolerance.rtol == 0.2
    report = json.loads((result.bundle_path / "reports" / "gpu.json").read_text())
    checks = [item for program in report["programs"] for item in program["checks"]]
    assert all(0.99 < item["cosine"] < 0.99999 for item in checks)
    folder = BundleFolder(str(result.bundle_path))
    constants = map_weights(folder, manifest.weights["fp8"], False).constants
    folder.close()
    narrow = [item for item in constants if item.type.name == "float8_e4m3fn"]
    assert narrow and all("_fp8_" in item.name for item in narrow)
    inputs, counts = make_inputs(manifest, {"batch": 1, "length": 9}), []
    library = CLibrary(build_library())
    with open_bundle(result.bundle_path) as python, library.open(str(result.bundle_path)) as c:
        for opened in (python, c):
            before = fake_driver.calls("cuLaunchKernel")
            outputs = opened.run(inputs)
            assert outputs["last_hidden_state"].shape == (1, 9, 32)
            counts.append(fake_driver.calls("cuLaunchKernel") - before)
        told, info = c.describe(), python.info
    assert counts[0] == counts[1] == info["launches"]["0"] > 0
    assert told["gpu_precision"] == info["gpu_precision"] == "fp8"
    assert told["weight_bytes"] == info["weight_bytes"] >= sum(x.nbytes for x in constants)


@pytest.mark.slow
def test_the_same_build_gives_the_same_bytes(
    built: BuildResult, layer: Path, tmp_path: Path
) -> None:
    # The objects come from the cache; Inductor, Triton and ptxas run again.
    again = build(request(layer, tmp_path, "cuda-sm90", "fp16", alternatives=2))
    assert again.sha256 == built.sha256


@pytest.mark.slow
def test_kernels_that_were_refused_are_refused_again(
    built: BuildResult, layer: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(built.bundle_path.parent / "work", work)
    (work / "built.json").unlink()
    described = work / "artifacts" / "triton-x86-64" / "bucket-0.json"
    artifact = json.loads(described.read_text())
    finding = {"severity": "error", "rule": "registers", "what": "too many", "cure": ""}
    artifact["lowering"]["audit"]["findings"].append(finding)
    described.write_text(json.dumps(artifact))
    with pytest.raises(AuditError, match=r"kernels \(sm_90\):\n *registers: too many"):
        build(request(layer, tmp_path, "cuda-sm90", "fp16", alternatives=2))


def test_a_gpu_that_triton_has_no_code_for_is_answered_in_words(tmp_path: Path) -> None:
    profile = load_target("cuda-sm80")
    assert profile.gpu is not None
    old = replace(profile, gpu=replace(profile.gpu, compute_capability="7.5"))
    with pytest.raises(TargetError, match=r"7\.5.*needs 8\.0"):
        PlanRequest(LENGTHS, backend="triton").check_target(old)


def test_precisions_and_targets_that_do_not_fit_are_refused() -> None:
    for backend, precision in (("triton", "auto"), ("both", "int8"), ("both", "bf16")):
        text = f"does not support `precision` {precision} with `backend` {backend}"
        with pytest.raises(UsageError, match=text):
            PlanRequest(LENGTHS, backend=backend, precision=precision).check_target(
                load_target("cuda-sm90")
            )
    for target, archs in (("cuda-sm80", "8.0"), ("cuda-any", "8.0, 8.6, 8.7, 8.9, 9.0")):
        text = f"`precision` fp8 .*need compute capability 8.9 or later, its code is for {archs}"
        with pytest.raises(UsageError, match=text):
            PlanRequest(LENGTHS, backend="triton", precision="fp8").check_target(
                load_target(target)
            )
    for backend in ("auto", "both"):
        with pytest.raises(UsageError, match="does not support `precision` fp8"):
            PlanRequest(LENGTHS, backend=backend, precision="fp8").check_target(
                load_target("cuda-sm90")
            )
    for target in ("cuda-sm89", "cuda-sm90"):
        PlanRequest(LENGTHS, backend="triton", precision="fp8").check_target(load_target(target))
    with pytest.raises(
        UsageError, match="`alternatives` are of the programs that `backend` triton"
    ):
        PlanRequest(LENGTHS, alternatives=1).check_target(load_target("cuda-sm90"))
    with pytest.raises(UsageError, match="`alternatives` is 4"):
        PlanRequest(LENGTHS, backend="triton", alternatives=4)
    with pytest.raises(UsageError, match="does not support `backend` triton"):
        PlanRequest(LENGTHS, backend="triton").check_target(load_target("cpu-x86-64"))


@pytest.mark.slow
def test_a_language_model_is_built_and_its_steps_are_run(
    fake_driver: FakeCudart, tmp_path: Path
) -> None:
    """On the fake of the driver, where its kernels compute nothing: what is launched, copied and kept."""
    need_triton()
    model = write_model(tmp_path / "gpt2", "gpt2", "LMHeadModel", n_positions=256, n_layer=1)
    wanted = request(model, tmp_path, "cuda-sm90", "fp16")
    wanted = replace(wanted, load=LoadOptions(max_context=256, max_length=16))
    result = build(replace(wanted, plan=replace(wanted.plan, max_length=16)))
    manifest = parse_manifest((result.bundle_path / "manifest.json").read_bytes())
    cpu, gpu = manifest.variants
    assert manifest.generation is not None and manifest.generation.max_context == 256
    assert len(manifest.buckets) == len(cpu.programs) == len(gpu.programs) == 2
    assert gpu.gpu is not None and set(gpu.gpu.checks) == {
        "audit",
        "graph",
        "interpreter",
        "rehearsal",
    }
    caches = [item for item in manifest.inputs if item.name in manifest.generation.caches]
    least = min(256 * 4 * int(item.shape[1]) * int(item.shape[2]) for item in caches)
    with open_bundle(result.bundle_path) as opened:
        info = opened.info
        assert info["variant"] == "triton-x86-64" and info["graphs"] == 1
        # No program has room for a copy of a cache.
        assert info["scratch_bytes"] < least
        tokens = opened.generate([3, 4, 5], max_new_tokens=6, eos=())
        assert len(tokens) == 6
        launched = fake_driver.calls("cuLaunchKernel")
        replayed = fake_driver.calls("cuGraphLaunch")
        assert len(opened.generate([3, 4, 5], max_new_tokens=6, eos=())) == 6
        assert fake_driver.calls("cuLaunchKernel") - launched == info["launches"]["1"]
        assert fake_driver.calls("cuGraphLaunch") - replayed == 5
    with open_bundle(result.bundle_path, variant="x86-64-v3") as opened:
        assert len(opened.generate([3, 4, 5], max_new_tokens=6, eos=())) == 6


@pytest.mark.slow
def test_every_architecture_in_one_bundle(layer: Path, tmp_path: Path) -> None:
    need_triton()
    need_aarch64_compiler()
    result = build(request(layer, tmp_path, "cuda-any", "bf16"))
    manifest = parse_manifest((result.bundle_path / "manifest.json").read_bytes())
    gpus = [variant for variant in manifest.variants if variant.backend == TRITON]
    assert [variant.arch for variant in gpus] == ["aarch64", "x86-64"]
    for variant in gpus:
        assert variant.gpu is not None and variant.gpu.ptx == "8.0"
        assert variant.gpu.compute_capabilities == ("8.0", "8.6", "8.7", "8.9", "9.0")
    assert read_elf(result.bundle_path / gpus[0].programs[0]).machine == "aarch64"


@pytest.mark.slow
def test_orins_get_jetpacks_assembler_and_a_recipe_beside(layer: Path, tmp_path: Path) -> None:
    need_triton()
    need_aarch64_compiler()
    asked = request(layer, tmp_path, "jetson-orin", "fp32")
    result = build(replace(asked, plan=replace(asked.plan, backend="both")))
    manifest = parse_manifest((result.bundle_path / "manifest.json").read_bytes())
    engine, gpu, cpu = sorted(manifest.variants, key=lambda variant: -variant.rank)
    assert [engine.backend, gpu.backend, cpu.backend] == ["tensorrt", "triton", "aoti-cpu"]
    assert manifest.built_by["gpu"].endswith("ptxas V12.6.85")
    assert gpu.gpu is not None and gpu.gpu.precision == "fp32-gpu"
    assert "fp32-gpu" in manifest.weights and gpu.gpu.compute_capabilities == ("8.7",)
    assert gpu.gpu.ptx is None  # a module's GPU is a part of it
    assert read_elf(result.bundle_path / gpu.programs[0]).machine == "aarch64"
    folder = BundleFolder(str(result.bundle_path))
    recipe = read_recipe(folder, engine)
    folder.close()
    assert recipe.precision == "fp32" and len(recipe.profiles) == len(gpu.programs)
    reports = {path.name for path in (result.bundle_path / "reports").iterdir()}
    assert {"gpu.json", "onnx.json", "audit.json"} <= reports
