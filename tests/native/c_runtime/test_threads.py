"""Threads that share a model of the C runtime, in a program with the thread sanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.hostile.toy import build_libraries, make_toy_bundle
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH
from tests.runtime.store.device import Device

pytestmark = pytest.mark.slow

FLAGS = ("-fsanitize=thread", "-fno-sanitize-recover=all", "-g1")


def run_threads(name: str, sources: list[Path], *arguments: object, **variables: str) -> str:
    """Runs a program under the sanitizer; returns what it printed."""
    machine = MACHINES[NATIVE_ARCH]
    program = c_library.build(machine, name, sources, flags=FLAGS, link=["-pthread"])
    # Older libraries of the sanitizer can't place their memory where addresses are random.
    fixed = ["setarch", os.uname().machine, "-R"]
    if subprocess.run([*fixed, "true"], capture_output=True).returncode != 0:
        fixed = []
    command = [*fixed, program, *map(str, arguments)]
    done = machine.run(command, TSAN_OPTIONS="halt_on_error=1:exitcode=66", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls_and_the_end_of_a_model_race_for_nothing(tmp_path: Path) -> None:
    path = make_toy_bundle(tmp_path / "x.ecb", build_libraries()).write()
    run_threads("threads", [c_library.PROGRAMS / "host_threads.c"], path)


def test_no_call_is_lost_while_versions_change(tmp_path: Path) -> None:
    device = Device(tmp_path)
    for number in (1, 2):
        device.install(device.release(number, answer=number))
    other = make_toy_bundle(tmp_path / "other.ecb", build_libraries())
    other.document["name"] = "tiny2"
    device.sign(other, name="tiny2")
    versions = sorted(Path(device.store.path, "versions").iterdir(), key=device.number)
    printed = run_threads(
        "follow",
        [c_library.EXAMPLE / "follow.c", c_library.PROGRAMS / "host_follow.c"],
        *(tmp_path / "link", *versions, other.folder),
        EDGECOMPILE_TRUST=str(device.signed.trust),
    )
    first, second, mapped = map(int, printed.split())
    assert first > 0 and second > 0 and first + second >= 10_000
    # Equal files are linked, and their pages are there once.
    assert mapped == 1
