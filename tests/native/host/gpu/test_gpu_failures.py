"""The C interface with a GPU that is missing, another one, or fails: at each call, for good, after a fork.

As test_host_gpu.py, on a fake of CUDA's driver.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import CALLS_OF_A_RUN, TritonBundle, take_failing_driver
from tests.native.host import c_host
from tests.native.host.c_host import MACHINES, NATIVE_ARCH, HostError, HostLibrary
from tests.native.host.gpu.test_gpu import GPU_FAILED, MODES, NO_GPU, check, refused

# What the machine may lack.


def test_without_a_driver(
    library: HostLibrary,
    triton_bundle: TritonBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", str(tmp_path / "libcuda.so.1"))
    path = triton_bundle.write()
    error = refused(library, path)
    assert error.status == NO_GPU and "can't be loaded" in error.text
    assert "with the variant toy: the option fallback, or EDGECOMPILE_FALLBACK=cpu" in error.text
    with library.open(path, fallback=b"cpu") as model, open_bundle(path, fallback="cpu") as other:
        told, info = model.describe(), other.info
        for key in ("variant", "mode", "fallback", "refused_variants", "tolerance"):
            assert told[key] == info[key]
        assert told["variant"] == "toy" and "can't be loaded" in told["fallback"]
    refused(library, path, variant=b"cuda-sm90", fallback=b"cpu")  # named, so it isn't replaced
    monkeypatch.setenv("EDGECOMPILE_FALLBACK", "cpu")
    with library.open(path) as model:
        assert model.describe()["variant"] == "toy"
    # A library that is none of CUDA's.
    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", "libm.so.6")
    assert "libm.so.6: has no cu" in refused_by_c(library, path)
    monkeypatch.delenv("EDGECOMPILE_FALLBACK")
    monkeypatch.delenv("EDGECOMPILE_CUDA_DRIVER")
    if not Path("/proc/driver/nvidia").exists():
        assert "there is no NVIDIA driver: libcuda.so.1" in refused(library, path).text


def refused_by_c(library: HostLibrary, path: str) -> str:
    with pytest.raises(HostError) as caught:
        library.open(path, variant=b"cuda-sm90")
    assert caught.value.status == NO_GPU
    return caught.value.text


@pytest.mark.parametrize(
    ("device", "status", "text"),
    [
        ("name=Orin;cc=8.7;driver=12060", NO_GPU, "compute capability 9.0, Orin has 8.7"),
        ("name=B;cc=10.0;driver=13000", NO_GPU, "compute capability 9.0, B has 10.0"),
        ("name=H;cc=9.0;driver=11080", NO_GPU, "for CUDA 12.0 or newer, that of H is for 11.8"),
        ("name=H;cc=9.0;driver=12080;memory=100", GPU_FAILED, "136 bytes of weights: "),
        ("name=H;cc=9.0;driver=12080;memory=1000", GPU_FAILED, "16384 bytes of scratch memory"),
    ],
)
def test_gpus_that_do_not_do(
    fake_driver: FakeCudart,
    library: HostLibrary,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    status: int,
    text: str,
) -> None:
    path = triton_bundle.write()
    monkeypatch.setenv("FAKE_CUDART_DEVICE", device)
    error = refused(library, path)
    assert error.status == status and text in error.text and "\nhint: " in error.text
    with library.open(path, fallback=b"cpu") as model:
        assert model.describe()["variant"] == "toy" and text in model.describe()["fallback"]
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=H;cc=9.1;driver=12080")  # runs the same code
    with library.open(path) as model:
        check(model, 3)


def test_code_for_other_gpus(
    fake_driver: FakeCudart, library: HostLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PTX serves later ones; and a manifest may promise more than there is."""
    bundle = TritonBundle(tmp_path / "ptx.ecb", "TOY_PTX")
    bundle.gpu["ptx"] = "9.0"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=B;cc=10.0;driver=13000")
    with library.open(bundle.write()) as model:
        check(model, 3)
    fake_driver.reset()  # it counts calls
    monkeypatch.setenv("FAKE_CUDART_FAIL", "cuModuleLoadDataEx:1=222,cuModuleLoadDataEx:2=222")
    error = refused(library, str(bundle.bundle.folder))
    assert "toy_products failed: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)" in error.text
    assert error.status == GPU_FAILED and "hint: update NVIDIA's driver" in error.text
    monkeypatch.delenv("FAKE_CUDART_FAIL")
    bundle = TritonBundle(tmp_path / "t.ecb")
    bundle.gpu["compute_capabilities"] = ["8.7", "9.0"]
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=Orin;cc=8.7;driver=12060")
    error = refused(library, bundle.write())
    assert "are for compute capability 9.0, this GPU has 8.7" in error.text


def test_of_two_variants_the_one_for_this_gpu(
    fake_driver: FakeCudart, library: HostLibrary, triton_bundle: TritonBundle
) -> None:
    better = copy.deepcopy(triton_bundle.variant)
    better.update(name="cuda-sm120", rank=70)
    better["gpu"]["compute_capabilities"] = ["12.0"]
    triton_bundle.bundle.document["variants"].append(better)
    path = triton_bundle.write()
    with library.open(path) as model, open_bundle(path) as python:
        told = model.describe()
        assert told["variant"] == "cuda-sm90"
        assert told["refused_variants"] == python.info["refused_variants"]
    assert "Fake H100 has 9.0" in refused(library, path, variant=b"cuda-sm120").text


@pytest.mark.parametrize(
    ("call", "number", "visible"),
    [
        ("cuInit", 100, ""),
        ("cuInit", 100, "MIG-0a1b"),
        ("cuInit", 999, None),
        ("cuDeviceGet", 101, "0"),
    ],
)
def test_no_gpu_that_may_be_used(
    fake_driver_path: Path,
    library: HostLibrary,
    triton_bundle: TritonBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    visible: str | None,
) -> None:
    copy = tmp_path / "libcuda-copy.so"
    take_failing_driver(monkeypatch, fake_driver_path, copy, f"{call}:1={number}", visible)
    text = refused_by_c(library, triton_bundle.write())
    assert f"{call} failed" in text and f"({number})" in text
    assert ("nvidia-smi" if visible is None else "CUDA_VISIBLE_DEVICES is") in text


# What may fail at any moment.


@pytest.mark.parametrize("call", CALLS_OF_A_RUN)
def test_each_call_may_fail(
    fake_driver: FakeCudart,
    library: HostLibrary,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """Every one of its calls in turn: an error with its name, nothing lost, and the next try works."""
    path = triton_bundle.write()

    def attempt() -> None:
        with library.open(path, mode=b"reduce-overhead") as model:
            check(model, 7)
            check(model, 50)

    attempt()
    made = fake_driver.calls(call)
    assert made
    for number in range(1, made + 1):
        fake_driver.reset()
        monkeypatch.setenv("FAKE_CUDART_FAIL", f"{call}:{number}=2")
        with pytest.raises(HostError, match=r"failed: CUDA_ERROR_OUT_OF_MEMORY \(2\)") as caught:
            attempt()
        assert caught.value.status == GPU_FAILED
        monkeypatch.delenv("FAKE_CUDART_FAIL")
        assert fake_driver.live == 0, (call, number)
        attempt()


@pytest.mark.parametrize("call", ["cuStreamSynchronize:2=700", "cuLaunchKernel:3=719"])
def test_after_a_fault_runs_are_refused(
    fake_driver: FakeCudart,
    library: HostLibrary,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    monkeypatch.setenv("FAKE_CUDART_FAIL", call)
    path, number = triton_bundle.write(), call.partition("=")[2]
    with library.open(path, mode=b"default", lazy=1) as model, library.open(path, lazy=1) as other:
        with pytest.raises(HostError, match=rf"bucket 0 .*\({number}\)"):
            for _ in range(3):
                check(model, 7)
        again = (
            rf"(?s)nothing runs on this GPU .* since CUDA_ERROR_.* \({number}\).*start the process"
        )
        with pytest.raises(HostError, match=again) as caught:
            check(model, 40)
        assert caught.value.status == GPU_FAILED
        # The other model finds out by itself.
        with pytest.raises(HostError, match=rf"\({number}\)"):
            check(other, 7)
    fake_driver.reset()  # the GPU took everything with it


def in_child(work: Callable[[], Any]) -> str:
    """What a forked process is told."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "it worked"
        try:
            work()
        except HostError as error:
            text = f"{error.status} {error.text}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        return stream.read()


def test_a_fork_is_refused(
    fake_driver: FakeCudart, library: HostLibrary, triton_bundle: TritonBundle
) -> None:
    path = triton_bundle.write()
    with library.open(path) as model:
        check(model, 7)
        for work in (lambda: check(model, 7), lambda: library.open(path)):
            assert "29 process" in in_child(work) and "was forked" in in_child(work)
        assert in_child(model.close) == "it worked"  # it gives nothing back that isn't its own
        check(model, 7)


# The example that docs/c-interface.md describes.


@pytest.fixture(
    params=[(), pytest.param(c_host.SANITIZERS, marks=pytest.mark.slow)],
    ids=["plain", "sanitized"],
)
def example(
    request: pytest.FixtureRequest, fake_driver: FakeCudart, triton_bundle: TritonBundle
) -> list[str | Path]:
    """The command that runs all golden vectors of a bundle for the GPU."""
    sources = [c_host.EXAMPLE / "run.c", c_host.EXAMPLE / "npz.c"]
    program = c_host.build(MACHINES[NATIVE_ARCH], "example", sources, flags=request.param)
    path = Path(triton_bundle.write())
    return [program, path, *sorted((path / "golden").iterdir())]


def test_the_example_in_each_mode(example: list[str | Path]) -> None:
    for mode in MODES:
        done = MACHINES[NATIVE_ARCH].run(example, EDGECOMPILE_MODE=mode, **c_host.SANITIZED)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(": ok\n") == 4 and '"variant":"cuda-sm90"' in done.stdout


def test_the_end_of_the_example_where_a_call_fails(example: list[str | Path]) -> None:
    for call in (*CALLS_OF_A_RUN, "cuCtxPushCurrent_v2"):
        for failure in ("1=2", "1=700", "2=719"):
            done = MACHINES[NATIVE_ARCH].run(
                example, FAKE_CUDART_FAIL=f"{call}:{failure}", EDGECOMPILE_FALLBACK="cpu",
                EDGECOMPILE_VARIANT="cuda-sm90", EDGECOMPILE_MODE="reduce-overhead",
                **c_host.SANITIZED,
            )  # fmt: skip
            assert done.returncode in (0, GPU_FAILED), f"{call}:{failure}: {done.stderr}"
            assert (done.returncode == 0) is ("CUDA_ERROR_" not in done.stderr)
