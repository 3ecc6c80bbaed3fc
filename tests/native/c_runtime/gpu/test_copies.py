"""Copies of large inputs to a GPU: in pieces, by several threads, and sent before all is copied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import GpuError
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.triton_bundle import TritonBundle, check_by_threads, make_inputs
from tests.forks import in_child
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, CLibrary
from tests.native.c_runtime.gpu.test_gpu import MODES
from tests.native.c_runtime.test_threads import FLAGS as THREADS

MACHINE = MACHINES[NATIVE_ARCH]
#: A batch whose inputs have 2,560,000 bytes each at 64 tokens, sent in five parts.
BATCH, PARTS = 5000, 5
SEND = "cuMemcpyHtoDAsync_v2"


@pytest.mark.parametrize("flags", [c_library.SANITIZERS, THREADS], ids=["memory", "races"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_copy_each_byte_once(flags: Sequence[str], threads: int) -> None:
    sources = [c_library.PROGRAMS / "host_copies.cpp"]
    program = c_library.build(MACHINE, "host_copies", sources, flags=flags)
    # A child of several threads is nothing for the sanitizer of races.
    forks = int(flags is not THREADS)
    done = MACHINE.run([program, threads, forks], **c_library.SANITIZED)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr[-4000:]


@pytest.fixture
def path(tmp_path: Path) -> str:
    bundle = TritonBundle(tmp_path / "large.ecb")
    document = bundle.bundle.document
    for item in (document, *document["buckets"]):
        item["axes"]["batch"]["hi"] = BATCH
    return bundle.write()


def check(model: object, length: int, batch: int, seed: int = 0) -> None:
    inputs = make_inputs(length, batch, seed)
    got = model.run(inputs)  # type: ignore[attr-defined]
    for name, want in embed(inputs).items():
        np.testing.assert_array_equal(got[name], want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("integrated", [0, 1])
def test_large_inputs_are_sent_in_parts(
    fake_driver: FakeCudart,
    library: CLibrary,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    integrated: int,
) -> None:
    device = f"name=G;cc=9.0;memory=8000000000;integrated={integrated};driver=12080"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", device)
    with library.open(path, mode=mode.encode()) as model, open_bundle(path, mode=mode) as python:
        for length, batch in ((64, BATCH), (64, 2), (40, BATCH), (3, 2), (64, BATCH)):
            for one in (model, python):
                check(one, length, batch, seed=length)
        # Padded to 64 tokens, and in a graph where the mode has them.
        before = fake_driver.calls(SEND)
        check(model, 64, BATCH)
        sent = fake_driver.calls(SEND) - before
    # Several threads may be ready with several parts at a time.
    assert sent == 0 if integrated else 2 <= sent <= 2 * PARTS


def test_a_graph_of_large_inputs_gets_those_of_each_run(
    fake_driver: FakeCudart, library: CLibrary, path: str
) -> None:
    with library.open(path, lazy=1) as model:
        for seed in range(12):
            check(model, 30, BATCH, seed)
            check(model, 5, BATCH, seed)  # of these nothing is large
        assert model.describe()["graphs"] == 2
        check(model, 31, BATCH)


def test_inputs_that_lie_apart(fake_driver: FakeCudart, path: str) -> None:
    inputs = {k: np.asfortranarray(v) for k, v in make_inputs(50, BATCH).items()}
    with open_bundle(path) as model:
        got = model.run(inputs)
    for name, want in embed(inputs).items():
        np.testing.assert_array_equal(got[name], want)


def test_threads_share_a_model(fake_driver: FakeCudart, path: str) -> None:
    with open_bundle(path) as model:
        check_by_threads(lambda length, seed: check(model, length + 25, BATCH, seed))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_failure_between_parts(
    fake_driver: FakeCudart,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    mode: str,
) -> None:
    with open_bundle(path, mode=mode) as model:
        check(model, 64, BATCH)
        made = fake_driver.calls(SEND)
        monkeypatch.setenv("FAKE_CUDART_FAIL", f"{SEND}:{made + number}=2")
        with pytest.raises(GpuError, match=SEND) as caught:
            check(model, 64, BATCH, seed=1)
        assert caught.value.number == 2
        check(model, 64, BATCH, seed=2)
        check(model, 7, 1)


def test_a_fork_is_refused(fake_driver: FakeCudart, library: CLibrary, path: str) -> None:
    with open_bundle(path) as model, library.open(path) as other:
        check(model, 64, BATCH)
        check(other, 64, BATCH)
        assert "was forked after CUDA" in in_child(lambda: model.run(make_inputs(64, BATCH)))
        assert in_child(other.close) == "gave None"
        check(model, 64, BATCH, seed=1)
