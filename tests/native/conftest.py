"""Builds native sources for tests, once per content, with the flags that variants are built with."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgecompile.targets.profile import list_variants, load_variant

NATIVE = Path(__file__).resolve().parents[2] / "edgecompile" / "runtime" / "native"
HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "tests-native"
FLAGS = [
    "-std=c++20", "-O3", "-g1", "-fPIC", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra",
]  # fmt: skip

Build = Callable[..., Path]


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def runnable_marches() -> list[str]:
    """This CPU's variants, each with its own vector width, and that with tiles.

    On aarch64 the baseline: other variants have the same width. $EDGECOMPILE_TEST_MARCHES, words
    separated by spaces, takes their place: names of variants, or values of -march.
    """
    chosen = os.environ.get("EDGECOMPILE_TEST_MARCHES", "").split()
    if chosen:
        return chosen
    if os.uname().machine != "x86_64":
        return ["armv8-a" if os.uname().machine == "aarch64" else "native"]
    flags = _cpu_flags()
    marches = ["x86-64-v2"]
    if {"avx2", "fma", "bmi2"} <= flags:
        marches.append("x86-64-v3")
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
        marches.append("x86-64-v4")
    if {"avx512_vnni", "avx512_bf16"} <= flags:
        marches.append("x86-64-avx512bf16")
    if {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"} <= flags:
        marches.append("x86-64-amx")
    return marches


def march_flags(march: str) -> list[str]:
    """The flags of a variant, or of a value of -march that is none."""
    if march not in list_variants():
        return [f"-march={march}"]
    variant = load_variant(march)
    return [f"-march={variant.march}", *variant.extra_flags]


def _digest(command: Sequence[str]) -> str:
    h = hashlib.sha256("\0".join(command).encode())
    for folder in (NATIVE, HERE):
        for path in sorted([*folder.rglob("*.h"), *folder.rglob("*.cpp")]):
            h.update(path.read_bytes())
    return h.hexdigest()[:16]


@pytest.fixture(scope="session")
def build_native() -> Build:
    """build_native(name, sources, march=…, flags=(…), shared=True) -> path of the result.

    Sources are paths or names of files in edgecompile/runtime/native. The result is kept under
    build/ and reused while no native source and no flag changes.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.skip(f"no C++ compiler: {compiler} not found (set CXX)")

    def build(
        name: str,
        sources: Sequence[str | Path],
        *,
        march: str = "",
        flags: Sequence[str] = (),
        shared: bool = True,
    ) -> Path:
        march = march or runnable_marches()[-1]
        paths = [str(NATIVE / s) if isinstance(s, str) else str(s) for s in sources]
        command = [compiler, *FLAGS, *march_flags(march), f"-I{NATIVE}", *flags, *paths]
        if shared:
            command.append("-shared")
        folder = BUILD / f"{name}-{march}-{_digest(command)}"
        target = folder / (f"lib{name}.so" if shared else name)
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            beside = folder / f"{os.getpid()}.tmp"
            done = subprocess.run(
                [*command, "-o", str(beside)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
            os.replace(beside, target)
        return target

    return build


@pytest.fixture(scope="session", params=runnable_marches())
def march(request: pytest.FixtureRequest) -> str:
    return str(request.param)


KERNEL_SOURCES = (
    "threads/threads.cpp", "threads/thread_count.cpp", "kernels/gemm/gemm.cpp", "kernels/gemm/gemm_split.cpp", "kernels/gemm/gemm_pack.cpp",
    "kernels/gemm/gemm_epilogue.cpp", "kernels/gemm/narrow/gemm_bf16.cpp", "kernels/gemm/narrow/gemm_int8.cpp", "kernels/attention/attention.cpp",
    "kernels/convolution/convolution.cpp", "kernels/convolution/convolution_channels.cpp", "base/allocator.cpp",
)  # fmt: skip


@pytest.fixture(scope="session")
def kernels(build_native: Build, march: str) -> ctypes.CDLL:
    """kernels_harness.cpp with the kernels, built for one of this CPU's variants."""
    sources = [*KERNEL_SOURCES, HERE / "kernels_harness.cpp"]
    return ctypes.CDLL(str(build_native("kernels", sources, march=march)))
