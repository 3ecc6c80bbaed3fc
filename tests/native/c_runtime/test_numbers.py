"""The C runtime with programs whose sizes depend on values: the outputs of the Python runtime, and no graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.triton.programs import GRAPH_AFTER
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.triton_bundle import (
    TritonBundle,
    TritonSelector,
    make_inputs,
    select,
)
from tests.native.c_runtime.c_library import CLibrary, CLibraryError

MODES = ("planned", "default", "reduce-overhead")
GPU_FAILED = 29


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("integrated", [0, 1])
def test_outputs_are_those_of_python(
    fake_driver: FakeCudart,
    library: CLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    integrated: int,
) -> None:
    device = f"name=Orin;cc=9.0;sm=16;memory=8000000;integrated={integrated};driver=12080"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", device)
    monkeypatch.setenv("EDGECOMPILE_MODE", mode)
    path = TritonSelector(tmp_path / "selector.ecb").write()
    with library.open(path) as model, open_bundle(path) as python:
        for length in (1, 7, 32, 33, 64, *[9] * (2 * GRAPH_AFTER)):
            for kept in (0, 1, None):
                inputs = make_inputs(length, 1 + length % 2, seed=length)
                if kept is not None:
                    inputs["attention_mask"][...] = kept
                got, want = model.run(inputs), python.run(inputs)
                for name, array in select(inputs).items():
                    assert got[name].shape == want[name].shape == array.shape
                    np.testing.assert_array_equal(got[name], array)
                    assert got[name].tobytes() == want[name].tobytes()
        told, info = model.describe(), python.info
        del told["host"], info["host"], info["run_threads"]
        assert told == info and told["graphs"] == 0
    assert fake_driver.calls("cuStreamBeginCapture_v2") == 0


@pytest.mark.parametrize("mode", MODES)
def test_padded_buckets_are_filled_up_and_queued(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle, mode: str
) -> None:
    triton_bundle.gpu["graphs"] = False
    path = triton_bundle.write()
    with library.open(path, mode=mode.encode()) as model, open_bundle(path, mode=mode) as python:
        for length in (5, 32, 33, 50, 64):
            inputs = make_inputs(length)
            got, same = model.run(inputs), python.run(inputs)
            for name, want in embed(inputs).items():
                np.testing.assert_array_equal(got[name], want)
                np.testing.assert_array_equal(same[name], want)
        assert python.info["graphs"] == 0
    assert fake_driver.calls("cuStreamBeginCapture_v2") == 0


def test_a_manifest_that_says_nothing_of_it_is_refused(
    fake_driver: FakeCudart, library: CLibrary, tmp_path: Path
) -> None:
    selector = TritonSelector(tmp_path / "selector.ecb")
    del selector.gpu["graphs"]
    with pytest.raises(CLibraryError, match="use the runtime in the bundle's own runtime/ folder"):
        library.open(selector.write())
