"""Where torch-tensorrt can't be had: refusals for real, and those that need a GPU on FAKES of one."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from edgecompile.cli import cli
from edgecompile.errors import MissingDependencyError, TargetError, UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime.cpu.host import architecture
from edgecompile.targets.jetpack import NO_JETPACK, find_jetpack
from edgecompile.targets.profile import TargetProfile, load_target
from edgecompile.tensorrt import torch_tensorrt_check
from edgecompile.tensorrt.torch_tensorrt_check import need_torch_tensorrt
from tests.fake_gpu.build import MODULES, FakeCudart
from tests.fake_gpu.servers import GPU, PROFILE, write_profile

ROOT = Path(__file__).parents[2]
HERE = architecture(platform.machine())


@pytest.fixture
def profile(tmp_path: Path) -> TargetProfile:
    """A server with a GPU, of this machine's architecture."""
    return load_target(write_profile(tmp_path))


@pytest.fixture
def pretend(fake_cudart: FakeCudart, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if there were the GPU of PROFILE, torch for CUDA and a torch-tensorrt that goes with it."""
    monkeypatch.setenv("FAKE_CUDART_DEVICE", GPU)
    monkeypatch.setenv("FAKE_TRT_VERSION", "10.16.1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(MODULES), str(ROOT)]))
    monkeypatch.setattr(torch_tensorrt_check, "_sees_gpu", lambda: True)
    monkeypatch.setattr(
        torch_tensorrt_check, "torch_tensorrt_version", lambda: torch.__version__.partition("+")[0]
    )
    return monkeypatch


def has(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


needs_none = pytest.mark.skipif(
    has("torch-tensorrt") or torch.cuda.is_available(), reason="this host may well have it all"
)


@needs_none
def test_all_that_is_missing_is_named(profile: TargetProfile) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        need_torch_tensorrt(profile, "fp16")
    assert "the package torch-tensorrt isn't installed" in caught.value.message
    assert f"no GPU can be used: torch {torch.__version__}" in caught.value.message
    assert caught.value.hint is not None and "without `backend`" in caught.value.hint


@needs_none
def test_the_command_refuses_before_it_reads_anything(tmp_path: Path) -> None:
    target = write_profile(tmp_path)
    (tmp_path / "lengths.txt").write_text("no lengths at all\n")
    arguments = ["build", "there is no such model", "--lengths", str(tmp_path / "lengths.txt")]
    arguments += ["--target", str(target), "--backend", "torch-tensorrt"]
    result = CliRunner().invoke(cli, [*arguments, "--output", str(tmp_path / "out.ecb")])
    assert isinstance(result.exception, (MissingDependencyError, SystemExit))
    assert result.exit_code == MissingDependencyError.exit_code
    assert "torch-tensorrt can't build an engine on this machine" in result.output
    assert not (tmp_path / "out.ecb").exists()


@needs_none
def test_build_refuses_before_it_loads_the_model(tmp_path: Path) -> None:
    request = BuildRequest(
        model=str(tmp_path / "none"),
        target=str(write_profile(tmp_path)),
        plan=PlanRequest(LengthDistribution.from_samples([3]), backend="torch-tensorrt"),
        output=tmp_path / "out.ecb",
        work_dir=tmp_path / "work",
    )
    with pytest.raises(MissingDependencyError):
        build(request)
    assert not (tmp_path / "work").exists()


def test_a_target_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cpu-x86-64 describes no GPU"):
        need_torch_tensorrt(load_target("cpu-x86-64"), "fp32")
    request = BuildRequest(
        model=str(tmp_path / "none"),
        target="cpu-x86-64",
        plan=PlanRequest(LengthDistribution.from_samples([3]), backend="torch-tensorrt"),
        output=tmp_path / "out.ecb",
    )
    with pytest.raises(UsageError, match="cpu-x86-64 does not support `backend` torch-tensorrt"):
        build(request)


def test_a_precision_that_is_not_there(profile: TargetProfile) -> None:
    with pytest.raises(TargetError, match="isn't asked for int8: fp32 or fp16"):
        need_torch_tensorrt(profile, "int8")


def test_a_gpu_that_is_the_profile_s(profile: TargetProfile, pretend: pytest.MonkeyPatch) -> None:
    device = need_torch_tensorrt(profile, "fp16")
    assert (device.name, device.compute_capability, device.tensorrt) == (
        "FAKE H1",
        "9.0",
        "10.16.1",
    )
    assert device.model == "" or HERE == "aarch64"


def test_a_torch_tensorrt_of_another_torch(
    profile: TargetProfile, pretend: pytest.MonkeyPatch
) -> None:
    pretend.setattr(torch_tensorrt_check, "torch_tensorrt_version", lambda: "2.5.0")
    with pytest.raises(MissingDependencyError) as caught:
        need_torch_tensorrt(profile, "fp16")
    assert f"torch-tensorrt 2.5.0 goes with another torch than {torch.__version__}" in str(
        caught.value
    )


def test_no_tensorrt_and_no_cuda(profile: TargetProfile, pretend: pytest.MonkeyPatch) -> None:
    if has("tensorrt"):
        pytest.skip("there is a tensorrt")
    pretend.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(MissingDependencyError, match="No module named 'tensorrt'"):
        need_torch_tensorrt(profile, "fp16")
    pretend.setenv("EDGECOMPILE_CUDART", "/no/libcudart.so")
    with pytest.raises(MissingDependencyError, match=r"/no/libcudart\.so"):
        need_torch_tensorrt(profile, "fp16")


def test_another_gpu_than_the_profile_s(
    profile: TargetProfile, pretend: pytest.MonkeyPatch
) -> None:
    pretend.setenv("FAKE_CUDART_DEVICE", GPU.replace("cc=9.0;sm=132", "cc=8.0;sm=108"))
    pretend.setenv("FAKE_TRT_VERSION", "12.0.1")
    with pytest.raises(TargetError) as caught:
        need_torch_tensorrt(profile, "fp16")
    for text in (
        "compute capability 9.0, this GPU has 8.0",
        "multiprocessors 132, this GPU has 108",
        "TensorRT 10.3 to 11.5 (excluded), installed is 12.0.1",
    ):
        assert text in caught.value.message


def test_a_profile_of_another_architecture(pretend: pytest.MonkeyPatch) -> None:
    if HERE == "aarch64":
        pytest.skip("it is this machine's")
    with pytest.raises(TargetError, match=r"its variants are for aarch64.*compute capability 8\.7"):
        need_torch_tensorrt(load_target("jetson-orin"), "fp16")


def test_a_profile_of_a_server(tmp_path: Path) -> None:
    profile = load_target(write_profile(tmp_path))
    assert profile.kind == "cuda" and profile.jetpacks == () and profile.gpu is not None
    assert TargetProfile.from_json(profile.to_json()) == profile
    assert profile.to_json().keys().isdisjoint({"jetpacks", "tensorrt"})


def test_the_tensorrt_of_a_server(tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    text = path.read_text()
    assert find_jetpack(load_target(path), None) == NO_JETPACK
    path.write_text(text.replace('kind = "cuda"', 'kind = "cuda"\ntensorrt = "8.6"'))
    profile = load_target(path)
    assert TargetProfile.from_json(profile.to_json()) == profile
    release = find_jetpack(profile, None)
    assert (release.name, release.opset) == ("", 17)
    assert release.takes("8.6.1") and not release.takes("10.3.0")
    path.write_text(text.replace('kind = "cuda"', 'kind = "cuda"\ntensorrt = "8.5"'))
    with pytest.raises(TargetError, match=r"nothing is known of TensorRT 8\.5") as caught:
        find_jetpack(load_target(path), None)
    assert "8.6 to 8.7, 10.3 to 10.4, 10.16 to 11.5" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'kind = "cuda"',
            'kind = "cuda"\njetpacks = ["6.2"]',
            "jetpacks: only a profile of kind j",
        ),
        (
            'kind = "cuda"',
            'kind = "cpu"\ntensorrt = "8.6"',
            "tensorrt: only a profile of kind cuda",
        ),
        ('kind = "cuda"', 'kind = "cpu"', "gpu: only a profile of kind jetson or cuda has it"),
        ('kind = "cuda"', 'kind = "jetson"', "jetpacks: missing; a profile of kind jetson has it"),
        ("[gpu]", "[gpus]", "gpu: missing; a profile of kind cuda has it"),
    ],
)
def test_profiles_that_do_not_agree(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    if new == "[gpus]":
        # An unknown key ends the reading before the keys are compared with each other.
        path.write_text(text[: text.index("[gpu]")])
    with pytest.raises(TargetError, match="malformed") as caught:
        load_target(path)
    assert said in caught.value.message


def test_a_jetpack_for_a_server(tmp_path: Path) -> None:
    target = str(write_profile(tmp_path))
    arguments = ["build", "m", "--lengths", "x", "--target", target, "--jetpack", "6.2"]
    (tmp_path / "x").write_text("3\n")
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2 and "Target my-gpu does not support --jetpack 6.2" in result.output


def test_the_profile_in_the_documentation_is_this_one() -> None:
    text = (ROOT / "docs" / "targets.md").read_text()
    assert PROFILE.strip() in text
