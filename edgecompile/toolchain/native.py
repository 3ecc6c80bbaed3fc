"""Building the native runtime: one library per variant, and the CPU probe per architecture."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import edgecompile.runtime
from edgecompile.files import file_sha256
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import (
    BuiltObject,
    Toolchain,
    compile_object,
    exported_symbols,
    find_toolchain,
    link_shared,
)

#: The lowest instruction set of each architecture: what the probe and cold code are built for.
BASELINE_MARCH = {"x86-64": "x86-64", "aarch64": "armv8-a"}

#: -ffp-contract=fast lets ``a * b + c`` become a fused multiply-add; the kernels are written for it.
RUNTIME_FLAGS = (
    "-std=c++20",
    "-O3",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-semantic-interposition",
    "-ffunction-sections",
    "-Wno-psabi",
)

#: Sources that -O3 would make half as much code again of, or more, for nothing: those where no run
#: spends its time (loops cloned for each stride and count), and convolution_channels.cpp, whose
#: loops are unrolled by hand (of 144 KB more no convolution of bench-kernels was 2 % faster).
SMALL_SOURCES = frozenset(
    {
        "aoti_indices.cpp", "aoti_scatters.cpp", "aoti_sorts.cpp", "convolution_channels.cpp",
        "copies.cpp", "model_library.cpp", "program.cpp",
    }
)  # fmt: skip


@dataclass(frozen=True)
class NativeRuntime:
    """The runtime library of one variant.

    Attributes:
        variant: the variant's name.
        path: the shared library; its file name is its SONAME.
        sha256: of the file.
        exports: the symbols that it offers, all prefixed ``ec_``.
    """

    variant: str
    path: Path
    sha256: str
    exports: frozenset[str]


def native_sources() -> Path:
    """The folder with the native runtime's sources."""
    return Path(next(iter(edgecompile.runtime.__path__))) / "native"


@cache
def native_headers_id() -> str:
    """Identifies the content of every header, so that the object cache notices a change."""
    digest = hashlib.sha256()
    # The C interface in host/ is compiled by users; nothing that a bundle holds includes it.
    host = native_sources() / "host"
    for header in sorted(x for x in native_sources().rglob("*.h") if host not in x.parents):
        digest.update(header.name.encode() + b"\0" + header.read_bytes())
    return digest.hexdigest()


def build_runtime(variant: VariantSpec, output_dir: Path) -> NativeRuntime:
    """Builds the runtime library of ``variant`` into ``output_dir``.

    The SONAME carries a hash of the objects: two bundles in one process share the library if and
    only if it is made of the same ones, also where another linker put them together.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    toolchain = find_toolchain(variant.arch)
    sources = native_sources()
    flags = (*RUNTIME_FLAGS, f"-march={variant.march}", *variant.extra_flags)

    def build(source: Path) -> BuiltObject:
        return compile_object(
            toolchain,
            source.read_bytes(),
            name=source.name,
            flags=(*flags, "-O2") if source.name in SMALL_SOURCES else flags,
            include_dirs=(sources,),
            headers_id=native_headers_id(),
        )

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        objects = list(pool.map(build, sorted(sources.glob("*.cpp"))))
    digest = hashlib.sha256()
    for built in objects:
        digest.update(built.path.read_bytes())
    soname = f"libecrt-{digest.hexdigest()[:12]}.so"
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / soname
    link_shared(toolchain, [o.path for o in objects], path, exports=["ec_*"], soname=soname)
    return NativeRuntime(variant.name, path, file_sha256(path), exported_symbols(toolchain, path))


def build_probe(arch: str, output_dir: Path) -> Path:
    """Builds the library that reports the CPU's features, for the lowest baseline of ``arch``."""
    toolchain: Toolchain = find_toolchain(arch)
    source = native_sources() / "probe" / "cpu_probe.c"
    built = compile_object(
        toolchain,
        source.read_bytes(),
        name=source.name,
        flags=("-x", "c", "-std=c11", "-O1", f"-march={BASELINE_MARCH[arch]}"),
        include_dirs=(source.parent, native_sources()),
        headers_id=native_headers_id(),
    )
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / "libecprobe.so"
    link_shared(toolchain, [built.path], path, exports=["ec_*"], soname=path.name)
    return path
