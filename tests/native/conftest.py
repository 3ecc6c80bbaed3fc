"""Builds native sources for tests through the product's object cache, for variants of this CPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgecompile.errors import ToolchainError
from edgecompile.targets.profile import list_variants, load_variant
from edgecompile.toolchain.compilers import Toolchain, find_toolchain, run_tool
from edgecompile.toolchain.native import compile_native, native_sources
from tests.conftest import one_at_a_time
from tests.native.c_runtime.c_library import CLibrary, build_library

NATIVE = native_sources()
HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "tests-native"
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
    if {"avx2", "fma", "bmi2", "avx_vnni"} <= flags:
        marches.append("x86-64-avxvnni")
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
        marches.append("x86-64-v4")
    if {"avx512_vnni", "avx512_bf16"} <= flags:
        marches.append("x86-64-avx512bf16")
    if {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"} <= flags:
        marches.append("x86-64-amx")
    return marches


def march_flags(march: str) -> list[str]:
    """The flags of a variant, or of a value of -march that is none."""
    if march not in list_variants():
        return [f"-march={march}"]
    variant = load_variant(march)
    return [f"-march={variant.march}", *variant.extra_flags]


def sanitizer_flags() -> list[str]:
    """The flags that scripts/sanitize adds to compile and link: -fsanitize=… of ``$EDGECOMPILE_SANITIZE``."""
    names = os.environ.get("EDGECOMPILE_SANITIZE", "")
    if not names:
        return []
    return [f"-fsanitize={names}", "-fno-sanitize-recover=all", "-g1", "-fno-omit-frame-pointer"]


@contextmanager
def unsanitized_tools() -> Iterator[None]:
    """Compilers run without the library that a sanitizer wants first in this process."""
    preloaded = os.environ.pop("LD_PRELOAD", None)
    try:
        yield
    finally:
        if preloaded is not None:
            os.environ["LD_PRELOAD"] = preloaded


@pytest.fixture
def shim() -> Iterator[Any]:
    """The runtime's C ABI (tests.native.programs.aoti.Shim); the test must free what it makes."""
    from tests.native.programs.aoti import load_shim

    native = load_shim()
    before = native.live()
    yield native
    after = native.live()
    assert (after[0] - before[0], after[1] - before[1]) == (0, 0), "the test leaked"


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The compiler that the product uses for this machine."""
    arch = {"x86_64": "x86-64"}.get(os.uname().machine, os.uname().machine)
    try:
        return find_toolchain(arch)
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def build_native(toolchain: Toolchain) -> Build:
    """build_native(name, sources, march=…, flags=(…), folders=(…), shared=True) -> path of the result.

    Sources are paths, or names of files in edgecompile/runtime/native. Each is compiled with the
    product's flags through its object cache, so that what a bundle brings is compiled once for both.
    ``flags`` are the linker's, ``folders`` those of headers that take the place of the product's.
    """

    def build(
        name: str,
        sources: Sequence[str | Path],
        *,
        march: str = "",
        flags: Sequence[str] = (),
        folders: Sequence[Path] = (),
        shared: bool = True,
    ) -> Path:
        march = march or runnable_marches()[-1]
        paths = [NATIVE / s if isinstance(s, str) else s for s in sources]
        sanitizers = sanitizer_flags()
        with unsanitized_tools():
            built = compile_native(toolchain, paths, [*march_flags(march), *sanitizers], folders)
        options = ["-pthread", *sanitizers, *flags, *(["-shared"] if shared else [])]
        command = [toolchain.cxx, *(str(item.path) for item in built), *options]
        digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:16]
        target = BUILD / f"{name}-{march}-{digest}" / (f"lib{name}.so" if shared else name)
        with unsanitized_tools(), one_at_a_time(target.parent / "lock"):
            if not target.exists():
                beside = target.with_suffix(".partial")
                run_tool([*command, "-o", str(beside)], f"linking {name}")
                os.replace(beside, target)
        return target

    return build


#: Variants of which kernels are tested each night only, but for products with packed weights: those have instructions
#: of SSE's own. The others are those of wider vectors, of four numbers each, and tests/builds/test_emulated.py runs
#: whole programs of them in each run.
NIGHTLY = frozenset({"x86-64-v2"})
PACKED = frozenset({"test_gemm_packed", "test_gemm_rounded", "test_packed_rows"})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs what takes a variant for this CPU's best one, or for all of them."""
    if "march" in metafunc.fixturenames:
        marches = runnable_marches()
        if not (
            metafunc.config.getoption("--all-variants")
            or os.environ.get("EDGECOMPILE_TEST_MARCHES")
        ):
            marches = marches[-1:]
        packed = metafunc.module.__name__.rpartition(".")[2] in PACKED
        # The best one is tested in each run.
        late = [m for m in marches[:-1] if m in NIGHTLY and not packed]
        nightly = [pytest.param(m, marks=pytest.mark.exhaustive) for m in late]
        others = [m for m in marches if m not in late]
        metafunc.parametrize("march", [*nightly, *others], indirect=True, scope="session")


@pytest.fixture(scope="session")
def march(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: The pool of threads.
POOL_SOURCES = ("base/profile.cpp", "threads/threads.cpp", "threads/thread_count.cpp")

#: What the kernels' harness and the program that counts instructions are linked with.
KERNEL_SOURCES = (
    "base/allocator.cpp",
    *POOL_SOURCES,
    *sorted(
        path.relative_to(NATIVE).as_posix()
        for folder in ("gemm", "attention", "convolution")
        for path in (NATIVE / "kernels" / folder).rglob("*.cpp")
        if path.stem not in ("packed_weight", "convolution_plain")
    ),
)


@pytest.fixture(scope="session")
def kernels(build_native: Build, march: str) -> ctypes.CDLL:
    """kernels_harness.cpp with the kernels, built for one of this CPU's variants."""
    sources = [*KERNEL_SOURCES, HERE / "kernels" / "kernels_harness.cpp"]
    return ctypes.CDLL(str(build_native("kernels", sources, march=march)))


@pytest.fixture(scope="session")
def library() -> CLibrary:
    """The C runtime."""
    return CLibrary(build_library())
