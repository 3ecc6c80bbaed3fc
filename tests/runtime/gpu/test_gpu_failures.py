"""open_bundle with a variant for a GPU: what is refused, what fails, and what a failure leaves.

TensorRT and CUDA are fakes here (tests/fake_gpu); no GPU computes anything.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import (
    GpuError,
    GpuUnavailableError,
    InputError,
    ModeError,
    SelftestError,
    UnfinishedBundleError,
    UnsupportedHostError,
)
from edgecompile.runtime.commands.info import describe_bundle
from edgecompile.runtime.finish.finish import finish_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.bundles import DEVICE, GpuBundle, run_eager
from tests.forks import in_child
from tests.runtime.golden_files import write_case
from tests.runtime.gpu.test_gpu_model import run


def test_an_engine_that_fails_its_test_on_opening(tmp_path: Path, fake_device: FakeCudart) -> None:
    bundle = GpuBundle(tmp_path / "tiny.ecb")
    inputs, outputs = run_eager(7, 0)
    outputs["states"] = outputs["states"] + np.float32(1)
    bundle.files["golden/0-hint.npz"] = write_case(inputs, outputs)
    path = bundle.write()
    with pytest.raises(SelftestError, match="doesn't reproduce the golden vectors"):
        open_bundle(path, finish=True)
    # The bundle has no variant for the CPU, so it is looked for in vain, but it is looked for.
    text = "jetson-orin: can't be used here: the engine doesn't reproduce the golden vectors"
    with pytest.raises(UnsupportedHostError, match=text):
        open_bundle(path, finish=True, fallback="cpu")


def test_damage_is_noticed(finished: str) -> None:
    with open_bundle(finished) as model:
        path = Path(model.info["engine"]["path"])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnfinishedBundleError, match=hashlib.sha256(data).hexdigest()) as caught:
        open_bundle(finished)
    assert caught.value.hint is not None and "finish" in caught.value.hint
    path.write_bytes(data[:-1])
    with pytest.raises(UnfinishedBundleError, match="bytes, must have"):
        open_bundle(finished)


def test_another_device_needs_an_engine_of_its_own(
    finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE.replace("driver=12060", "driver=12080"))
    with pytest.raises(UnfinishedBundleError, match=r"CUDA driver 12\.8") as caught:
        open_bundle(finished)
    assert caught.value.exit_code == 18 and caught.value.hint is not None
    assert f"python -m edgecompile.runtime finish {finished}" in caught.value.hint


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("deserialize_cuda_engine:1", "doesn't accept this engine: The engine plan file"),
        pytest.param(
            "create_execution_context:1",
            "creating a context of profile 0: .*OutOfMemory",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "set_optimization_profile_async:1",
            r"choosing profile 0 \(Error in set optimi.*\): the profile can't be set",
            marks=pytest.mark.slow,
        ),
        ("set_input_shape:1", r"setting input_ids to shape \[2, 32\]"),
        pytest.param(
            "infer_shapes:1",
            r"inferring shapes \(infer_shapes error code: -1\): shapes can't be",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "set_tensor_address:2",
            "setting the address of attention_mask",
            marks=pytest.mark.slow,
        ),
        ("execute_async_v3:1", "queueing a run: .*a fake failure"),
        ("execute_async_v3:2", "bucket 0 .*can't be captured as a graph"),
    ],
)
def test_failures_of_tensorrt_are_named(
    finished: str, failure: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counts").mkdir()
    monkeypatch.setenv("FAKE_TRT_COUNTS", str(tmp_path / "counts"))
    monkeypatch.setenv("FAKE_TRT_FAIL", failure)
    with pytest.raises(GpuError, match=text) as caught:
        open_bundle(finished, mode="reduce-overhead")
    assert caught.value.exit_code == 29
    with open_bundle(finished, mode="reduce-overhead") as model:  # it fails only once
        run(model, 3)


@pytest.mark.parametrize(
    ("name", "answer", "text"),
    [
        ("set_optimization_profile_async", False, "failed at choosing profile 0, and its log"),
        ("infer_shapes", ["input_ids"], "inferring shapes, for which it needs input_ids, and"),
    ],
)
def test_what_bindings_that_don_t_raise_would_return(
    finished: str, name: str, answer: object, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt

    with monkeypatch.context() as patch:
        patch.setattr(tensorrt.IExecutionContext, name, lambda self, *arguments: answer)
        with pytest.raises(GpuError, match=text):
            open_bundle(finished)
    with open_bundle(finished) as model:
        run(model, 3)


def test_a_run_that_goes_astray_ends_the_model(finished: str, fake_device: FakeCudart) -> None:
    with open_bundle(finished) as model:
        run(model, 3)
        assert model.broken is None
        fake_device.library.fake_cudart_fault(700)
        # TensorRT only says that it can't.
        with pytest.raises(GpuError, match=r"queueing a run.*cudaErrorIllegalAddress \(700\)"):
            run(model, 3)
        with pytest.raises(GpuError, match="nothing runs on this GPU in this process any more"):
            run(model, 50)
        assert "cudaErrorIllegalAddress (700)" in (model.broken or "")
        assert model.stats["runs"] == 1
    fake_device.reset()


def test_after_a_fork_the_child_says_so_and_ends_well(finished: str) -> None:
    with open_bundle(finished) as model:
        run(model, 3)

        def close_and_open() -> None:
            model.close()
            open_bundle(finished)

        for work in (lambda: model.run(run_eager(3, 0)[0]), close_and_open):
            text = in_child(work)
            assert text.startswith("GpuError")
            assert "was forked after CUDA had been loaded" in text and "spawn" in text
        run(model, 4)


def test_a_mode_needs_padding_that_was_verified(tmp_path: Path, fake_device: FakeCudart) -> None:
    bundle = GpuBundle(tmp_path / "plain.ecb")
    bundle.recipe.update(padding=False)
    path = bundle.write()
    finish_bundle(path)
    with pytest.raises(ModeError, match="didn't verify that padding changes nothing"):
        open_bundle(path, mode="reduce-overhead")
    with open_bundle(path) as model:
        run(model, 3)


def test_arguments_are_checked(
    unfinished: str, fake_device: FakeCudart, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("mode", "fast"), ("fallback", "gpu")):
        with pytest.raises(InputError, match=f"{name} is '{value}', must be"):
            open_bundle(unfinished, **{name: value})
        monkeypatch.setenv(f"EDGECOMPILE_{name.upper()}", value)
        with pytest.raises(InputError, match=f"{name} is '{value}', must be"):
            open_bundle(unfinished)
        monkeypatch.delenv(f"EDGECOMPILE_{name.upper()}")


def test_what_is_missing_is_named(
    unfinished: str, fake_device: FakeCudart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(GpuUnavailableError, match="module tensorrt can't be used") as caught:
        open_bundle(unfinished)
    # The bundle has no variant for the CPU, so nobody is told to use it.
    assert caught.value.hint is not None and "fallback" not in caught.value.hint
    with pytest.raises(UnsupportedHostError, match="jetson-orin: can't be used here: Python's"):
        open_bundle(unfinished, fallback="cpu")
    monkeypatch.setenv("EDGECOMPILE_CUDART", "/nowhere/libcudart.so")
    with pytest.raises(
        GpuUnavailableError, match=r"/nowhere/libcudart\.so, which EDGECOMPILE_CUDA"
    ):
        open_bundle(unfinished)
    assert "/nowhere" in describe_bundle(unfinished)["variants"][-1]["verdict"]
