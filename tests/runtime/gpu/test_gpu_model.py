"""open_bundle with a variant for a GPU: finished, run in both modes, refused, replaced by the CPU.

TensorRT and CUDA are fakes here (tests/fake_gpu); no GPU computes anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import (
    InputError,
    UnfinishedBundleError,
    UnsupportedHostError,
    UntrustedBundleError,
)
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.commands.info import describe_bundle, format_bundle
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.finish.finish import finish_bundle
from edgecompile.runtime.measure.bench import run_bench
from edgecompile.runtime.measure.calibrate import calibrate_bundle
from edgecompile.runtime.measure.profile import profile_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.bundles import DEVICE, TABLE, run_eager
from tests.runtime.bundles import ORIN, RECIPE


def check(got: Any, length: int, seed: int) -> None:
    for name, want in run_eager(length, seed)[1].items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6, err_msg=name)


def run(model: Any, length: int, seed: int = 0, **options: Any) -> None:
    check(model.run(run_eager(length, seed)[0], **options), length, seed)


@pytest.mark.parametrize("integrated", [True, False])
def test_both_modes_give_what_eager_gives(
    unfinished: str,
    fake_device: FakeCudart,
    integrated: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "FAKE_CUDART_DEVICE", DEVICE.replace("integrated=1", f"integrated={int(integrated)}")
    )
    with pytest.raises(UnfinishedBundleError, match="variant jetson-orin has no finished engine"):
        open_bundle(unfinished)
    finish_bundle(unfinished)
    for mode in ("default", "reduce-overhead"):
        with open_bundle(unfinished, mode=mode) as model:
            info = json.loads(json.dumps(model.info))
            assert (info["backend"], info["variant"]) == ("tensorrt", "jetson-orin")
            assert (info["mode"], info["fallback"]) == (mode, None)
            assert info["gpu"]["name"] == "Orin" and info["zero_copy"] is integrated
            assert info["engine"]["path"].startswith(os.environ["EDGECOMPILE_CACHE"])
            assert info["graphs"] == (2 if mode == "reduce-overhead" else 0)
            assert info["loaded_buckets"] == [0, 1]
            for length in (1, 7, 32, 33, 50, 64):
                run(model, length, length)
            out = {
                "embedding": np.zeros((1, 4), np.float32),
                "states": np.zeros((1, 9, 2), np.float32),
            }
            run(model, 9, out=out)
            check(out, 9, 0)
            stats = model.stats
            assert stats["runs"] == 7 and stats["lengths"]["33"] == 1
            # Of elements of length times batch: what a graph is padded to counts.
            padded = (
                4 * 2 * 32 + 3 * 2 * 64 if mode == "reduce-overhead" else 1 + 7 + 32 + 9 + 3 * 64
            )
            asked = 1 + 7 + 32 + 33 + 50 + 64 + 9
            assert stats["padding"] == pytest.approx(1 - asked / padded)
        assert fake_device.live == 0


def test_int64_stays_int64_and_inputs_are_checked(finished: str) -> None:
    with open_bundle(finished) as model:
        assert {item["dtype"] for item in model.info["inputs"]} == {"int64"}
        inputs = run_eager(5, 0)[0]
        with pytest.raises(InputError, match=r"lie outside 0\.\.99"):
            model.run({**inputs, "input_ids": inputs["input_ids"] + 2**33})
        run(model, 5)


def test_the_selftest_passes(finished: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("default", "reduce-overhead"):
        monkeypatch.setenv("EDGECOMPILE_MODE", mode)
        report = run_selftest(finished)
        assert report["ok"] and report["variant"] == "jetson-orin"


def test_the_precision_of_the_gpu_is_named(unfinished: str, finished: str) -> None:
    report = describe_bundle(unfinished)
    precisions = report["gpu_precision"], report["manifest"]["precision"]
    assert precisions[0] is not None
    assert "({} on the GPU, {} on the CPU)".format(*precisions) in "\n".join(format_bundle(report))
    with open_bundle(finished, warmup=False) as model:
        assert repr(model).startswith(f"<Model {model.manifest.name} {precisions[0]} jetson-orin, ")


def test_finish_on_opening(unfinished: str, fake_device: FakeCudart) -> None:
    with open_bundle(unfinished, finish=True) as model:
        run(model, 20)
    with open_bundle(unfinished) as model:
        run(model, 40)


def test_finish_on_opening_keeps_to_the_caller_s_trust(
    unfinished: str, fake_device: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor its processes look at the folder of the environment, which trusts nobody."""
    monkeypatch.setenv("EDGECOMPILE_TRUST", str(tmp_path / "none"))
    with open_bundle(unfinished, finish=True, trust=False) as model:
        assert model.info["variant"]
    with pytest.raises(UntrustedBundleError):
        finish_bundle(unfinished)


def test_threads_share_a_model(finished: str) -> None:
    with open_bundle(finished, mode="reduce-overhead") as model:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for step in range(10):
                    run(model, 1 + (7 * number + 13 * step) % 64, step)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [] and model.stats["runs"] == 40


def test_a_batch_runs(finished: str) -> None:
    for mode in ("default", "reduce-overhead"):
        with open_bundle(finished, mode=mode) as model:
            inputs = make_inputs(model.manifest, {"batch": 2, "length": 30}, 3)
            states = model.run(inputs)["states"]
            want = TABLE[inputs["input_ids"]] * inputs["attention_mask"][..., None]
            np.testing.assert_allclose(states, want, rtol=1e-6)


def test_info_says_whether_it_is_finished(unfinished: str, fake_device: FakeCudart) -> None:
    report = describe_bundle(unfinished)
    assert report["chosen"] == "jetson-orin"
    assert "has no finished engine" in report["variants"][-1]["verdict"]
    finish_bundle(unfinished)
    report = describe_bundle(unfinished)
    assert report["variants"][-1]["verdict"].startswith("finished: ")
    beside = [n for n in os.listdir(Path(unfinished) / "code/jetson-orin")]
    sizes = sum(os.path.getsize(Path(unfinished) / "code/jetson-orin" / n) for n in beside)
    assert report["device_bytes"]["model"] == sizes
    with pytest.raises(UnsupportedHostError, match="runs on a GPU, of which no profile"):
        profile_bundle(unfinished, seconds=0.1)


def test_tools_measure_it(finished: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_bench(finished, lengths={5: 2, 40: 1}, seconds=0.1, cold_runs=1)
    assert report["variant"] == "jetson-orin" and report["threads"] == 1
    assert [item["length"] for item in report["lengths"]] == [5, 40]
    assert report["cold_start"]["open_ms"] > 0
    ran = {key: report[key] for key in ("backend", "mode", "gpu_precision", "tensorrt")}
    assert ran == {
        "backend": "tensorrt",
        "mode": "planned",
        "gpu_precision": "fp16",
        "tensorrt": "10.3.0",
    }
    assert report["gpu"]["name"] == "Orin" and len(report["engine"]["sha256"]) == 64
    calibration = calibrate_bundle(finished, str(tmp_path / "c.json"), seconds=0.1, cold_runs=1)
    assert calibration["variant"] == "jetson-orin" and calibration["load_ms"] is not None
    assert {point["bucket"] for point in calibration["points"]} == {0, 1}
    for key in ("gpu", "engine", *ran):
        assert calibration[key] == report[key]
    monkeypatch.setenv("EDGECOMPILE_MODE", "default")
    assert run_bench(finished, seconds=0.01, cold_runs=0)["mode"] == "default"
    again = calibrate_bundle(finished, str(tmp_path / "d.json"), seconds=0.01, cold_runs=0)
    assert again["mode"] == "default"


def graft(native_copy: Path) -> str:
    """The real bundle for the CPU with a variant for a GPU that ranks higher, and no engine."""
    path = native_copy / "manifest.json"
    document = json.loads(path.read_text())
    variant = {**ORIN, "arch": architecture(os.uname().machine)}
    document["variants"].append(variant)
    axes = [bucket["axes"] for bucket in document["buckets"]]

    def shapes(sizes: dict[str, Any], shape: list[Any]) -> dict[str, list[int]]:
        return {
            key: [sizes[dim][end] if isinstance(dim, str) else dim for dim in shape]
            for key, end in (("min", "lo"), ("opt", "hint"), ("max", "hi"))
        }

    recipe = {
        **RECIPE,
        "inputs": [{"name": x["name"], "dtype": x["dtype"]} for x in document["inputs"]],
        "outputs": [{"name": x["name"], "dtype": x["dtype"]} for x in document["outputs"]],
        "profiles": [
            {x["name"]: shapes(sizes, x["shape"]) for x in document["inputs"]} for sizes in axes
        ],
        "predicted": {**RECIPE["predicted"], "scratch_bytes": [1 << 20] * len(axes)},
    }
    for name, data in (
        ("recipe.json", json.dumps(recipe).encode()),
        ("model.onnx", b"none"),
        ("weights.fp16", b"none"),
    ):
        file = native_copy / "code/jetson-orin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        document["files"][f"code/jetson-orin/{name}"] = entry
    path.unlink()
    path.write_text(json.dumps(document))
    return str(native_copy)


def test_the_cpu_is_taken_only_where_that_is_asked_for(
    native_copy: Path,
    native_bundle: str,
    fake_device: FakeCudart,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = graft(native_copy)
    with pytest.raises(UnfinishedBundleError) as caught:
        open_bundle(both)
    assert caught.value.hint is not None and 'fallback="cpu"' in caught.value.hint
    with open_bundle(native_bundle) as model:
        plain = model.info["variant"]
        inputs = make_inputs(model.manifest, {a: x.lo for a, x in model.manifest.axes.items()}, 1)
        want = model.run(inputs)
    for name, options in (("argument", {"fallback": "cpu"}), ("environment", {})):
        if name == "environment":
            monkeypatch.setenv("EDGECOMPILE_FALLBACK", "cpu")
        with open_bundle(both, mode="reduce-overhead", **options) as model:
            info = model.info
            assert (info["variant"], info["backend"], info["mode"]) == (
                plain,
                "aoti-cpu",
                "default",
            )
            assert "has no finished engine" in info["fallback"]
            assert "has no finished engine" in info["refused_variants"]["jetson-orin"][0]
            got = model.run(inputs)
        for key, array in want.items():
            np.testing.assert_array_equal(got[key], array)
    # Who names a variant means it.
    with pytest.raises(UnfinishedBundleError):
        open_bundle(both, variant="jetson-orin", fallback="cpu")
    with open_bundle(both, variant=plain) as model:
        assert model.info["fallback"] is None
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with open_bundle(both) as model:
        assert "module tensorrt can't be used" in model.info["fallback"]
    shutil.rmtree(native_copy)
