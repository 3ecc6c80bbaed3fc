"""cuda: libcudart through ctypes, tried on a fake of it (no GPU: tests/fake_gpu/fake_cudart.c)."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.base.errors import GpuError, GpuUnavailableError
from edgecompile.runtime.gpu import cuda as cuda_module
from edgecompile.runtime.gpu.cuda import Cuda
from tests.fake_gpu.build import FakeCudart
from tests.forks import in_child


def view(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def test_device_and_memory(fake_cudart: FakeCudart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "FAKE_CUDART_DEVICE", "name=Orin;cc=8.7;sm=8;memory=1000;integrated=1;driver=12060"
    )
    cuda = Cuda.load()
    assert Cuda.load() is cuda and cuda.path == str(fake_cudart.path)
    device = cuda.device()
    assert device.to_json() == {
        "name": "Orin",
        "compute_capability": "8.7",
        "sm_count": 8,
        "integrated": True,
        "memory_bytes": 1000,
        "driver_version": "12.6",
        "runtime_version": "12.6",
    }
    block = cuda.malloc(600)
    assert block % 256 == 0 and cuda.memory() == (400, 1000)
    with pytest.raises(GpuError, match=r"cudaMalloc failed: cudaErrorMemoryAllocation \(2\)") as e:
        cuda.malloc(500)
    assert (e.value.name, e.value.number, e.value.sticky) == ("cudaErrorMemoryAllocation", 2, False)
    assert e.value.hint is not None and "memory" in e.value.hint
    cuda.free(block)
    assert cuda.memory() == (1000, 1000) and fake_cudart.live == 0 and fake_cudart.misuses == 0


def test_copies_are_done_when_waited_for(fake_cudart: FakeCudart) -> None:
    cuda = Cuda.load()
    stream, block = cuda.stream(), cuda.malloc(64)
    host = cuda.host_alloc(64)
    view(host, 64)[:] = 7
    cuda.copy_to_device(block, host, 64, stream)
    view(host, 64)[:] = 8  # too early, and the fake shows it
    cuda.synchronize(stream)
    assert (view(block, 64) == 8).all()
    cuda.copy_to_host(host + 32, block, 32, stream)
    cuda.synchronize(stream)
    cuda.free(block)
    cuda.host_free(host)
    cuda.destroy_stream(stream)
    assert fake_cudart.live == 0 and fake_cudart.misuses == 0


def test_mapped_memory_has_an_address_on_each_side(fake_cudart: FakeCudart) -> None:
    cuda = Cuda.load()
    host = cuda.host_alloc(16)
    alias = cuda.device_pointer(host)
    view(host, 16)[:] = 3
    assert fake_cudart.library.fake_cudart_reaches(ctypes.c_void_p(alias), ctypes.c_size_t(16))
    assert not fake_cudart.library.fake_cudart_reaches(ctypes.c_void_p(host), ctypes.c_size_t(16))
    assert (view(alias, 16) == 3).all()
    cuda.host_free(host)


def test_a_graph_replays_what_was_recorded(fake_cudart: FakeCudart) -> None:
    cuda = Cuda.load()
    stream, device, host = cuda.stream(), cuda.malloc(8), cuda.host_alloc(8)
    cuda.begin_capture(stream)
    cuda.copy_to_device(device, host, 8, stream)
    graph = cuda.end_capture(stream)
    executable = cuda.instantiate(graph)
    cuda.destroy_graph(graph)
    cuda.synchronize(stream)
    assert (view(device, 8) == 0xCB).all()  # recorded, not done
    for value in (1, 2):
        view(host, 8)[:] = value
        cuda.launch(executable, stream)
        cuda.synchronize(stream)
        assert (view(device, 8) == value).all()
    cuda.destroy_executable(executable)
    cuda.free(device)
    cuda.host_free(host)
    cuda.destroy_stream(stream)
    assert fake_cudart.live == 0


def test_a_spoilt_capture_leaves_a_stream_that_works(fake_cudart: FakeCudart) -> None:
    cuda = Cuda.load()
    stream = cuda.stream()
    for spoil in (lambda: cuda.synchronize(stream), lambda: cuda.malloc(8)):
        cuda.begin_capture(stream)
        with pytest.raises(GpuError, match=r"cudaErrorStreamCaptureUnsupported \(900\)"):
            spoil()
        with pytest.raises(GpuError, match=r"cudaErrorStreamCaptureInvalidated \(901\)"):
            cuda.end_capture(stream)
        cuda.synchronize(stream)
    with pytest.raises(GpuError, match=r"cudaErrorStreamCaptureUnmatched \(903\)"):
        cuda.end_capture(stream)
    cuda.destroy_stream(stream)
    assert fake_cudart.live == 0


def misuse_freed(cuda: Cuda) -> None:
    block = cuda.malloc(8)
    cuda.free(block)
    cuda.free(block)


def misuse_foreign(cuda: Cuda) -> None:
    cuda.copy_to_device(cuda.malloc(8), ctypes.addressof(ctypes.c_int64()), 8, cuda.stream())


def misuse_too_far(cuda: Cuda) -> None:
    cuda.copy_to_device(cuda.malloc(8), cuda.host_alloc(16), 16, cuda.stream())


def misuse_wrong_side(cuda: Cuda) -> None:
    cuda.copy_to_device(cuda.host_alloc(8), cuda.malloc(8), 8, cuda.stream())


@pytest.mark.parametrize(
    "misuse", [misuse_freed, misuse_foreign, misuse_too_far, misuse_wrong_side]
)
def test_the_fake_finds_misuse(fake_cudart: FakeCudart, misuse: Callable[[Cuda], None]) -> None:
    with pytest.raises(GpuError, match=r"cudaErrorInvalidValue \(1\)"):
        misuse(Cuda.load())
    assert fake_cudart.misuses == 1


def test_errors_as_asked_for(fake_cudart: FakeCudart, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda.load()
    monkeypatch.setenv("FAKE_CUDART_FAIL", "cudaMalloc:2,cudaStreamSynchronize:1=719")
    cuda.malloc(8)
    with pytest.raises(GpuError, match=r"cudaErrorMemoryAllocation \(2\)") as caught:
        cuda.malloc(8)
    assert not caught.value.sticky
    stream = cuda.stream()
    with pytest.raises(GpuError, match=r"cudaErrorLaunchFailure \(719\)") as caught:
        cuda.synchronize(stream)
    assert caught.value.sticky and caught.value.exit_code == 29
    with pytest.raises(GpuError, match="cudaErrorLaunchFailure"):
        cuda.malloc(8)


def test_what_is_missing_is_named(
    fake_cudart: FakeCudart,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    compile_c: Callable[[str], bytes],
) -> None:
    # Each under a name of its own: what was loaded once is kept.
    copy = tmp_path / "libcudart-copy.so"
    copy.write_bytes(fake_cudart.path.read_bytes())
    monkeypatch.setenv("EDGECOMPILE_CUDART", str(copy))
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "count=0")
    with pytest.raises(GpuUnavailableError, match=r"cudaErrorNoDevice \(100\)") as caught:
        Cuda.load()
    assert caught.value.exit_code == 19
    poor = tmp_path / "libpoor.so"
    poor.write_bytes(compile_c("int cudaMalloc(void){return 0;}"))
    monkeypatch.setenv("EDGECOMPILE_CUDART", str(poor))
    with pytest.raises(GpuUnavailableError, match=r"has no cudaGetLastError, .*cudaGraphDestroy"):
        Cuda.load()
    monkeypatch.setenv("EDGECOMPILE_CUDART", str(tmp_path / "absent.so"))
    with pytest.raises(GpuUnavailableError, match=r"absent\.so, which EDGECOMPILE_CUDART names"):
        Cuda.load()
    monkeypatch.delenv("EDGECOMPILE_CUDART")
    monkeypatch.setattr(cuda_module, "_NAMES", ("libcudart-of-nobody.so",))
    monkeypatch.setattr(cuda_module, "_FOLDERS", (str(tmp_path),))
    with pytest.raises(GpuUnavailableError, match=r"no libcudart can be loaded.*of-nobody.so") as e:
        Cuda.load()
    assert e.value.hint is not None and "nvidia-jetpack" in e.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_after_a_fork_it_says_so(fake_cudart: FakeCudart) -> None:
    cuda = Cuda.load()
    block = cuda.malloc(8)
    calls = fake_cudart.calls("cudaMalloc")
    for work in (lambda: cuda.malloc(8), Cuda.load):
        text = in_child(work)
        assert "was forked after CUDA had been loaded" in text and text.startswith("GpuError")
        assert "open the bundle in the child" in text
    # The fake, like CUDA, would fail too.
    assert "gave 3" in in_child(lambda: fake_cudart.library.cudaFree(ctypes.c_void_p(block)))
    cuda.free(block)
    assert fake_cudart.calls("cudaMalloc") == calls and fake_cudart.live == 0


def test_a_real_library_has_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGECOMPILE_CUDART", raising=False)
    try:
        found = cuda_module._open("")
    except GpuUnavailableError as error:
        assert "no libcudart can be loaded" in error.message
        pytest.skip("needs CUDA's runtime library, a driver isn't needed")
    # Nothing but its answer shows that this isn't a fake: without a driver it is error 35.
    number = found._library.cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))
    assert number in (0, 35, 100)
    if number:
        assert found._error(number, "it").message.startswith("it failed: cudaError")


def test_numbers_are_those_of_the_header() -> None:
    header = Path("/usr/local/cuda/include/driver_types.h")
    if not header.is_file():
        pytest.skip("needs CUDA's headers")
    text = header.read_text()
    for name, value in (
        ("cudaMemcpyHostToDevice", cuda_module._TO_DEVICE),
        ("cudaMemcpyDeviceToHost", cuda_module._TO_HOST),
        ("cudaStreamCaptureModeThreadLocal", cuda_module._THREAD_LOCAL),
        ("cudaDevAttrMultiProcessorCount", cuda_module._SM_COUNT),
        ("cudaDevAttrIntegrated", cuda_module._INTEGRATED),
        ("cudaDevAttrCanMapHostMemory", cuda_module._CAN_MAP_HOST),
        ("cudaDevAttrComputeCapabilityMajor", cuda_module._MAJOR),
        ("cudaDevAttrComputeCapabilityMinor", cuda_module._MINOR),
    ):
        assert re.search(rf"\b{name}\s*=\s*{value}\b", text), name
    for name, value in (
        ("cudaHostAllocPortable", cuda_module._HOST_PORTABLE),
        ("cudaHostAllocMapped", cuda_module._HOST_MAPPED),
        ("cudaStreamNonBlocking", cuda_module._NON_BLOCKING),
    ):
        assert re.search(rf"define {name}\s+0x0*{value}\b", text), name
    # Whatever the header says leaves the process unusable is sticky.
    sticky = re.findall(r"inconsistent state[^=]*?(cudaError\w+)\s*=\s*(\d+)", text)
    assert len(sticky) >= 8
    assert {int(number) for _, number in sticky} <= cuda_module.STICKY
