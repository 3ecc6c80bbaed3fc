"""trt_build: how far a build is, what its log says, and a build with the FAKE of TensorRT."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.finish.engine_build import BuildJob, EngineJob, Phases, build_engines
from edgecompile.runtime.format.recipe.schema import ShapeRange
from edgecompile.runtime.gpu.log import BuildFailure, BuildLog
from tests.fake_gpu.build import MODULES
from tests.fake_gpu.bundles import make_onnx


class TestPhases:
    def test_a_step_of_the_outermost_phase(self) -> None:
        phases = Phases()
        assert phases.fraction() == 0.0
        phases.start("build", None, 4)
        phases.step("build", 0)
        assert phases.fraction() == 0.25
        phases.step("build", 2)
        phases.step("build", 1)  # out of order
        assert phases.fraction() == 0.75
        phases.finish("build")
        assert phases.fraction() == 0.0

    def test_a_phase_within_a_step(self) -> None:
        phases = Phases()
        phases.start("build", None, 2)
        phases.step("build", 0)
        phases.start("tactics", "build", 10)
        assert phases.fraction() == 0.5
        for step in range(5):
            phases.step("tactics", step)
        assert phases.fraction() == 0.75
        phases.start("one tactic", "tactics", 2)
        phases.step("one tactic", 0)
        assert phases.fraction() == pytest.approx(0.775)
        phases.finish("one tactic")
        phases.finish("tactics")
        phases.step("build", 1)
        assert phases.fraction() == 1.0

    def test_it_never_exceeds_one_and_survives_nonsense(self) -> None:
        phases = Phases()
        phases.start("a", None, 0)
        phases.step("a", 7)
        phases.step("unknown", 3)
        phases.finish("unknown")
        phases.start("orphan", "nobody", 5)
        assert phases.fraction() == 1.0

    def test_several_threads_at_once(self) -> None:
        """Some ask for the fraction while others begin and end phases."""
        phases = Phases()
        phases.start("build", None, 10)
        failures: list[BaseException] = []
        going = threading.Event()
        going.set()

        def ask() -> None:
            try:
                while going.is_set():
                    assert 0.0 <= phases.fraction() <= 1.0
            except BaseException as error:
                failures.append(error)

        def work(number: int) -> None:
            try:
                for turn in range(3000):
                    name = f"{number}-{turn % 7}"
                    phases.start(name, "build", 3)
                    phases.step(name, turn % 3)
                    phases.finish(name)
            except BaseException as error:
                failures.append(error)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            askers = [threading.Thread(target=ask) for _ in range(2)]
            workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in (*askers, *workers):
                thread.start()
            for thread in workers:
                thread.join()
            going.clear()
            for thread in askers:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        assert failures == [] and phases.fraction() == 0.0


@pytest.mark.parametrize(
    ("errors", "warnings", "memory"),
    [
        ([], [], True),
        (["Error Code 2: OutOfMemory (Requested size was 12 bytes.)"], [], True),
        (["10: Could not find any implementation"], ["Tactic: insufficient memory"], True),
        (["Error Code 10: Internal Error"], ["tactic skipped"], None),
        (["Cuda Runtime (out of memory)"], [], True),
    ],
)
def test_a_lack_of_memory_is_told_by_the_log(
    errors: list[str], warnings: list[str], memory: bool | None
) -> None:
    log = BuildLog()
    for text in errors:
        log.add(log.errors, text)
    for text in warnings:
        log.add(log.warnings, text)
    failure = log.failure("TensorRT built no engine")
    assert failure.memory == memory
    assert all(text in str(failure) for text in errors)


def test_a_log_keeps_the_last_words_and_no_control_characters() -> None:
    log = BuildLog()
    for number in range(100):
        log.add(log.errors, f"error {number}\x1b[2J\n")
    assert len(log.errors) == 40 and log.errors[-1] == "error 99?[2J?"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BuildJob]:
    """A build with the fake, which is in this process for this test."""
    onnx, weights = make_onnx()
    (tmp_path / "model.onnx").write_bytes(onnx)
    (tmp_path / "weights.fp16").write_bytes(weights)
    monkeypatch.syspath_prepend(str(MODULES))
    shapes = ShapeRange((1, 1), (1, 8), (2, 32))
    profile = {"input_ids": shapes, "attention_mask": shapes}
    yield BuildJob(
        engines=(EngineJob(str(tmp_path / "model.onnx"), (profile,), None),),
        workspace_bytes=1 << 26,
        optimization_level=3,
        timing_cache=str(tmp_path / "timing.cache"),
        output=str(tmp_path / "engine.tmp"),
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt"]:
        del sys.modules[name]


def changed(job: BuildJob, **values: Any) -> BuildJob:
    return replace(job, **values)


def with_profile(job: BuildJob, profile: dict[str, ShapeRange]) -> BuildJob:
    return changed(job, engines=(replace(job.engines[0], profiles=(profile,)),))


def test_a_build(job: BuildJob, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    result = build_engines(BuildJob.from_json(job.to_json()), told.append)
    data = Path(job.output).read_bytes()
    assert (result["size"], result["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert result["timing_cache"] == "new" and (tmp_path / "timing.cache").exists()
    assert told and told[0]["progress"].keys() == {"phase", "fraction", "seconds"}
    second = changed(job, output=job.output + "2")
    assert build_engines(second, told.append)["timing_cache"] == "used"


def test_float32_is_not_computed_in_tf32(
    job: BuildJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake begins with the flag, as TensorRT does, and refuses to build with it."""
    monkeypatch.setenv("FAKE_TRT_LOG", str(tmp_path / "log"))
    build_engines(job, lambda message: None)
    assert "clear_flag TF32" in (tmp_path / "log").read_text()
    import tensorrt

    monkeypatch.setattr(tensorrt.IBuilderConfig, "clear_flag", lambda self, flag: None)
    with pytest.raises(AssertionError, match="TF32"):
        build_engines(changed(job, output=job.output + "2"), lambda message: None)


def test_a_progress_that_can_t_be_told_cancels_nothing(job: BuildJob) -> None:
    """An exception in step_complete would be a False, and that ends a build."""
    told: list[Any] = []

    def tell(message: Any) -> None:
        told.append(message)
        raise BrokenPipeError("nobody listens")

    assert build_engines(job, tell)["size"] > 0 and told


def test_an_engine_replaces_no_file(job: BuildJob) -> None:
    Path(job.output).write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        build_engines(job, lambda message: None)
    assert Path(job.output).read_bytes() == b"somebody's"


def test_profiles_that_tensorrt_refuses(job: BuildJob) -> None:
    wrong = ShapeRange((1, 9), (1, 8), (2, 32))  # it says nothing when the shapes are set
    profile = {**job.engines[0].profiles[0], "input_ids": wrong}
    with pytest.raises(BuildFailure, match="refuses the optimization profile 0") as caught:
        build_engines(with_profile(job, profile), lambda message: None)
    assert not caught.value.memory


def test_inputs_that_the_onnx_does_not_have(job: BuildJob) -> None:
    profile = {"ids": job.engines[0].profiles[0]["input_ids"]}
    with pytest.raises(BuildFailure, match="has the inputs input_ids, attention_mask, the recipe"):
        build_engines(with_profile(job, profile), lambda message: None)


def test_an_opset_that_is_too_new(job: BuildJob, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(job.engines[0].onnx, load_external_data=False)
    model.opset_import[0].version = 23
    Path(job.engines[0].onnx).write_bytes(model.SerializeToString())
    with pytest.raises(BuildFailure, match="opset 23 is newer than 20"):
        build_engines(job, lambda message: None)
    assert not Path(job.output).exists()


def test_a_timing_cache_that_can_t_be_kept(job: BuildJob, tmp_path: Path) -> None:
    result = build_engines(
        changed(job, timing_cache=str(tmp_path / "none" / "timing.cache")), lambda message: None
    )
    assert result["timing_cache"] == "can't be kept: No such file or directory"
