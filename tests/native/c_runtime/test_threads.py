"""Threads that share a model of the C runtime, in a program with the thread sanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.hostile.toy import build_libraries, make_toy_bundle
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH

pytestmark = pytest.mark.slow

FLAGS = ("-fsanitize=thread", "-fno-sanitize-recover=all", "-g1")


def test_calls_and_the_end_of_a_model_race_for_nothing(tmp_path: Path) -> None:
    machine = MACHINES[NATIVE_ARCH]
    program = c_library.build(
        machine, "threads", [c_library.PROGRAMS / "host_threads.c"], flags=FLAGS, link=["-pthread"]
    )
    path = make_toy_bundle(tmp_path / "x.ecb", build_libraries()).write()
    # Older libraries of the sanitizer can't place their memory where addresses are random.
    fixed = ["setarch", os.uname().machine, "-R"]
    if subprocess.run([*fixed, "true"], capture_output=True).returncode != 0:
        fixed = []
    done = machine.run([*fixed, program, path], TSAN_OPTIONS="halt_on_error=1:exitcode=66")
    assert done.returncode == 0, done.stderr
