"""finish where a call of TensorRT or CUDA fails.

A call of each stage is tried in every run, the others in ``slow`` ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_gpu.rig import Rig
from tests.finish.outcome import check_served

BUILD_CALLS = ["Builder", "parse_from_file", "add_optimization_profile", "build_serialized_network"]
RUN_CALLS = [
    "Runtime",
    "deserialize_cuda_engine",
    "create_execution_context",
    "set_optimization_profile_async",
    "set_input_shape",
    "infer_shapes",
    "set_tensor_address",
    "execute_async_v3",
]
TIMING_CALLS = ["create_timing_cache", "set_timing_cache", "get_timing_cache"]
CUDA_CALLS = [
    "cudaGetDeviceCount:1",
    "cudaGetDevice:1",
    "cudaGetDeviceProperties:1",
    "cudaDeviceGetAttribute:1",
    "cudaMemGetInfo:1",
    "cudaMemGetInfo:2",
    "cudaDriverGetVersion:1",
    "cudaRuntimeGetVersion:1",
    "cudaStreamCreateWithFlags:1",
    "cudaMalloc:1",
    "cudaMalloc:2",
    "cudaHostAlloc:1",
    "cudaMemcpyAsync:1",
    "cudaStreamSynchronize:1",
    "cudaStreamSynchronize:3",
    "cudaStreamBeginCapture:1",
    "cudaStreamEndCapture:1",
    "cudaGraphInstantiateWithFlags:1",
    "cudaGraphLaunch:1",
]
#: What scripts/test tries of them.
QUICK = {
    *("build_serialized_network", "execute_async_v3", "get_timing_cache", "cudaMalloc:1"),
}


def most_slow(names: list[str]) -> list[Any]:
    """The names as parameters, ``slow`` where they aren't in ``QUICK``."""
    return [pytest.param(n, marks=() if n in QUICK else (pytest.mark.slow,)) for n in names]


def test_operators_that_tensorrt_lacks_are_all_listed(rig: Rig) -> None:
    done = rig.finish(FAKE_TRT_LACKS="Gather,ReduceSum")
    assert done.code == 60
    assert "node 0 lookup (Gather): no importer registered" in done.stderr
    assert "node 4 sum (ReduceSum)" in done.stderr
    assert len(rig.calls("parse_from_file")) == 1  # not tried again
    assert rig.names() == []


@pytest.mark.parametrize("how", ["", pytest.param("raise", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", most_slow([*BUILD_CALLS, *RUN_CALLS]))
def test_a_call_of_tensorrt_that_fails(rig: Rig, name: str, how: str) -> None:
    done = rig.finish(FAKE_TRT_FAIL=f"{name}:1:{how}")
    assert done.code in (29, 60, 62) and "error: " in done.stderr
    # What TensorRT itself can't run is dropped, and so is one of fewer profiles.
    dropped = name in RUN_CALLS and done.code == 29
    assert rig.names() == (["built.json", "engine"] if name in RUN_CALLS and not dropped else [])
    assert len(rig.calls("build_serialized_network")) <= 1 + dropped
    assert rig.finish().report["state"] == "finished"
    wanted = 3 if dropped else 1 + (name == "build_serialized_network")
    assert len(rig.calls("build_serialized_network")) == wanted  # nothing was lost
    check_served(rig, [3], ("default",))


@pytest.mark.parametrize("name", most_slow(TIMING_CALLS))
def test_a_timing_cache_that_fails_costs_time_alone(rig: Rig, name: str) -> None:
    assert rig.finish(FAKE_TRT_FAIL=f"{name}:*").report["state"] == "finished"


@pytest.mark.parametrize("call", most_slow(CUDA_CALLS))
def test_a_call_of_cuda_that_fails(rig: Rig, call: str) -> None:
    done = rig.finish(FAKE_CUDART_FAIL=call)
    if done.code == 0:
        # Devices that share memory copy nothing.
        assert call in ("cudaMemcpyAsync:1", "cudaMalloc:2")
        return
    assert done.code in (19, 29, 62), done.stderr
    assert "error: " in done.stderr and "cuda" in done.stderr
    stamps = [path for path in rig.cache.rglob("stamp.json")]
    assert stamps == []
    again = rig.finish()
    assert again.report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1
