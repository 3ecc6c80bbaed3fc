"""A valid bundle that every loader runs to the end, made without compiling a model.

Its native code (toy_*.c) is a few lines of C, so a fuzzer gets past the point where a dummy library
would end each attempt.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from edgecompile.runtime.cpu.host import architecture
from tests.runtime.bundles import DummyBundle

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BUILD = REPOSITORY / "build" / "tests-hostile"
NATIVE = REPOSITORY / "edgecompile" / "runtime" / "native"

VARIANT = "toy"
PROBE = "code/libecprobe.so"
RUNTIME = "code/toy/libeckernels-0.so"
PROGRAMS = ("code/toy/bucket-0.so", "code/toy/bucket-1.so")
WEIGHTS = "weights.fp32"


class ToyLibraries(NamedTuple):
    """The bytes of the libraries; ``intruder`` belongs into no bundle."""

    probe: bytes
    runtime: bytes
    program: bytes
    other_program: bytes
    intruder: bytes


def find_compiler() -> str | None:
    """A C compiler, or None."""
    return shutil.which("gcc") or shutil.which("cc")


def build_libraries() -> ToyLibraries:
    """Compiles the libraries, or takes what an earlier call compiled of the same sources."""
    compiler = find_compiler()
    assert compiler is not None, "needs a C compiler"
    counts = ("-DTOY_INPUTS=2", "-DTOY_OUTPUTS=2")
    return ToyLibraries(
        _compile(compiler, "toy_probe.c"),
        _compile(compiler, "toy_runtime.c", "-ldl"),
        _compile(compiler, "toy_program.c", *counts),
        _compile(compiler, "toy_program.c", *counts, "-DTOY_OTHER"),
        _compile(compiler, "toy_intruder.c"),
    )


def build_answering(answer: int) -> bytes:
    """A program whose outputs hold a number instead of zeros."""
    compiler = find_compiler()
    assert compiler is not None, "needs a C compiler"
    counts = ("-DTOY_INPUTS=2", "-DTOY_OUTPUTS=2")
    return _compile(compiler, "toy_program.c", *counts, f"-DTOY_ANSWER={answer}.0f")


def _compile(compiler: str, source: str, *more: str) -> bytes:
    command = [
        compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall",
        "-Wextra", "-Werror", f"-I{NATIVE}",
    ]  # fmt: skip
    digest = hashlib.sha256(repr((command, more)).encode())
    for path in (HERE / "toys" / source, *sorted((NATIVE / "base").glob("*.h"))):
        digest.update(path.read_bytes())
    target = BUILD / f"{digest.hexdigest()[:16]}-{source}.so"
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        beside = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [*command, str(HERE / "toys" / source), *more, "-o", str(beside)], check=True
        )
        os.replace(beside, target)
    return target.read_bytes()


def make_toy_bundle(folder: Path, libraries: ToyLibraries) -> DummyBundle:
    """The bundle in memory. Golden vectors are reproduced, so its self-test passes."""
    bundle = DummyBundle(folder)
    arch = architecture(platform.machine())
    variant: dict[str, Any] = {
        "name": VARIANT,
        "arch": arch,
        "backend": "aoti-cpu",
        "requires": ["toy"],
        "glibc": "2.17",
        "runtime": RUNTIME,
        "programs": list(PROGRAMS),
        "rank": 30,
    }
    too_good = {**variant, "name": "toy-v9", "requires": ["toy", "a_feature_of_no_cpu"], "rank": 90}
    bundle.document["variants"] = [too_good, variant]
    bundle.document["probes"] = {arch: PROBE}
    for name in list(bundle.files):
        if name.startswith("code/"):
            del bundle.files[name]
    bundle.files.update(
        {PROBE: libraries.probe, RUNTIME: libraries.runtime, PROGRAMS[0]: libraries.program}
    )
    # Another content, so that a swap of the two is one.
    bundle.files[PROGRAMS[1]] = libraries.other_program
    return bundle
