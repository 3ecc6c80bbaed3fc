"""Building the native runtime: one library per variant, and the CPU probe per architecture."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import edgecompile
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

#: Folders whose sources are built for themselves, or into every model library.
_APART = frozenset({"cuda", "generated", "probe", "replay"})

#: Sources that -O3 would make half as much code again of, or more, for nothing: those where no run
#: spends its time (loops cloned for each stride and count), and convolution_channels.cpp, whose
#: loops are unrolled by hand (of 144 KB more no convolution of bench-kernels was 2 % faster).
SMALL_SOURCES = frozenset(
    {
        "shim/lines/aoti_indices.cpp", "shim/lines/aoti_scatters.cpp", "shim/lines/aoti_sorts.cpp", "kernels/convolution/convolution_channels.cpp",
        "tensors/copies.cpp", "program/model_library.cpp", "program/program.cpp",
    }
)  # fmt: skip


#: What most of them include, for precompiled headers: making those takes as long as they save in seven sources.
_HEADERS = "".join(
    f"#include <{name}>\n"
    for name in ("algorithm", "atomic", "cmath", "cstring", "limits", "memory", "mutex", "new", "string", "utility", "vector")
)  # fmt: skip
_MANY = 10


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
    """The folder with the native runtime's sources, from which they include each other."""
    return Path(next(iter(edgecompile.runtime.__path__))) / "native"


def runtime_sources() -> dict[str, Path]:
    """The sources of the runtime library by their paths in :func:`native_sources`."""
    root = native_sources()
    return {
        path.relative_to(root).as_posix(): path
        for path in sorted(root.rglob("*.cpp"))
        if path.relative_to(root).parts[0] not in _APART
    }


def c_interface_sources() -> Path:
    """The folder with the sources of the C interface; its header is in ``include``."""
    return Path(next(iter(edgecompile.__path__))) / "c_interface"


@cache
def native_headers_id() -> str:
    """Identifies the content of every header, so that the object cache notices a change."""
    return headers_id(native_sources())


def headers_id(folder: Path) -> str:
    """Identifies the content of the headers below a folder, each by its path there."""
    digest = hashlib.sha256()
    for header in sorted(folder.rglob("*.h")):
        name = header.relative_to(folder).as_posix()
        digest.update(name.encode() + b"\0" + header.read_bytes())
    return digest.hexdigest()


def build_runtime(variant: VariantSpec, output_dir: Path) -> NativeRuntime:
    """Builds the runtime library of ``variant`` into ``output_dir``.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    toolchain = find_toolchain(variant.arch)
    machine_flags = (f"-march={variant.march}", *variant.extra_flags)
    objects = compile_native(toolchain, runtime_sources().values(), machine_flags)
    return link_runtime(toolchain, objects, "ecrt", variant.name, output_dir)


def link_runtime(
    toolchain: Toolchain, objects: Sequence[BuiltObject], stem: str, name: str, output_dir: Path
) -> NativeRuntime:
    """Links the runtime library called ``name`` into ``output_dir``, as lib``stem``-….so.

    The SONAME carries a hash of the objects: two bundles in one process share the library if and
    only if it is made of the same ones, also where another linker put them together.
    """
    digest = hashlib.sha256()
    for built in objects:
        digest.update(built.path.read_bytes())
    soname = f"lib{stem}-{digest.hexdigest()[:12]}.so"
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / soname
    link_shared(toolchain, [o.path for o in objects], path, exports=["ec_*"], soname=soname)
    return NativeRuntime(name, path, file_sha256(path), exported_symbols(toolchain, path))


def compile_native(
    toolchain: Toolchain, sources: Iterable[Path], machine_flags: Sequence[str]
) -> list[BuiltObject]:
    """Compiles sources of the native runtime, or others that include its headers, side by side.

    Args:
        toolchain: the tools.
        sources: C++ files; those of :func:`native_sources` get the flags that they ship with.
        machine_flags: flags beside :data:`RUNTIME_FLAGS`, ``-march`` among them.

    Returns:
        An object for each source, in their order.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    root, sources = native_sources(), list(sources)
    headers = _HEADERS if len(sources) >= _MANY else ""

    def build(source: Path) -> BuiltObject:
        is_small = root in source.parents and source.relative_to(root).as_posix() in SMALL_SOURCES
        return compile_object(
            toolchain,
            source.read_bytes(),
            name=source.name,
            flags=(*RUNTIME_FLAGS, *machine_flags, *(("-O2",) if is_small else ())),
            include_dirs=(root,),
            headers_id=native_headers_id(),
            precompiled="" if is_small else headers,
        )

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(build, sources))


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
