"""Programs of Triton kernels where the machine lacks something, or a call of the driver fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import (
    GpuError,
    GpuUnavailableError,
)
from edgecompile.runtime.commands.info import describe_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import (
    CALLS_OF_A_RUN,
    TritonBundle,
    make_inputs,
    take_failing_driver,
)
from tests.runtime.triton.test_triton_model import check

# What the machine may lack.


def refused(path: str) -> GpuUnavailableError:
    with pytest.raises(GpuUnavailableError) as caught:
        open_bundle(path)
    return caught.value


def test_without_a_driver(
    triton_bundle: TritonBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", str(tmp_path / "libcuda.so.1"))
    path = triton_bundle.write()
    assert 'fallback="cpu"' in (refused(path).hint or "")
    verdicts = {v["name"]: v["verdict"] for v in describe_bundle(path, probe=True)["variants"]}
    assert "can't be loaded" in verdicts["cuda-sm90"]


def test_ptx_that_the_driver_is_too_old_for(
    fake_driver: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = TritonBundle(tmp_path / "t.ecb", "TOY_PTX")
    bundle.gpu["ptx"] = "9.0"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=B;cc=10.0;driver=12080")
    monkeypatch.setenv("FAKE_CUDART_FAIL", "cuModuleLoadDataEx:1=222")
    path, words = bundle.write(), r"kernel of toy_products failed: CUDA_ERROR_UNSUPPORTED_PTX"
    with pytest.raises(GpuError, match=words) as caught:
        open_bundle(path)
    assert caught.value.number == 222 and "update NVIDIA's driver" in (caught.value.hint or "")
    fake_driver.reset()
    with open_bundle(path, fallback="cpu") as model:
        assert model.info["variant"] == "toy" and "UNSUPPORTED_PTX" in model.info["fallback"]


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
    triton_bundle: TritonBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    visible: str | None,
) -> None:
    copy = tmp_path / "libcuda-copy.so"
    # Asked for once ahead of time, and once more for the error.
    failures = f"{call}:1={number},{call}:2={number}"
    take_failing_driver(monkeypatch, fake_driver_path, copy, failures, visible)
    error = refused(triton_bundle.write())
    assert f"{call} failed" in error.message and error.number == number
    words = "nvidia-smi" if visible is None else f"CUDA_VISIBLE_DEVICES is {visible!r}"
    assert words in (error.hint or "")


def test_the_gpu_is_made_ready_only_where_it_may_be_used(
    fake_driver_path: Path,
    triton_bundle: TritonBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Under a name of its own, as what was loaded once stays loaded.
    copy = tmp_path / "libcuda-copy.so"
    copy.write_bytes(fake_driver_path.read_bytes())
    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", str(copy))
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=H;cc=9.0;driver=12080")
    path, fake = triton_bundle.write(), FakeCudart(copy)
    with open_bundle(path, variant="toy", warmup=False):
        assert fake.calls("cuInit") == 0
    with open_bundle(path, warmup=False) as model:
        assert fake.calls("cuInit") > 0 and model.info["variant"] == "cuda-sm90"


# What may fail at any moment.


@pytest.mark.parametrize("call", CALLS_OF_A_RUN)
def test_each_call_may_fail(
    fake_driver: FakeCudart,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """Every one of its calls in turn: an error with its name, nothing lost, and the next try works."""
    path = triton_bundle.write()

    def attempt() -> None:
        with open_bundle(path, mode="reduce-overhead") as model:
            check(model, 7)
            check(model, 50)

    attempt()
    made = fake_driver.calls(call)
    assert made
    for number in range(1, made + 1):
        fake_driver.reset()
        monkeypatch.setenv("FAKE_CUDART_FAIL", f"{call}:{number}=2")
        with pytest.raises(GpuError) as caught:
            attempt()
        assert caught.value.number == 2 or caught.value.name, caught.value
        monkeypatch.delenv("FAKE_CUDART_FAIL")
        assert fake_driver.live == 0, (call, number)
        attempt()


@pytest.mark.parametrize("call", ["cuStreamSynchronize:2=700", "cuLaunchKernel:3=719"])
def test_after_a_fault_runs_are_refused(
    fake_driver: FakeCudart,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    monkeypatch.setenv("FAKE_CUDART_FAIL", call)
    path = triton_bundle.write()
    options: Any = {"mode": "default", "warmup": False}
    with open_bundle(path, **options) as model, open_bundle(path, **options) as other:
        assert model.broken is None
        with pytest.raises(GpuError) as caught:
            for _ in range(3):
                check(model, 7)
        assert caught.value.sticky and caught.value.number in (700, 719)
        with pytest.raises(GpuError, match="nothing runs on this GPU in this process any more"):
            model.run(make_inputs(7))
        # The other model finds out by itself.
        assert model.broken is not None and other.broken is None
        with pytest.raises(GpuError) as caught:
            other.run(make_inputs(7))
        assert caught.value.sticky and other.broken is not None
    fake_driver.reset()  # the GPU took everything with it


def test_a_failed_assertion_of_a_kernel(
    fake_driver: FakeCudart, triton_bundle: TritonBundle
) -> None:
    triton_bundle.bundle.document["inputs"][0]["bounds"] = [0, 1000]
    path = triton_bundle.write()
    model, other = open_bundle(path), open_bundle(path)
    inputs = make_inputs(7)
    inputs["input_ids"][0, 3] = 100
    with pytest.raises(GpuError, match=r"bucket 0 .*CUDA_ERROR_ASSERT \(710\)"):
        model.run(inputs)
    with pytest.raises(GpuError, match="nothing runs on this GPU in this process any more"):
        model.run(make_inputs(7))
    # Of one that hasn't run since, nothing can be given back either, and that is no error of its own.
    other.close()
    model.close()
    fake_driver.reset()
