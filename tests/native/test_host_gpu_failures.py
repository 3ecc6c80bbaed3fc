"""The C interface with a GPU that fails: at each call, for good, and after a fork.

As test_host_gpu.py, on a fake of CUDA's driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import TritonBundle
from tests.native import c_host
from tests.native.c_host import MACHINES, NATIVE_ARCH, HostError, HostLibrary
from tests.native.test_host_gpu import GPU_FAILED, MODES, check


@pytest.fixture(scope="module")
def library() -> HostLibrary:
    machine = MACHINES[NATIVE_ARCH]
    return HostLibrary(
        c_host.build(machine, "edgecompile_runtime", shared=True, link=["-Wl,-z,nodelete"])
    )


CALLS = (
    "cuMemAlloc_v2", "cuMemHostAlloc", "cuMemcpyHtoD_v2", "cuStreamCreate", "cuModuleLoadDataEx",
    "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuStreamBeginCapture_v2", "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuDeviceGetName", "cuMemGetInfo_v2",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
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


def test_with_sanitizers(
    fake_driver: FakeCudart, triton_bundle: TritonBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example: its golden vectors in each mode, and the end of it where a call fails."""
    sources = [c_host.EXAMPLE / "run.c", c_host.EXAMPLE / "npz.c"]
    machine = MACHINES[NATIVE_ARCH]
    program = c_host.build(machine, "example", sources, flags=c_host.SANITIZERS)
    path = Path(triton_bundle.write())
    command = [program, path, *sorted((path / "golden").iterdir())]
    for mode in MODES:
        done = machine.run(command, EDGECOMPILE_MODE=mode, **c_host.SANITIZED)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(": ok\n") == 4 and '"variant":"cuda-sm90"' in done.stdout
    monkeypatch.setenv("EDGECOMPILE_MODE", "reduce-overhead")
    for call in (*CALLS, "cuCtxPushCurrent_v2"):
        for failure in ("1=2", "1=700", "2=719"):
            done = machine.run(
                command, FAKE_CUDART_FAIL=f"{call}:{failure}", EDGECOMPILE_FALLBACK="cpu",
                EDGECOMPILE_VARIANT="cuda-sm90", **c_host.SANITIZED,
            )  # fmt: skip
            assert done.returncode in (0, GPU_FAILED), f"{call}:{failure}: {done.stderr}"
            assert (done.returncode == 0) is ("CUDA_ERROR_" not in done.stderr)
