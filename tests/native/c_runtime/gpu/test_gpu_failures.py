"""The C runtime with a GPU that is missing, another one, or fails, on a fake of CUDA's driver.

tests/runtime/triton/test_triton_failures.py lets each call fail in the same code, from Python.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from edgecompile.runtime import open_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import CALLS_OF_A_RUN, TritonBundle
from tests.forks import in_child
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, CLibrary, CLibraryError
from tests.native.c_runtime.gpu.test_gpu import GPU_FAILED, MODES, NO_GPU, check, refused

# What the machine may lack.


def test_without_a_driver(
    library: CLibrary,
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


def refused_by_c(library: CLibrary, path: str) -> str:
    with pytest.raises(CLibraryError) as caught:
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
    library: CLibrary,
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
    with library.open(path) as model, open_bundle(path) as python:
        check(model, 3)
        check(python, 3)


def test_code_for_other_gpus(
    fake_driver: FakeCudart, library: CLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PTX serves later ones; and a manifest may promise more than there is."""
    bundle = TritonBundle(tmp_path / "ptx.ecb", "TOY_PTX")
    bundle.gpu["ptx"] = "9.0"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=B;cc=10.0;driver=13000")
    path = bundle.write()
    with library.open(path) as model, open_bundle(path) as python:
        check(model, 3)
        check(python, 3)
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
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
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


# What may fail at any moment.


def failure(work: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(CLibraryError) as caught:
        work()
    return caught.value.status, caught.value.text


def test_a_fork_is_refused(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
) -> None:
    path = triton_bundle.write()
    with library.open(path) as model:
        check(model, 7)
        for work in (lambda: check(model, 7), lambda: library.open(path)):
            text = in_child(partial(failure, work))
            assert text.startswith(f'gave ({GPU_FAILED}, "process') and "was forked" in text
        assert in_child(model.close) == "gave None"  # it gives nothing back that isn't its own
        check(model, 7)


# The example that docs/c-runtime.md describes.


@pytest.fixture(
    params=[(), pytest.param(c_library.SANITIZERS, marks=pytest.mark.slow)],
    ids=["plain", "sanitized"],
)
def example(
    request: pytest.FixtureRequest, fake_driver: FakeCudart, triton_bundle: TritonBundle
) -> list[str | Path]:
    """The command that runs all golden vectors of a bundle for the GPU."""
    sources = [c_library.EXAMPLE / "run.c", c_library.EXAMPLE / "npz.c"]
    program = c_library.build(MACHINES[NATIVE_ARCH], "example", sources, flags=request.param)
    path = Path(triton_bundle.write())
    return [program, path, *sorted((path / "golden").iterdir())]


def test_the_example_in_each_mode(example: list[str | Path]) -> None:
    for mode in MODES:
        done = MACHINES[NATIVE_ARCH].run(example, EDGECOMPILE_MODE=mode, **c_library.SANITIZED)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(": ok\n") == 4 and '"variant":"cuda-sm90"' in done.stdout


def test_the_end_of_the_example_where_a_call_fails(example: list[str | Path]) -> None:
    for call in (*CALLS_OF_A_RUN, "cuCtxPushCurrent_v2"):
        for failure in ("1=2", "1=700", "2=719"):
            done = MACHINES[NATIVE_ARCH].run(
                example, FAKE_CUDART_FAIL=f"{call}:{failure}", EDGECOMPILE_FALLBACK="cpu",
                EDGECOMPILE_VARIANT="cuda-sm90", EDGECOMPILE_MODE="reduce-overhead",
                **c_library.SANITIZED,
            )  # fmt: skip
            assert done.returncode in (0, GPU_FAILED), f"{call}:{failure}: {done.stderr}"
            assert (done.returncode == 0) is ("CUDA_ERROR_" not in done.stderr)
