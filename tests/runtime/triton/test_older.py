"""Bundles whose runtime library runs single programs alone: both loaders open them, with what that allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import GpuError, GpuUnavailableError, InputError
from edgecompile.runtime.commands.info import describe_bundle
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.measure.tune import tune_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.triton_bundle import (
    TritonBundle,
    TritonDecoder,
    TritonMultiplier,
    TritonSelector,
    build_older_gpu_runtime,
    generate,
    make_inputs,
)
from tests.forks import in_child

MODES = ("planned", "default", "reduce-overhead")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", [TritonBundle, TritonSelector, TritonMultiplier, TritonDecoder])
def test_golden_vectors_in_every_mode(fake_driver: FakeCudart, tmp_path: Path, kind: Any) -> None:
    path = kind(tmp_path / "x.ecb", library=build_older_gpu_runtime()).write()
    for mode in MODES:
        report = run_selftest(path, mode=mode)
        assert report["ok"] and report["variant"] == "cuda-sm90", report


def test_it_tells_what_others_tell(fake_driver: FakeCudart, tmp_path: Path) -> None:
    older = TritonBundle(tmp_path / "older.ecb", library=build_older_gpu_runtime()).write()
    newer = TritonBundle(tmp_path / "newer.ecb").write()
    with open_bundle(older, mode="reduce-overhead") as model:
        told = model.info
        for length in (3, 40):
            got = model.run(make_inputs(length))
            for name, want in embed(make_inputs(length)).items():
                assert (got[name] == want).all()
        text = in_child(lambda: model.run(make_inputs(3)))
        assert text.startswith("GpuError") and "was forked after CUDA had been loaded" in text
    with open_bundle(newer, mode="reduce-overhead") as model:
        assert told.keys() == model.info.keys()
        own = {"path", "manifest_sha256"}
        assert {k: v for k, v in told.items() if k not in own} == {
            k: v for k, v in model.info.items() if k not in own
        }


def test_it_is_tuned_by_its_own_runtime(fake_driver: FakeCudart, tmp_path: Path) -> None:
    bundle = TritonBundle(tmp_path / "x.ecb", library=build_older_gpu_runtime())
    bundle.add_alternatives()
    path = bundle.write()
    with pytest.raises(InputError, match="older than tuning by this runtime") as caught:
        tune_bundle(path, seconds=0.0)
    assert caught.value.hint == f"python3 {path} tune"
    verdicts = [str(x["verdict"]) for x in describe_bundle(path)["variants"]]
    assert any("older than tuning" in text for text in verdicts)
    with open_bundle(path) as model:
        assert model.info["tuned"] is None


def test_a_decoder_is_given_its_caches(fake_driver: FakeCudart, tmp_path: Path) -> None:
    path = TritonDecoder(tmp_path / "x.ecb", library=build_older_gpu_runtime()).write()
    with open_bundle(path) as model:
        for prompt in ([3, 4, 5], [9]):
            assert model.generate(prompt, max_new_tokens=40, eos=()) == generate(prompt, 40)


@pytest.mark.parametrize(
    ("call", "number"), [("cuMemAlloc_v2:1", 2), ("cuModuleLoadDataEx:1", 209)]
)
def test_what_fails_leaves_nothing(
    fake_driver: FakeCudart,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
) -> None:
    path = TritonBundle(tmp_path / "x.ecb", library=build_older_gpu_runtime()).write()
    monkeypatch.setenv("FAKE_CUDART_FAIL", f"{call}={number}")
    with pytest.raises(GpuError) as caught:
        open_bundle(path)
    assert caught.value.number == number and fake_driver.live == 0


def test_a_gpu_that_does_not_fit(
    fake_driver: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TritonBundle(tmp_path / "x.ecb", library=build_older_gpu_runtime()).write()
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=A;cc=8.0;driver=12080")
    with pytest.raises(GpuUnavailableError, match="can't run here: its kernels are for"):
        open_bundle(path)
