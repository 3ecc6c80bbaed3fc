"""Programs that read numbers from the GPU in their middle, as sizes depend on values: in every mode, without graphs.

The program is written by hand and CUDA's driver is a fake; the runtime library and the loader are real.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import GpuError
from edgecompile.runtime.commands.info import describe_bundle, format_bundle
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.measure.bench import run_bench
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import (
    VARIANT,
    TritonSelector,
    check_by_threads,
    make_inputs,
    select,
)

MODES = ("planned", "default", "reduce-overhead")


@pytest.fixture
def selector(tmp_path: Path) -> TritonSelector:
    return TritonSelector(tmp_path / "selector.ecb")


def check(model: Any, inputs: dict[str, Any]) -> None:
    got = model.run(inputs)
    for name, want in select(inputs).items():
        assert got[name].dtype == want.dtype
        np.testing.assert_array_equal(got[name], want, err_msg=name)


def inputs_of(length: int, batch: int, kept: str) -> dict[str, Any]:
    inputs = make_inputs(length, batch, seed=length)
    if kept != "some":
        inputs["attention_mask"][...] = kept == "all"
    return inputs


def test_runs_allocate_nothing_and_wait_for_one_number(
    fake_driver: FakeCudart, selector: TritonSelector
) -> None:
    with open_bundle(selector.write(), mode="default") as model:
        model.warm_up()
        # The count's memory, then room for a pair of numbers for each of the 2 x 64 elements.
        assert model.info["scratch_bytes"] == 2 * 2 * 64 * 8
        calls = ("cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadDataEx")
        before = [fake_driver.calls(name) for name in calls]
        waits = fake_driver.calls("cuStreamSynchronize")
        for kept in ("none", "all", "some"):
            check(model, inputs_of(40, 2, kept))
        assert [fake_driver.calls(name) for name in calls] == before
        assert fake_driver.calls("cuMemcpyDtoH_v2") >= 3
        assert fake_driver.calls("cuStreamSynchronize") == waits + 2 * 3


def test_runs_of_several_threads(fake_driver: FakeCudart, selector: TritonSelector) -> None:
    with open_bundle(selector.write()) as model:

        def work(length: int, seed: int) -> None:
            kept = ("none", "some", "all")[seed % 3]
            check(model, inputs_of(length, 1 + seed % 2, kept))

        check_by_threads(work)


def test_outputs_of_the_callers_own(fake_driver: FakeCudart, selector: TritonSelector) -> None:
    inputs = inputs_of(20, 1, "some")
    want = select(inputs)
    out = {name: np.zeros_like(array) for name, array in want.items()}
    with open_bundle(selector.write()) as model:
        model.run(inputs, out=out)
        for name, array in want.items():
            np.testing.assert_array_equal(out[name], array)
        out["kept"] = np.zeros(len(want["kept"]) + 1, np.float32)
        with pytest.raises(GpuError, match=r"an output has shape .*, memory for"):
            model.run(inputs, out=out)


@pytest.mark.parametrize("mode", MODES)
def test_the_self_test_and_bench(
    fake_driver: FakeCudart, selector: TritonSelector, mode: str
) -> None:
    path = selector.write()
    assert run_selftest(path, mode=mode)["ok"]
    assert run_bench(path, seconds=0.05, cold_runs=0, mode=mode)["lengths"]


def test_info_says_that_there_are_no_graphs(
    fake_driver: FakeCudart, selector: TritonSelector
) -> None:
    lines = format_bundle(describe_bundle(selector.write()))
    assert any(VARIANT in line and "without CUDA graphs" in line for line in lines)


@pytest.mark.parametrize(
    ("fault", "kept", "text"),
    [
        (1, "all", "asks for other memory than its rehearsal did"),
        (2, "some", "an order that depends on values"),
        (3, "some", "elements of int64 were read as a number of float32"),
        (4, "some", "2 elements of int64 were read as a number of int64"),
    ],
)
def test_programs_that_misbehave(
    fake_driver: FakeCudart, tmp_path: Path, fault: int, kept: str, text: str
) -> None:
    path = TritonSelector(tmp_path / "selector.ecb", f"TOY_FAULT={fault}").write()
    with (
        pytest.raises(GpuError, match=text),
        open_bundle(path, warmup=False) as model,
    ):
        check(model, inputs_of(20, 1, "none" if fault == 1 else kept))
        check(model, inputs_of(20, 1, kept))


def test_loaders_that_know_nothing_of_it_are_refused(
    fake_driver: FakeCudart, selector: TritonSelector
) -> None:
    del selector.gpu["graphs"]  # as older ones read the manifest
    with pytest.raises(GpuError, match="use the runtime in the bundle's own runtime/ folder"):
        open_bundle(selector.write())


def test_a_failed_read_is_told(
    fake_driver: FakeCudart, selector: TritonSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = selector.write()
    monkeypatch.setenv("FAKE_CUDART_FAIL", "cuMemcpyDtoH_v2:1=1")
    with open_bundle(path, warmup=False) as model:
        with pytest.raises(GpuError, match="reading a number failed: CUDA_ERROR_INVALID_VALUE"):
            check(model, inputs_of(20, 1, "some"))
        check(model, inputs_of(20, 1, "some"))
