"""The command line: what it prints where, how it fails, and what it leaves behind."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgecompile import __version__
from edgecompile.cli import COMMANDS, cli
from edgecompile.cli.build import bundle_name
from edgecompile.cli.console import Console, print_data, table
from edgecompile.cli.failures import describe_failure
from edgecompile.cli.output import write_json, write_text
from edgecompile.cli.session import Command, Session
from edgecompile.errors import CompileError, DiskFullError, PlanError

COSTS = "length,exact_ms,pad_ms\n2,2.2,1.8\n16,3.3,2.8\n64,7,6.3\n256,26.6,24.9\n"
LENGTHS = "".join(f"{2 + 7 * i % 120}\n" for i in range(200))
SUBCOMMANDS = [(name,) for name in COMMANDS] + [
    ("targets", "list"),
    ("targets", "show"),
    ("targets", "check"),
    ("targets", "detect"),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with lengths and costs."""
    (tmp_path / "lengths.txt").write_text(LENGTHS)
    (tmp_path / "costs.csv").write_text(COSTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# Help


@pytest.mark.parametrize("command", [(), *SUBCOMMANDS], ids=" ".join)
def test_help_is_quick_and_has_examples(command: tuple[str, ...]) -> None:
    program = (
        "import sys; from edgecompile.cli import cli\n"
        f"try: cli.main([*{command!r}, '--help'], prog_name='edgecompile')\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich', 'transformers', 'onnx', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)), code, file=sys.stderr)"
    )
    process = python("-c", program)
    stdout, stderr = process.communicate(timeout=60)
    assert stderr.strip() == "[] 0"
    assert "Usage: edgecompile" in stdout
    if command and command[0] != "targets":
        assert re.search(r"Examples?:\n +edgecompile ", stdout)


def test_the_group_names_every_command_and_completion() -> None:
    result = run("-h")
    text = result.stdout
    assert result.exit_code == 0, result.stderr
    for name in COMMANDS:
        assert re.search(rf"^  {name} +[A-Z]", text, re.MULTILINE), name
    for shell in ("bash", "zsh", "fish"):
        assert f"_EDGECOMPILE_COMPLETE={shell}_source" in text


def test_completion_knows_commands_and_targets() -> None:
    environment = {
        **os.environ,
        "_EDGECOMPILE_COMPLETE": "bash_complete",
        "COMP_WORDS": "edgecompile build x --target cpu-",
        "COMP_CWORD": "4",
    }
    process = python("-m", "edgecompile", env=environment)
    stdout, _ = process.communicate(timeout=60)
    assert "plain,cpu-x86-64" in stdout.splitlines()


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout.split()[-1]) == (0, __version__)


# Usage errors


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("plna",), "Did you mean 'plan'?"),
        (("nothing-like-it",), "Commands: build, lengths, plan"),
        (("lengths", "--txets", "x"), "--texts"),
        (("targets", "shw"), "show"),
        (("build", "m", "--batch", "8:1", "--lengths", "x"), "'8:1' doesn't ascend"),
        (("build", "m", "--batch", "one", "--lengths", "x"), "'one' is neither"),
        (("build", "m", "--max-buckets", "0", "--lengths", "x"), "0 is not in the range"),
        (("build", "m", "--precision", "int3", "--lengths", "x"), "'int3' is not"),
        (("build", "m"), "give --lengths FILE or --texts FILE"),
        (("build", "m", "--lengths", "x", "--texts", "y"), "exclude each other"),
        (("lengths", "--texts", "y"), "--texts needs --tokenizer FILE or --model MODEL"),
        (("lengths", "x", "--lengths", "y"), "same thing"),
        (("plan", "x"), "Give either --model MODEL or --cost-points FILE"),
        (("plan", "x", "--model", "m", "--cost-points", "y"), "Give either"),
        (("plan", "x", "--cost-points", "y", "--runs", "9", "--max-size", "1MB"), "--runs, --max-"),
        (("plan", "x", "--cost-points", "y", "--kit", "k.ecb"), "--kit: only with --model"),
        (("plan", "x", "--cost-points", "y", "--task", "logits", "--softmax"), "--task, --softmax"),
        (("plan", "x", "--model", "m", "--max-size", "big"), "'big' isn't a size such as 120MB"),
        (("plan", "x", "--model", "m", "--max-build-time", "1 day"), "isn't a duration such as"),
        (("plan", "x", "--model", "m", "--from-stats", "s"), "in place of --lengths"),
        (("export", "m"), "--work-dir"),
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
    assert re.search(r"^hint: see '.*--help'$", result.stderr, re.MULTILINE)
    assert (
        list(files.iterdir()) == [files / "lengths.txt", files / "costs.csv"]
        or len(list(files.iterdir())) == 2
    )


# Errors of the library: an exit code for each cause


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("lengths", "absent.txt"), 30, "absent.txt"),
        (("lengths", "empty.txt"), 30, "empty.txt"),
        (("lengths", "bad.txt"), 30, "-3"),
        (("build", "m", "--lengths", "absent.txt"), 30, "absent.txt"),
        (("targets", "show", "cpu-x68"), 31, "cpu-x86-64"),
        (("build", "absent", "--lengths", "lengths.txt"), 32, "there is no model 'absent'"),
        (("build", "absent", "--lengths", "lengths.txt", "-t", "none"), 31, "unknown target"),
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
    result = run("build", "m", "--lengths", "lengths.txt", "-o", "old")
    assert result.exit_code == 40
    assert "old.ecb is already there" in result.stderr and "--force" in result.stderr


def test_debug_shows_the_traceback(files: Path) -> None:
    quiet, debug = run("lengths", "absent"), run("lengths", "absent", "--debug")
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
        (MemoryError(), 70, "out of memory"),
    ],
)
def test_failures_are_described(error: BaseException, code: int, message: str) -> None:
    failure = describe_failure(error)
    assert failure.exit_code == code
    assert message in failure.message
    assert bool(failure.message) == bool(message)


def test_the_cure_is_told() -> None:
    assert describe_failure(PlanError("no plan", hint="cure")).hint == "cure"
    assert "--work-dir" in (describe_failure(full()).hint or "")


# Streams


def test_a_full_disk_under_stdout(files: Path) -> None:
    with open("/dev/full", "w") as full_disk:
        process = python("-m", "edgecompile", "lengths", "lengths.txt", stdout=full_disk)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == DiskFullError.exit_code
    assert stderr.startswith("error: standard output: No space left on device\nhint: ")
    assert "Exception ignored" not in stderr


def test_a_reader_that_goes_away_is_no_error(files: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = python("-m", "edgecompile", "lengths", "lengths.txt", "--json", stdout=write)
    os.close(write)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (141, "")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupted_leaves_nothing(files: Path, number: int, code: int) -> None:
    # It waits for standard input, which never ends. A signal that this process' own parent chose to
    # ignore (nohup, a job in the background) would be ignored by the child as well.
    process = python(
        *("-m", "edgecompile", "lengths", "-", "-o", "out.json"),
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert process.stdin is not None
    process.stdin.write("5\n")
    process.stdin.flush()
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(number)
    process.wait(timeout=30)
    assert process.stderr is not None and process.stdout is not None
    stderr = process.stderr.read()
    assert process.returncode == code, stderr
    assert process.stdout.read() == ""
    assert "Traceback" not in stderr
    assert not (files / "out.json").exists()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_what_a_model_prints_does_not_reach_stdout() -> None:
    @click.command(cls=Command)
    @click.pass_obj
    def noisy(session: Session) -> None:
        print("noise")
        session.json = True
        session.emit({"a": 1}, lambda: "table")

    @click.group(cls=type(cli))
    def group() -> None: ...

    group.get_command = lambda ctx, name: noisy  # type: ignore[method-assign]
    result = CliRunner().invoke(group, ["build"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"a": 1}
    assert result.stderr == "noise\n"
    assert sys.stdout is not sys.stderr


# lengths, plan, targets


def test_lengths_summary_and_histogram(files: Path) -> None:
    result = run("lengths", "lengths.txt", "--json", "-o", "out.json", "--max-length", "100")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert set(document) == {"lengths", "counts", "source", "summary", "share_over"}
    assert set(document["summary"]) == {"n", "distinct", "mean", "min", "p50", "p90", "p99", "max"}
    assert document["summary"]["n"] == 200 and document["summary"]["max"] == 100
    over = sum(int(line) > 100 for line in LENGTHS.split())
    assert document["share_over"] == pytest.approx(over / 200) and over > 0
    again = json.loads(run("lengths", "out.json", "--json").stdout)
    assert (again["lengths"], again["counts"]) == (document["lengths"], document["counts"])
    assert result.stderr == "wrote out.json\n"
    assert run("lengths", "lengths.txt", "-q", "-o", "o.json").stderr == ""


def test_lengths_of_standard_input() -> None:
    result = run("lengths", "-", stdin="3\n3\n9\n")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^  inputs +3, of 2 lengths$", result.stdout, re.MULTILINE)


def test_plan_from_cost_points(files: Path) -> None:
    arguments = ("plan", "lengths.txt", "--cost-points", "costs.csv", "--max-buckets", "3")
    result = run(*arguments, "--json", "-o", "plan.json", "--report", "plan.html")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"buckets", "policies", "cost_model", "expected_ms", "notes"} <= set(document)
    assert 1 <= len(document["buckets"]) <= 3
    for bucket in document["buckets"]:
        assert {"lo", "hi", "hint", "mode"} <= set(bucket)
        assert bucket["lo"] <= bucket["hint"] <= bucket["hi"]
        assert bucket["mode"] in ("exact", "pad")
    for policy in document["policies"].values():
        assert {"expected_ms", "padding_waste", "programs", "regret"} <= set(policy)
        assert policy["regret"] >= -1e-9
    assert {"optimum", "pad_to_max", "powers_of_two"} <= set(document["policies"])
    assert document["policies"]["optimum"]["regret"] == 0
    assert document["cost_model"]["kind"] == "measured"
    assert [p["length"] for p in document["cost_model"]["points"]] == [2, 16, 64, 256]
    assert json.loads((files / "plan.json").read_text()) == document
    assert "<svg" in (files / "plan.html").read_text()
    assert run(*arguments, "--json").stdout == result.stdout
    text = run(*arguments).stdout
    assert "Buckets" in text and "powers of two" in text and "+0.0 %" in text
    assert not re.search(r"[ \t]$", text, re.MULTILINE)


def test_the_mode_is_obeyed(files: Path) -> None:
    for mode in ("exact", "pad"):
        result = run("plan", "lengths.txt", "--cost-points", "costs.csv", "--mode", mode, "--json")
        assert {bucket["mode"] for bucket in json.loads(result.stdout)["buckets"]} == {mode}


def test_plan_over_two_axes(files: Path) -> None:
    """A joint histogram and a surface; the padding of a static box counts on both axes."""
    rows = [f"{n},{b},{5 if b == 1 else 1}" for n in (4, 9, 30) for b in (1, 2, 8)]
    (files / "joint.csv").write_text("length,batch,count\n" + "\n".join(rows))
    points = [f"{n},{b},{2 + n * b},{1 + n * b}" for n in (1, 32) for b in (1, 8)]
    (files / "surface.csv").write_text("length,batch,exact_ms,pad_ms\n" + "\n".join(points))
    arguments = ("plan", "joint.csv", "--cost-points", "surface.csv", "--max-buckets", "4")
    result = run(*arguments, "--json", "-w", "w", "--report", "joint.html")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["cost_model"]["axes"] == ["length", "batch"]
    assert 0 < document["lower_bound_ms"] <= document["expected_ms"] + 1e-9
    assert 1 <= len(document["buckets"]) <= 4
    assert all("batch" in bucket["axes"] for bucket in document["buckets"])
    assert {"optimum", "pad_to_max", "one_range"} <= set(document["policies"])
    assert all(p["regret"] >= -1e-9 for p in document["policies"].values())
    assert json.loads((files / "w" / "lengths.json").read_text())["axes"] == ["length", "batch"]
    again = run("plan", "--cost-points", "surface.csv", "--max-buckets", "4", "-w", "w", "--json")
    assert json.loads(again.stdout)["buckets"] == document["buckets"]
    assert "<svg" in (files / "joint.html").read_text()
    assert re.search(r"^bucket +mode +length +batch", run(*arguments).stdout, re.MULTILINE)
    alone = run("plan", "lengths.txt", "--cost-points", "surface.csv")
    assert alone.exit_code == 30 and "the sample only tells length" in alone.stderr


def test_other_columns_are_no_axes(files: Path) -> None:
    (files / "ids.csv").write_text("id,length,count\na7,4,2\nb9,30,1\n")
    result = run("plan", "ids.csv", "--cost-points", "costs.csv", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["lengths"]["n"] == 3


def test_a_work_folder_brings_its_lengths(files: Path) -> None:
    first = run("plan", "lengths.txt", "--cost-points", "costs.csv", "-w", "w", "--json")
    assert first.exit_code == 0, first.stderr
    assert {path.name for path in (files / "w").iterdir()} == {"lengths.json", "plan.json"}
    again = run("plan", "--cost-points", "costs.csv", "-w", "w", "--json")
    assert json.loads(again.stdout)["buckets"] == json.loads(first.stdout)["buckets"]
    missing = run("compile", "-w", "w")
    assert missing.exit_code == 33 and "edgecompile export MODEL --work-dir w" in missing.stderr


def test_targets() -> None:
    listed = json.loads(run("targets", "list", "--json").stdout)["targets"]
    assert "cpu-x86-64" in [target["name"] for target in listed]
    assert all(set(t) == {"name", "kind", "variants", "description"} for t in listed)
    shown = json.loads(run("targets", "show", "cpu-x86-64", "--json").stdout)
    assert [v["name"] for v in shown["variants"]] == ["x86-64-v3", "x86-64-v4"]
    assert "x86-64-v4" in run("targets", "show", "cpu-x86-64").stdout


def test_targets_check_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = json.loads(run("targets", "check", "cpu-x86-64", "--json").stdout)
    assert set(checked) == {"target", "ok", "compilers", "runs_here", "problems"}
    assert checked["ok"] and "x86-64" in checked["compilers"]
    from edgecompile.toolchain import find_toolchain

    monkeypatch.setenv("EDGECOMPILE_CXX", "/nonexistent/g++")
    find_toolchain.cache_clear()
    result = run("targets", "check", "cpu-x86-64", "--json")
    find_toolchain.cache_clear()
    assert result.exit_code == 35
    assert json.loads(result.stdout)["ok"] is False
    assert "/nonexistent/g++" in result.stderr


def test_targets_detect(files: Path) -> None:
    result = run("targets", "detect", "--json")
    assert result.exit_code == 0, result.stderr
    profile = json.loads(result.stdout)
    assert profile["name"] == "this-machine" and profile["bandwidth_gbs"] is None
    assert run("targets", "detect", "-o", "board.toml", "--quiet").exit_code == 0
    printed = run("targets", "detect", "--toml", "--name", "board").stdout
    assert printed == (files / "board.toml").read_text()
    checked = json.loads(run("targets", "check", "board.toml", "--json").stdout)
    assert checked["ok"] and checked["runs_here"] == [v["name"] for v in profile["variants"]]
    assert "bandwidth not known" in run("targets", "show", "board.toml").stdout
    for wrong in (["-o", "board"], ["-o", "a.toml", "--name", "b"], ["--toml", "--json"]):
        assert run("targets", "detect", *wrong).exit_code == 2


def test_targets_detect_from_what_a_device_said(files: Path) -> None:
    host = {
        **{"arch": "aarch64", "model": "Board", "cpus": 4, "memory_bytes": 4 << 30},
        **{"features": ["asimd"], "glibc": "2.36", "versions": {"python": "3.11.2"}},
    }
    (files / "device.json").write_text(json.dumps({"host": host}))
    result = run("targets", "detect", "--from", "device.json", "--json")
    assert result.exit_code == 0, result.stderr
    assert [v["name"] for v in json.loads(result.stdout)["variants"]] == ["aarch64-neon"]
    (files / "device.json").write_text("{}")
    result = run("targets", "detect", "--from", "device.json")
    assert result.exit_code == 31 and "info BUNDLE --host --json" in result.stderr


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/models/minilm", "minilm"),
        ("/models/minilm/", "minilm"),
        ("net.py:make_model", "make_model"),
        ("package.module:factory", "factory"),
        ("saved/encoder.pt2", "encoder"),
        ("/models/my model (v2)", "my-model-v2"),
        ("/", "model"),
    ],
)
def test_bundle_names(model: str, name: str) -> None:
    assert bundle_name(model) == name


# Files


def test_writing_replaces_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def refuse(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError) as caught:
        write_text(path, "new")
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text()) == {"a": 1}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_output_in_no_folder_is_named(files: Path) -> None:
    result = run("lengths", "lengths.txt", "-o", "absent/out.json")
    assert result.exit_code == 74
    assert result.stderr.startswith("error: absent/out.json: No such file")


# The terminal


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_steps_are_lines_in_a_log() -> None:
    stream = io.StringIO()
    stream.encoding  # noqa: B018 (StringIO has none: the ASCII marks are used)
    console = Console(stream=stream)
    console.options({"model": "m [x]", "batch": (1, 8), "jobs": None, "keep": True})
    with console.step("compile") as step:
        step.update(1, 2, "bucket 1")
        step.note("two variants")
        step.note("cached")
    with pytest.raises(PlanError), console.step("plan"):
        raise PlanError("no")
    console.warn("thin tail", hint="more data")
    console.summary([("size", "1 MB")])
    lines = stream.getvalue().splitlines()
    assert lines[:4] == ["  model  m [x]", "  batch  1, 8", "  jobs   –", "  keep   yes"]
    compiled = next(line for line in lines if "compile" in line)
    assert re.fullmatch(r"  ok compile +0\.0 s  two variants", compiled)
    following = lines[lines.index(compiled) + 1]
    assert following.strip() == "cached"
    assert following.index("cached") == compiled.index("two variants")
    assert any(re.fullmatch(r"  FAILED plan +0\.0 s", line) for line in lines)
    assert lines[-4:] == ["warning: thin tail", "hint: more data", "", "  size  1 MB"]
    assert "\x1b" not in stream.getvalue()


def test_quiet_leaves_warnings_and_errors() -> None:
    stream = io.StringIO()
    console = Console(quiet=True, stream=stream)
    console.options({"a": 1})
    console.say("hello")
    with console.step("x") as step:
        step.note("y")
    console.summary([("a", "b")])
    assert stream.getvalue() == ""
    console.failure("bad\nvery bad", hint="cure")
    assert stream.getvalue() == "error: bad\n       very bad\nhint: cure\n"


@pytest.mark.parametrize("no_color", ["1", ""])
def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    stream = Terminal()
    Console(stream=stream).failure("bad", hint="cure")
    print_data(table(("a", "b"), [("x", "1")], strong=0), stream)
    assert ("\x1b[" in stream.getvalue()) == (no_color == "")


def test_a_terminal_shows_the_running_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with Console(stream=stream).step("compile [all]") as step:
        step.update(1, 4, "bucket 1 [x]")
        time.sleep(0.3)
    text = stream.getvalue()
    assert "1/4" in text and "bucket 1 [x]" in text and "━" in text
    assert re.search(r"✓ compile \[all\] +0\.\d s\n$", text)


def test_tables_are_plain_in_a_file() -> None:
    stream = io.StringIO()
    print_data(table(("name", "ms"), [("a", "1.5"), ("long name", "10.25")]), stream)
    assert stream.getvalue().splitlines() == [
        "name           ms",
        "─────────────────",
        "a             1.5",
        "long name   10.25",
    ]


# A bundle, end to end


def test_build_prints_the_path_of_a_verified_bundle(files: Path, tiny_model: Path) -> None:
    (files / "short.csv").write_text("length,count\n3,5\n9,20\n20,4\n")
    arguments = ["build", str(tiny_model), "--lengths", "short.csv", "--max-length", "24"]
    result = run(*arguments, "--target", "cpu-x86-64-v3", "-o", "out/tiny", "--jobs", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "out/tiny.ecb\n"
    assert [path.name for path in (files / "out").iterdir()] == ["tiny.ecb"]
    shown = re.search(r"^  sha256 +([0-9a-f]{64})  manifest.json$", result.stderr, re.MULTILINE)
    assert shown is not None
    digest = hashlib.sha256((files / "out/tiny.ecb/manifest.json").read_bytes()).hexdigest()
    assert shown.group(1) == digest
    order = ["read the lengths", "load the model", "plan", "export", "compile", "pack"]
    places = [result.stderr.index(f" {step}") for step in order]
    assert result.stderr.startswith("  model") and "29 inputs, 3 to 20" in result.stderr
    assert places == sorted(places)
    again = run(*arguments, "-o", "out/tiny.ecb")
    assert again.exit_code == 40 and "--force" in again.stderr


def test_the_stages_one_by_one(files: Path, tiny_model: Path) -> None:
    (files / "short.csv").write_text("length,count\n3,5\n9,20\n20,4\n")
    model, target = str(tiny_model), ("--target", "cpu-x86-64-v3")
    options = ("-w", "w", "--max-length", "24", "--buckets", "1")
    stage = run("plan", "short.csv", "--model", model, *target, *options)
    assert stage.exit_code == 0, stage.stderr
    stage = run("export", model, "-w", "w", "--json")
    assert stage.exit_code == 0, stage.stderr
    programs = json.loads(stage.stdout)["programs"]
    assert [Path(program["path"]).is_dir() for program in programs] == [True]
    stage = run("compile", "-w", "w", *target, "--json")
    assert stage.exit_code == 0, stage.stderr
    compiled = json.loads(stage.stdout)
    assert set(compiled) == {"target", "precision", "variants", "audit"}
    assert all(verdict["ok"] for verdict in compiled["audit"])
    stage = run("pack", model, "-w", "w", *target, "-o", "t.ecb", "--json")
    assert stage.exit_code == 0, stage.stderr
    packed = json.loads(stage.stdout)
    assert set(packed) == {"bundle", "size_bytes", "sha256", "verify", "notes"}
    assert packed["bundle"] == "t.ecb" and packed["verify"]["ok"]
    library = Path(compiled["variants"]["x86-64-v3"]["programs"][0]["library"])
    library.write_bytes(library.read_bytes() + b"x")
    changed = run("pack", model, "-w", "w", *target, "-o", "u.ecb")
    assert changed.exit_code == 36 and "has changed since it was built" in changed.stderr
    assert not (files / "u.ecb").exists()


def test_inspect_a_bundle(tiny_bundle: Path) -> None:
    document = json.loads(run("inspect", str(tiny_bundle), "--hash", "--json").stdout)
    assert {"manifest", "manifest_sha256", "variants", "chosen", "bytes", "device_bytes"} <= set(
        document
    )
    assert document["target"] is None
    # The probe, and a runtime library and three programs for each variant.
    assert [verdict["ok"] for verdict in document["audit"]] == [True] * 9
    assert {verdict["target"] for verdict in document["audit"]} == {"the manifest"}
    packed = [v for v in document["audit"] if v["library"].startswith("bucket-")]
    assert len(packed) == 6 and all(v["vectorised"] for v in packed)
    text = run("inspect", str(tiny_bundle)).stdout
    for part in ("Inputs and outputs", "input_ids", "batch × length", "Buckets", "Audit"):
        assert part in text
    assert "(chosen)" in text and "runs here" in text


def test_texts_of_a_bundle_bring_no_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    from edgecompile.cli.console import facts, print_data, stack, table

    evil = "\x1b[31mred\x07\x9b2J"
    print_data(stack(facts([("built by", evil)]), table(("library",), [(evil,)])), sys.stdout)
    assert capsys.readouterr().out.count("?[31mred??2J") == 2


def test_inspect_for_a_target(tiny_bundle: Path, files: Path) -> None:
    def ask(target: str) -> dict[str, Any]:
        result = run("inspect", str(tiny_bundle), "--target", target, "--json")
        assert result.exit_code == 0, result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        assert document["host"] is None and document["chosen"] is None, "the probe was loaded"
        return document

    v4_lacks = "the CPU or the system lacks avx512f, avx512bw, avx512cd, avx512dq, avx512vl"
    assert ask("cpu-x86-64")["target"] == {
        "name": "cpu-x86-64",
        "ok": True,
        "problem": None,
        "chosen": {"x86-64": "x86-64-v3"},
        "variants": {"x86-64-v3": [], "x86-64-v4": [v4_lacks]},
    }
    assert ask("cpu-x86-64-v4")["target"]["chosen"] == {"x86-64": "x86-64-v4"}
    board = ask("raspberry-pi-5")["target"]
    assert not board["ok"] and board["problem"] == "no variant for its aarch64 devices"
    assert board["variants"]["x86-64-v3"] == ["is for x86-64, raspberry-pi-5 is not"]
    both = ask("cpu-any")["target"]
    assert (
        both["problem"] == "no variant for its aarch64 devices; no variant for its x86-64 devices"
    )

    shown = run("targets", "detect", "--output", "old.toml")
    assert shown.exit_code == 0, shown.stderr
    text = (files / "old.toml").read_text()
    text = re.sub(r"^glibc = .*$", 'glibc = "2.31"', text, flags=re.MULTILINE)
    text = re.sub(r"^python = .*$", 'python = "3.6"', text, flags=re.MULTILINE)
    (files / "old.toml").write_text(text)
    old = ask("./old.toml")
    assert not old["target"]["ok"] and "Python 3.6 is older than 3.8" in old["target"]["problem"]
    assert "needs glibc 2.34, this is 2.31" in old["target"]["variants"]["x86-64-v3"]
    unfit = [v for v in old["audit"] if not v["ok"]]
    assert unfit and all("promises 2.31" in v["findings"][0]["what"] for v in unfit)
    table = run("inspect", str(tiny_bundle), "--target", "./old.toml", "--host").stdout
    for part in ("runs here", "runs on old", "needs glibc 2.34", "unfit", "can't: no variant"):
        assert part in re.sub(r"\s+", " ", table), table


def test_verify_a_bundle(tiny_bundle: Path, tiny_model: Path, files: Path) -> None:
    result = run("verify", str(tiny_bundle), "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"bundle", "ok", "tolerance", "torch_loaded", "results", "not_executed"} <= set(document)
    assert document["ok"] and not document["torch_loaded"]
    assert {item["bucket"] for item in document["results"]} == {0, 1, 2}
    fresh = run("verify", str(tiny_bundle), "--model", str(tiny_model), "--report", "v.html")
    assert fresh.exit_code == 0, fresh.stderr
    assert "agrees:" in fresh.stdout and "random0" in fresh.stdout
    assert "random0" in (files / "v.html").read_text()


def test_verify_finds_a_wrong_bundle(tiny_bundle: Path, files: Path) -> None:
    """Golden vectors that are well-formed and hashed, but not what the model gives."""
    bundle = files / "wrong.ecb"
    shutil.copytree(tiny_bundle, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    name = manifest["golden"][0]["file"]
    with np.load(bundle / name) as arrays:
        changed = {
            key: array + np.float32(0.01) if key.startswith("out.") else array
            for key, array in arrays.items()
        }
    np.savez(bundle / name, **changed)
    data = (bundle / name).read_bytes()
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    result = run("verify", str(bundle), "--json")
    assert result.exit_code == 39, result.stderr
    document = json.loads(result.stdout)
    assert not document["ok"]
    failed = [item for item in document["results"] if not item["ok"]]
    assert {(item["bucket"], item["case"]) for item in failed} == {
        (manifest["golden"][0]["bucket"], manifest["golden"][0]["case"])
    }


def test_a_damaged_bundle_is_named(tiny_bundle: Path, files: Path) -> None:
    bundle = files / "damaged.ecb"
    shutil.copytree(tiny_bundle, bundle)
    weights = bundle / "weights.fp32"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    for command in (("verify",), ("inspect", "--hash")):
        result = run(*command, str(bundle))
        assert result.exit_code == 22, result.stderr
        assert "weights.fp32" in result.stderr and result.stdout == ""


def test_bench_a_bundle(tiny_bundle: Path, files: Path) -> None:
    (files / "few.txt").write_text("3\n9\n9\n")
    arguments = ["bench", str(tiny_bundle), "--lengths", "few.txt", "--threads", "1"]
    arguments += ["--rounds", "2", "--runs", "5", "--cold-runs", "1", "--report", "b.html"]
    result = run(*arguments, "--against", str(tiny_bundle), "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"contenders", "ratios", "by_length", "machine", "warnings"} <= set(document)
    assert list(document["contenders"]) == ["edgecompile", "tiny"]
    for contender in document["contenders"].values():
        assert 0 < contender["p50"] <= contender["p99"] and contender["bytes"] > 1e5
    assert str(files) not in json.dumps(document["command"])
    assert "<svg" in (files / "b.html").read_text()


def test_bench_names_what_needs_the_model(tiny_bundle: Path) -> None:
    result = run("bench", str(tiny_bundle), "--against", "eager")
    assert result.exit_code == 45, result.stderr
    assert "--model" in result.stderr
