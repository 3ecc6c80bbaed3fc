"""How the command line fails: an exit code for each cause, and what would cure it."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import click
import pytest

from edgecompile.cli.build import command as build_command
from edgecompile.cli.plan import command as plan_command
from edgecompile.cli.terminal.failures import describe_failure, in_flags
from edgecompile.cli.terminal.session import Session
from edgecompile.errors import CompileError, DiskFullError, ExportError, PlanError
from tests.cli.command import run

BUILD = ("build", "m:make", "--lengths", "lengths.txt")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("plna",), "Did you mean 'plan'?"),
        (("nothing-like-it",), "Commands: build, lengths, plan"),
        (("lengths", "--txets", "x"), "--texts"),
        (("targets", "shw"), "show"),
        (
            ("build", "m", "--batch", "8:1", "--lengths", "x"),
            "'--batch': LO..HI needs 1 <= LO <= HI, got 8:1.",
        ),
        (("build", "m", "--batch", "one", "--lengths", "x"), "'one' is neither"),
        (("build", "m", "--max-buckets", "0", "--lengths", "x"), "0 is not in the range"),
        (("build", "m", "--precision", "int3", "--lengths", "x"), "'int3' is not"),
        (("build", "m:make", "--lengths", "x", "--texts", "y"), "exclude each other"),
        (("plan", "x", "--model", "m:make", "--texts", "y"), "exclude each other"),
        (
            ("build", "m:make", "--lengths", "x", "--from-stats", "y"),
            "--lengths and --from-stats exclude",
        ),
        (("lengths", "--texts", "y"), "--texts need a --tokenizer"),
        (("lengths", "x", "--lengths", "y"), "same thing"),
        (("plan", "x"), "Give either --model MODEL or --cost-points FILE"),
        (("plan", "x", "--model", "m", "--cost-points", "y"), "Give either"),
        (
            ("plan", "x", "--cost-points", "y", "--runs", "9", "--max-size", "1MB"),
            "--max-size, --runs",
        ),
        (
            ("plan", "x", "--cost-points", "y", "--calibration-bundle", "k.ecb"),
            "--calibration-bundle: only with --model",
        ),
        (("plan", "x", "--cost-points", "y", "--task", "logits", "--softmax"), "--task, --softmax"),
        (("plan", "x", "--model", "m", "--max-size", "big"), "'big' isn't a size such as 120MB"),
        (("plan", "x", "--model", "m", "--max-build-time", "1 day"), "isn't a duration such as"),
        (
            ("plan", "x", "--model", "m:make", "--from-stats", "s"),
            "--lengths and --from-stats exclude",
        ),
        (("export", "m"), "--work-dir"),
        (
            (*BUILD, "--buckets", "3", "--max-buckets", "2"),
            "--buckets is 3, but --max-buckets is 2",
        ),
        ((*BUILD, "--no-fallback"), "has no GPU: --no-fallback is about the cores beside one"),
        ((*BUILD, "--alternatives", "2"), "hint: leave it out, or choose --backend triton or both"),
        ((*BUILD, "--pooling", "mean"), "--pooling: for folders in Hugging Face layout"),
        (("build", "", "--lengths", "x"), "MODEL is ''"),
    ],
)
def test_wrong_usage_says_what_and_where_to_look(
    files: Path, arguments: tuple[str, ...], expected: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
    assert re.search(r"^hint: .*see '.*--help'$", result.stderr, re.MULTILINE)
    assert (
        list(files.iterdir()) == [files / "lengths.txt", files / "costs.csv"]
        or len(list(files.iterdir())) == 2
    )


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("lengths", "absent.txt"), 30, "absent.txt"),
        (("lengths", "empty.txt"), 30, "empty.txt"),
        (("lengths", "bad.txt"), 30, "-3"),
        (("build", "m:make", "--lengths", "absent.txt"), 30, "absent.txt"),
        (("targets", "show", "cpu-x68"), 31, "cpu-x86-64"),
        (("build", "absent", "--lengths", "lengths.txt"), 32, "there is no model 'absent'"),
        (("build", "absent", "--texts", "absent.txt"), 32, "there is no model 'absent'"),
        (("build", "m:make", "--lengths", "lengths.txt", "-t", "none"), 31, "unknown target"),
        (("compile", "-w", "."), 34, "there is no plan plan.json"),
        (("plan", "lengths.txt", "--cost-points", "lengths.txt"), 44, "cost"),
        (
            ("plan", "lengths.txt", "--cost-points", "costs.csv", "--buckets", "5000"),
            34,
            "5000 buckets",
        ),
        (("inspect", "absent.ecb"), 20, "absent.ecb"),
        (("verify", "absent.ecb"), 20, "absent.ecb"),
        (("bench", "absent.ecb"), 20, "absent.ecb"),
    ],
)
def test_each_cause_has_its_exit_code(
    files: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    (files / "empty.txt").write_text("")
    (files / "bad.txt").write_text("5\n-3\n")
    before = sorted(files.rglob("*"))
    result = run(*arguments)
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    assert "error: " in result.stderr and expected in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(files.rglob("*")) == before


def test_a_bundle_that_is_there_is_not_replaced(files: Path) -> None:
    (files / "old.ecb").mkdir()
    result = run("build", "m:make", "--lengths", "lengths.txt", "-o", "old")
    assert result.exit_code == 40
    assert "old.ecb is already there" in result.stderr and "--force" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("lengths", "absent.txt"), 30, "LengthsError"),
        (("targets", "show", "cpu-x68"), 31, "TargetError"),
        (("build", "m.onnx", "--texts", "x"), 32, "ModelError"),
        (("lengths",), 2, "UsageError"),
        (("lengths", "--no-such-option"), 2, "UsageError"),
        (("bench",), 2, "UsageError"),
    ],
)
def test_a_script_reads_the_failure_on_stdout(
    files: Path, arguments: tuple[str, ...], code: int, kind: str
) -> None:
    plain, result = run(*arguments), run(*arguments, "--json")
    assert plain.stdout == "" and result.stderr == plain.stderr
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"code", "class", "message", "hint"}
    assert (document["error"]["code"], document["error"]["class"]) == (code, kind)
    assert result.stderr.startswith(f"error: {document['error']['message']}")
    assert f"hint: {document['error']['hint']}" in result.stderr


def test_a_result_that_ends_in_a_failure_stays_one_document(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgecompile.hosts import detection

    uncached = detection.find_toolchain.__wrapped__
    monkeypatch.setattr(detection, "find_toolchain", uncached)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("PATH", "/nowhere")
    result = run("targets", "check", "--json")
    assert result.exit_code == 35
    assert json.loads(result.stdout)["ok"] is False


def test_a_name_that_is_no_text_is_shown_one_way(files: Path) -> None:
    name = os.fsdecode(b"l\xe9ngths.txt")
    (files / name).write_text("3\n4\n")
    assert run("lengths", name).stdout.splitlines()[0].endswith("l\\xe9ngths.txt")
    (files / name).write_text("x y\n")
    assert run("lengths", name).stderr.startswith("error: l\\xe9ngths.txt: 1 problem")


def test_debug_shows_the_traceback(files: Path) -> None:
    quiet, debug = run("lengths", "absent"), run("lengths", "absent", "--debug")
    assert "hint: --lengths takes a file" in quiet.stderr
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in debug.stderr and quiet.stderr in debug.stderr
    assert quiet.exit_code == debug.exit_code == 30


def full(code: int = errno.ENOSPC, path: str | None = "big.bin") -> OSError:
    return OSError(code, os.strerror(code), path)


def caused(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (full(), 41, "big.bin: No space left on device"),
        (full(errno.EDQUOT), 41, "big.bin: Disk quota exceeded"),
        (caused(CompileError("g++ failed"), full()), 41, "big.bin: No space left on device"),
        (
            CompileError("g++ failed:\n x.s: No space left on device\nmore"),
            41,
            "x.s: No space left on device",
        ),
        (RuntimeError("write: Disk quota exceeded"), 41, "write: Disk quota exceeded"),
        (DiskFullError("the disk is full"), 41, "the disk is full"),
        (PlanError("no plan", hint="cure"), 34, "no plan"),
        (CompileError("g++ failed"), 36, "g++ failed"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 74, "x: Permission denied"),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), 42, "'onnx'"),
        (ModuleNotFoundError("…", name="edgecompile.gone"), 70, "a bug in edgecompile"),
        (ZeroDivisionError("division by zero"), 70, "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (BrokenPipeError(), 141, ""),
        (MemoryError(), 73, "out of memory"),
    ],
)
def test_failures_are_described(error: BaseException, code: int, message: str) -> None:
    failure = describe_failure(error)
    assert failure.exit_code == code
    assert message in failure.message
    assert bool(failure.message) == bool(message)


def test_errors_name_flags() -> None:
    """Errors name arguments of Python; a command says its own flags."""
    for text, expected in (
        ("`max_length` is 5", "--max-length is 5"),
        ("`mode=\"pad\"` or `target='x y'`", "--mode pad or --target x y"),
        ("`jobs=1`, `force=True`, `quick`", "--jobs 1, --force, --quick"),
        ("`keep_tokenizer=False` or `emulation=False`", "--no-tokenizer or --no-emulation"),
        ("`token_type_ids=False`, `token_type_ids=True`", "--no-token-type-ids, --token-type-ids"),
        ("`stats`, `plan`, `model`", "--from-stats, --plan, --model"),
        ("`__cause__` and `details` show", "--debug and --debug show"),
        ("`axes`, the key `tensorrt`, `edgecompile build`", None),
    ):
        params = [*build_command.params, *plan_command.params]
        assert in_flags(text, params) == (expected or text)
    assert in_flags("`model`, `report`", build_command.params) == "MODEL, `report`"


def test_the_cure_is_told() -> None:
    assert describe_failure(PlanError("no plan", hint="cure")).hint == "cure"
    assert "--work-dir" in (describe_failure(full()).hint or "")


def test_debug_shows_what_an_error_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session()
    for session.debug in (False, True):
        session.fail(ExportError("no export", details="torch said this"))
        assert ("torch said this" in capsys.readouterr().err) == session.debug
