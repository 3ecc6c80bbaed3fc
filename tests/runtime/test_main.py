"""__main__: the command line of the device, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

import edgecompile
from edgecompile.runtime import __main__ as program
from edgecompile.runtime.commands.info import describe_bundle, format_bundle
from tests.runtime.bundles import DummyBundle

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgecompile.runtime", *arguments]
    variables = dict(os.environ, PYTHONPATH=str(REPOSITORY), **environment)
    return subprocess.run(command, env=variables, capture_output=True, text=True, cwd="/")


def data(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_help_and_usage() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("info", "selftest", "bench"):
        assert command in done.stdout
    assert "coldstart" not in done.stdout
    done = run("nothing", "x")
    assert done.returncode == 2 and "selftest" in done.stderr
    assert "coldstart" not in done.stderr, "only bench calls that"
    done = run("--version")
    assert done.returncode == 0 and done.stdout == f"edgecompile {edgecompile.__version__}\n"


def test_a_bundle_without_compilers_names_none(bundle: DummyBundle) -> None:
    bundle.document["built_by"] = {"compilers": "", "torch": "2.13.0"}
    report = describe_bundle(bundle.write(), probe=False)
    assert "built by  torch 2.13.0" in format_bundle({**report, "variants": []})


def test_every_option_has_a_help_text() -> None:
    """None of generate's is left to be guessed."""
    from argparse import ArgumentParser

    from edgecompile.runtime.commands.generate import add_options

    parser = ArgumentParser()
    add_options(parser)
    assert all(action.help for action in parser._actions)


def test_the_package_shows_its_public_names() -> None:
    from edgecompile import runtime

    assert dir(runtime) == sorted(runtime.__all__)
    assert all(getattr(runtime, name) for name in runtime.__all__)
    assert "open_tokenizer" in dir(runtime) and "Any" not in dir(runtime)


def test_usage_of_commands() -> None:
    assert run().returncode == 2
    assert run("bench", "x", "--threads", "two").returncode == 2


def test_info_of_this_machine() -> None:
    report = data(run("info", "--host", "--json"))
    assert report["host"]["cpus"] >= 1 and report["host"]["memory_bytes"] > 1 << 20
    assert report["host"]["features"] is None, "only a bundle has a probe"
    text = run("info", "--host").stdout
    assert "host " in text and "not known: give a BUNDLE" in text
    assert run("info").returncode == 1


@pytest.mark.parametrize("command", ["info", "selftest", "bench"])
def test_errors_have_a_message_a_hint_and_a_code(bundle: DummyBundle, command: str) -> None:
    done = run(command, str(bundle.folder))
    assert done.returncode == 20 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "\nhint: " in done.stderr
    assert "Traceback" not in done.stderr
    done = run(command, str(bundle.folder), "--debug")
    assert done.returncode == 1 and "Traceback" in done.stderr

    path = bundle.write()
    (bundle.folder / "weights.fp32").write_bytes(b"")
    done = run(command, path, "--json")
    entry = data(done, 22)["error"]
    assert (entry["code"], entry["class"]) == (22, "DamagedBundleError")
    assert "weights.fp32: has 0 bytes" in entry["message"]
    assert done.stderr == f"error: {entry['message']}\nhint: {entry['hint']}\n"

    bundle.document["format_version"] = 2
    assert run(command, bundle.write()).returncode == 21


def test_info_of_a_bundle_for_another_machine(bundle: DummyBundle) -> None:
    bundle.document["variants"][0]["arch"] = "none"
    bundle.document["probes"] = {"none": "code/x86-64/libecprobe.so"}
    path = bundle.write()
    report = data(run("info", path, "--json"))
    assert report["chosen"] is None and report["device_bytes"] is None
    assert "is for none" in report["variants"][0]["reasons"][0]
    assert report["bytes"] == sum(
        file.stat().st_size for file in bundle.folder.rglob("*") if file.is_file()
    )
    text = run("info", path).stdout
    assert "bucket 1  pad: batch 1..2 (hint 1), length 33..64 (hint 64)" in text
    assert "input     input_ids: int64[batch, length]  0..99" in text
    bundle.document["buckets"][1]["pad_axes"] = ["length", "batch"]
    text = run("info", bundle.write()).stdout
    assert "bucket 1  pad of length and batch: batch 1..2 (hint 1)" in text
    done = run("selftest", path)
    assert done.returncode == 23 and "is for none" in done.stderr


def test_info_of_a_real_bundle(native_bundle: str) -> None:
    report = data(run("info", native_bundle, "--json"))
    assert report["chosen"] is not None and report["problem"] is None
    assert 0 < report["device_bytes"]["total"] <= report["bytes"]
    assert report["host"]["features"]
    assert "(chosen): runs here" in run("info", native_bundle, "--host").stdout
    for item in report["variants"]:
        assert item["ok"] or item["verdict"] == "; ".join(item["reasons"])


def test_selftest(native_bundle: str, tmp_path: Path) -> None:
    report = data(run("selftest", native_bundle, "--json", "--threads", "1"))
    assert report["ok"] and report["threads"] == 1 and report["verify"] == "full"
    assert "torch" not in report["imported"]
    (tmp_path / "0-broken.npz").write_bytes(b"PK")
    report = data(run("selftest", native_bundle, "--json", "--cases", str(tmp_path)), 27)
    assert not report["ok"] and report["failed"] == 1
    done = run("selftest", native_bundle, "--cases", str(tmp_path))
    assert done.returncode == 27 and "FAILED: 0 of 1 cases ok" in done.stdout


def test_bench(native_bundle: str, tmp_path: Path) -> None:
    common = ("bench", native_bundle, "--seconds", "0.1", "--cold-runs", "0", "--threads", "1")
    report = data(run(*common, "--json"))
    assert report["overall"]["p50_ms"] > 0 and "cold_start" not in report
    (tmp_path / "lengths").write_text("nothing\n")
    done = run(*common, "--lengths", str(tmp_path / "lengths"))
    assert done.returncode == 24 and "line 1: 'nothing'" in done.stderr


def test_calibrate(native_bundle: str, tmp_path: Path) -> None:
    place = tmp_path / "calibration.json"
    common = ("bench", native_bundle, "--seconds", "0", "--threads", "1", "--cold-runs", "1")
    done = run(*common, "--calibrate", str(place))
    assert done.returncode == 0 and "rounds" in done.stderr
    assert "spread ms" in done.stdout and "to load one more" in done.stdout
    report = data(run(*common, "--json", "--calibrate", str(place)))
    assert report == json.loads(place.read_text())

    done = run(*common, "--calibrate", str(tmp_path))
    assert done.returncode == 24 and "is a folder" in done.stderr and "\nhint: " in done.stderr
    done = run(*common, "--error", "0.01")
    assert done.returncode == 24 and "--error goes with --calibrate" in done.stderr
    done = run(*common, "--most-error", "0.01")
    assert done.returncode == 24 and "--most-error goes with --calibrate" in done.stderr
    done = run(*common, "--calibrate", str(place), "--error", "0.02", "--most-error", "0.01")
    assert done.returncode == 24 and "most-error is 0.01, must be from error, 0.02" in done.stderr
    done = run(*common, "--calibrate", str(place), "--most-error", "0.01")
    assert done.returncode == 24 and "--most-error goes with --error" in done.stderr
    done = run(*common, "--calibrate", str(place), "--error", "1")
    assert done.returncode == 24 and "error is 1, must be from 0 to under 1" in done.stderr
    done = run(*common, "--calibrate", str(place), "--lengths", str(place))
    assert done.returncode == 24 and "don't go together" in done.stderr
    done = run("bench", str(tmp_path), "--calibrate", str(tmp_path.parent / "x"))
    assert done.returncode == 20 and not (tmp_path.parent / "x").exists()


def test_an_unknown_variant(native_bundle: str) -> None:
    done = run("selftest", native_bundle, "--variant", "v9")
    assert done.returncode == 23 and "no variant 'v9'" in done.stderr
    done = run("selftest", native_bundle, EDGECOMPILE_VARIANT="v8")
    assert done.returncode == 23 and "no variant 'v8'" in done.stderr


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_closed_pipe_is_no_traceback(form: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        assert ends_with(stdout, "info", "--host", *form) == (141, "")
        code, told = ends_with(stdout, "info", "/nonexistent", *form)
    assert code == 20 and "Traceback" not in told


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_full_disk_under_stdout(form: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as stdout:
        code, told = ends_with(stdout, "info", "--host", *form)
    assert code == 74 and told == "error: [Errno 28] No space left on device\n"


def ends_with(stdout: IO[bytes], *arguments: str) -> tuple[int, str]:
    """The exit code and stderr of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "edgecompile.runtime", *arguments],
        env=dict(os.environ, PYTHONPATH=str(REPOSITORY)),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (MemoryError(), 73, "x.ecb: out of memory"),
        (FileNotFoundError(2, "No such file or directory", "x"), 74, "No such file or directory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyError("x"), 70, "a bug in edgecompile: KeyError: 'x'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_any_failure_has_its_code_and_its_object(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr(program, "_selftest", fail)
    assert program.main(["selftest", "x.ecb", "--json"]) == code
    said = capsys.readouterr()
    entry = json.loads(said.out)["error"]
    assert (entry["code"], entry["class"]) == (code, type(error).__name__)
    assert told in entry["message"] and said.err.startswith(f"error: {entry['message']}\n")
    assert program.main(["selftest", "x.ecb"]) == code
    assert capsys.readouterr() == ("", said.err)
    with pytest.raises(type(error)):
        program.main(["selftest", "x.ecb", "--debug"])
