"""All problems that can be known before the work begins are reported then, at once."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle.staging import Staging
from edgecompile.bundle.writer import BundleWriter
from edgecompile.cli.terminal.failures import describe_failure
from edgecompile.errors import (
    BundleWriteError,
    CostError,
    DiskFullError,
    EdgecompileError,
    LengthsError,
    ModelError,
    PlanError,
)
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.folders.position_limits import max_positions, stored_positions
from edgecompile.models.loaded import ModelSource
from edgecompile.models.options import LoadOptions
from edgecompile.models.samples import SampleTexts
from edgecompile.pipeline.build import build
from edgecompile.pipeline.plan import plan
from edgecompile.pipeline.preflight import Preflight, _check_model, begin_plan
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.run import Run, work_folder
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from edgecompile.progress import NULL_PROGRESS, NullProgress, StepHandle
from edgecompile.targets.profile import load_target
from edgecompile.toolchain.compilers import find_toolchain
from tests.cli.command import run
from tests.needs import need, need_aarch64_compiler

SHORT = LengthDistribution.from_samples([2, 5, 9])
LONG = LengthDistribution.from_samples([5, 41])


class Steps(NullProgress):
    """Which steps began."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    @contextmanager
    def step(self, title: str) -> Iterator[StepHandle]:
        self.titles.append(title)
        with super().step(title) as step:
            yield step


def refused(model: Path | str, folder: Path, **changes: Any) -> EdgecompileError:
    """The error of a build that never got further than its first step."""
    names = {field.name for field in dataclasses.fields(PlanRequest)}
    wanted = {name: changes.pop(name) for name in names if name in changes}
    request = PlanRequest(**{"lengths": SHORT, **wanted})
    values = {"target": "cpu-x86-64-v3", "output": folder / "made.ecb", **changes}
    steps = Steps()
    with pytest.raises(EdgecompileError) as caught:
        build(BuildRequest(model=str(model), plan=request, **values), steps)
    assert set(steps.titles) <= {"look for changes", "check what is needed"}
    return caught.value


def test_every_problem_is_in_one_list(tiny_model: Path, tmp_path: Path) -> None:
    error = refused(
        tiny_model,
        tmp_path,
        max_length=64,
        output=Path("/proc/made.ecb"),
        work_dir=Path("/proc/work"),
        texts=SampleTexts(tmp_path / "none.txt", tiny_model / "tokenizer.json"),
    )
    assert isinstance(error, LengthsError)  # the first one's class, so that scripts can tell causes
    assert "4 problems stand in the way" in error.message
    for part in ("`max_length` is 64", "none.txt", "/proc/made.ecb can't", "/proc/work can't"):
        assert part in error.message


def test_lengths_over_the_limit_are_refused_before_anything_is_loaded(
    tiny_model: Path, tmp_path: Path
) -> None:
    error = refused(tiny_model, tmp_path, lengths=LONG)
    assert isinstance(error, LengthsError)
    assert "50.0 % of the lengths are over 40" in error.message
    assert error.hint is not None and "`max_length=40`" in error.hint


def test_the_limit_of_files_is_that_of_the_loaded_model(tiny_model: Path) -> None:
    from safetensors import safe_open
    from transformers import AutoModel

    config = json.loads((tiny_model / "config.json").read_text())
    with safe_open(tiny_model / "model.safetensors", framework="numpy") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    assert stored_positions(config, shapes) == max_positions(AutoModel.from_pretrained(tiny_model))
    assert stored_positions(config, {}) == 40  # of the configuration
    assert stored_positions({**config, "position_embedding_type": "relative"}, {}) is None
    assert stored_positions({}, {}) is None


def test_texts_over_the_limit_are_cut_as_the_device_cuts_them(tiny_model: Path) -> None:
    from edgecompile.loaders.load import load_model

    model = load_model(str(tiny_model))
    with pytest.raises(LengthsError, match=r"50\.0 % of the lengths are over 40"):
        plan_scope(model, PlanRequest(LONG))
    assert plan_scope(model, PlanRequest(LONG, cut=True)).axes[0][1].hi == 40


def test_a_folder_without_weights_is_refused_beside_the_rest(
    tiny_model: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(tiny_model / "config.json", bare)
    error = refused(bare, tmp_path, output=Path("/proc/made.ecb"))
    assert isinstance(error, ModelError)
    assert "has neither model.safetensors" in error.message and "/proc/made.ecb" in error.message


@pytest.mark.parametrize("place", ["/proc/made.ecb", "file/made.ecb"])
def test_a_place_that_cant_be_written_is_named_once(
    place: str, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / place
    error = refused(tiny_model, tmp_path, output=output)
    assert isinstance(error, BundleWriteError)
    assert error.message.startswith(f"{output} can't be written: ")
    assert error.message.count(str(output)) == 1 and "partial" not in error.message


def test_parents_are_made_said_and_taken_back(tiny_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "er" / "made.ecb"
    with Staging(output) as staging:
        assert staging.made == (tmp_path / "new", tmp_path / "new" / "er")
    refused(tiny_model, tmp_path, output=output, lengths=LONG)
    assert list(tmp_path.iterdir()) == []
    with Staging(output) as claim:
        writer = BundleWriter(claim)
        writer.add_bytes(b"x", "manifest.json")
        writer.commit()
    assert (output / "manifest.json").read_bytes() == b"x"


HOLDING = """
import sys, time
from pathlib import Path
from edgecompile.bundle.staging import Staging
with Staging(Path(sys.argv[1])) as staging:
    (staging.folder / "half").write_text("made")
    print("claimed", flush=True)
    time.sleep(600)
"""


def test_a_second_build_to_the_same_output_is_told_at_the_start(
    tiny_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "made.ecb"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(output)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "claimed\n"
        error = refused(tiny_model, tmp_path)
        assert isinstance(error, BundleWriteError)
        assert error.message == f"another build is writing {output}"
        with Staging(tmp_path / "other.ecb"):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    # What a killed build leaves claims nothing, and goes.
    assert (tmp_path / ".made.ecb.partial" / "half").is_file()
    with Staging(output) as claim:
        writer = BundleWriter(claim)
        writer.add_bytes(b"x", "manifest.json")
        writer.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["made.ecb"]
    assert [path.name for path in output.iterdir()] == ["manifest.json"]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_space_is_seen_before_the_work(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(path: Path) -> Usage:
        return Usage(1 << 20, 0, 300_000 if Path(path) == tmp_path else 1 << 40)

    monkeypatch.setattr(shutil, "disk_usage", small)
    error = refused(tiny_model, tmp_path, work_dir=tmp_path / "work")
    assert isinstance(error, DiskFullError)
    # The work folder is on the same disk.
    assert f"{tmp_path}: too little space for the bundle" in error.message
    assert "has 300 kB" in error.message and f"{tmp_path / 'work'}: too little" in error.message


def test_a_folder_of_temporary_files_that_cant_be_written_is_named(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes another one silently, the compilers don't."""
    monkeypatch.setenv("TMPDIR", "/proc")
    error = refused(tiny_model, tmp_path)
    assert isinstance(error, BundleWriteError) and error.message.startswith(
        "/proc can't be written"
    )
    assert error.hint is not None and "TMPDIR" in error.hint


@pytest.mark.slow
def test_torch_leaves_nothing_among_the_temporary_files(tiny_model: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "long.txt").write_text("5\n41\n")
    command = [sys.executable, "-m", "edgecompile", "build", str(tiny_model), "--lengths"]
    done = subprocess.run(
        [*command, str(tmp_path / "long.txt"), "-o", str(tmp_path / "x.ecb")],
        capture_output=True,
        text=True,
        env={
            **{k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"},
            "TMPDIR": str(temporary),
            "EDGECOMPILE_CACHE_DIR": str(tmp_path / "cache"),
        },
    )
    assert done.returncode == LengthsError.exit_code, done.stderr
    assert list(temporary.iterdir()) == []


def test_a_full_disk_is_named_by_where_the_bundle_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "libeckernels.so"
    source.write_bytes(b"x" * 2_900_000)

    def full(given: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(given))

    monkeypatch.setattr(shutil, "copyfile", full)
    output = tmp_path / "tiny" / "x.ecb"
    with pytest.raises(DiskFullError) as caught, Staging(output) as claim:
        BundleWriter(claim).add_file(source, "code/v/libeckernels.so")
    failure = describe_failure(caught.value)
    assert failure.message.startswith(
        f"{tmp_path / 'tiny'}: no space left for code/v/libeckernels.so of x.ecb (needs 2.90 MB, has "
    )
    assert str(source) not in failure.message and failure.exit_code == 41


FOLDER, FACTORY = ModelSource("folder", "m"), ModelSource("factory", "m.py:make")


def test_the_work_is_kept_where_the_last_step_fails() -> None:
    with pytest.raises(DiskFullError) as caught, work_folder(None, FOLDER) as work:
        (work / "made").write_text("x")
        raise DiskFullError("full", hint="free some space", destination=Path("x.ecb"))
    assert (work / "made").is_file()
    assert caught.value.hint == (
        f'free some space; the work is kept: `work_dir="{work}"` goes on from it'
    )
    shutil.rmtree(work)
    # Where the work itself filled the disk, it goes.
    with pytest.raises(DiskFullError), work_folder(None, FOLDER) as work:
        raise DiskFullError("full")
    assert not work.exists()
    # No other process finds what was exported of a factory.
    with pytest.raises(DiskFullError) as caught, work_folder(None, FACTORY) as work:
        raise DiskFullError("full", hint="free some space", destination=Path("x.ecb"))
    assert not work.exists() and caught.value.hint == "free some space"


@pytest.fixture
def board(tmp_path: Path) -> str:
    """A target that this host can't run, of unknown speed."""
    if platform.machine() != "x86_64":
        pytest.skip("there it could be timed")
    need_aarch64_compiler()
    profile = tmp_path / "board.toml"
    profile.write_text(
        'name = "board"\nkind = "cpu"\ndescription = "none"\nvariants = ["aarch64-neon"]\n'
        'cores = 4\nmemory_gib = 8\nglibc = "2.34"\npython = "3.9"\n'
    )
    return str(profile)


def test_what_cant_be_timed_here_has_to_say_how_fast_it_is(
    board: str, tiny_model: Path, tmp_path: Path
) -> None:
    error = refused(tiny_model, tmp_path, target=board)
    assert isinstance(error, CostError) and "`calibration`" in str(error)
    assert error.hint is not None and "`quick=True`" in error.hint
    error = refused(tiny_model, tmp_path, target=board, precision="auto")
    assert isinstance(error, PlanError) and "2 problems" in error.message


@pytest.mark.parametrize("given", ["quick", "plan"])
def test_speed_may_be_unknown_where_no_costs_are_needed(
    given: str, board: str, tiny_model: Path, tmp_path: Path
) -> None:
    bucket = Bucket("exact", (("length", AxisRange(1, 40, 9)), ("batch", AxisRange(1, 1, 1))))
    wanted = {"quick": True} if given == "quick" else {"plan": BucketPlan("length", (bucket,))}
    work = Path("/proc/work")  # ends the build before the model is loaded
    error = refused(tiny_model, tmp_path, target=board, work_dir=work, **wanted)
    assert isinstance(error, BundleWriteError) and error.message.startswith("/proc/work can't")


def test_a_pipeline_is_read_within_its_folder_only(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "modules.json").write_text('[{"path": "../outside"}]')
    request = BuildRequest(str(folder), "cpu-x86-64-v3", PlanRequest(SHORT))
    begin_plan(Run(request, load_target("cpu-x86-64-v3"), NULL_PROGRESS))


def test_a_probe_that_fails_hides_no_other_problem(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("g++", "g++")
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\ncase "$1" in --version | -dumpversion) echo 13;; *) exit 1; esac\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("EDGECOMPILE_CXX", str(compiler))
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    find_toolchain.cache_clear()
    try:
        error = refused(tiny_model, tmp_path, lengths=LONG)
    finally:
        find_toolchain.cache_clear()
    assert "2 problems" in error.message and "are over 40" in error.message


def test_what_cannot_generate_on_a_gpu_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    def refusal(model: Path, target: str, backend: str, task: str | None, **more: str) -> str:
        preflight = Preflight()
        plan = PlanRequest(SHORT, backend=backend)
        load = LoadOptions(task=task, **more)  # type: ignore[arg-type]
        request = BuildRequest(str(model), target, plan, load=load, output=tmp_path / "x.ecb")
        _check_model(preflight, request, load_target(target))
        return " ".join(f"{problem.message} {problem.hint}" for problem in preflight.problems)

    decoder = tmp_path / "decoder"
    shutil.copytree(tiny_model, decoder)
    config = json.loads((decoder / "config.json").read_text())
    config["architectures"] = ["LlamaForCausalLM"]
    (decoder / "config.json").write_text(json.dumps(config))
    for model, task in ((decoder, None), (tiny_model, "causal-lm")):
        text = refusal(model, "jetson-orin-nano", "auto", task)
        assert "which TensorRT can't run" in text and '`backend="triton"`' in text
        assert refusal(model, "cuda-sm90", "triton", task) == ""
    assert refusal(decoder, "jetson-orin-nano", "auto", "logits") == ""
    for narrow in ("bf16", "int8"):
        text = refusal(decoder, "cuda-sm90", "triton", None, cache_precision=narrow)
        assert "cuda-sm90 has a GPU: `cache_precision` is for caches on CPUs" in text
        assert refusal(decoder, "cpu-x86-64", "auto", None, cache_precision=narrow) == ""
    assert "no backend for GPUs generates by two parts" in refusal(
        tiny_model, "cuda-sm90", "triton", "seq2seq-lm"
    )


def test_a_plan_is_checked_too(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(LengthsError, match="2 problems"):
        plan(
            BuildRequest(str(tiny_model), "cpu-x86-64-v3", PlanRequest(LONG)),
            files=(Path("/proc/plan.json"),),
        )
    (tmp_path / "long.txt").write_text("5\n41\n")
    result = run("plan", str(tmp_path / "long.txt"), "--model", str(tiny_model))
    assert result.exit_code == 30 and "are over 40" in result.stderr
    assert "load the model" not in result.stderr
