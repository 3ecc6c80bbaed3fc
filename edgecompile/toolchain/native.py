"""Building the native runtime: one library per variant, and the CPU probe per architecture."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import edgecompile
import edgecompile.runtime
from edgecompile.files import file_sha256
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import (
    COMMON_FLAGS,
    BuiltObject,
    Toolchain,
    compile_object,
    dynamic_symbols,
    find_toolchain,
    link_shared,
    old_libc,
)
from edgecompile.toolchain.includes import Includes
from edgecompile.toolchain.prebuilt import take_prebuilt

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
_APART = frozenset({"cuda", "generated", "libc", "probe", "replay"})

#: Sources that -O3 would make half as much code again of, or more, for nothing: those where no run
#: spends its time (loops cloned for each stride and count), and convolution_channels.cpp, whose
#: loops are unrolled by hand (of 144 KB more no convolution of bench-kernels was 2 % faster).
SMALL_SOURCES = frozenset(
    {
        "shim/along_dimension/aoti_indices.cpp", "shim/along_dimension/aoti_scatters.cpp", "shim/along_dimension/aoti_sorts.cpp", "kernels/convolution/convolution_channels.cpp",
        "tensors/copies.cpp", "program/model_library.cpp", "program/program.cpp",
    }
)  # fmt: skip

#: Sources whose products and sums are rounded one by one, as torch's are: a last bit decides which results there are.
EXACT_SOURCES = frozenset(
    {"kernels/roi_align.cpp", "kernels/suppression.cpp", "shim/aoti_boxes.cpp"}
)


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
        sha256: the SHA-256 of the file.
    """

    variant: str
    path: Path
    sha256: str

    @cached_property
    def exports(self) -> frozenset[str]:
        """The symbols that it offers, all prefixed ``ec_``."""
        return dynamic_symbols(self.path, defined=True)


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


def c_runtime_sources() -> Path:
    """The folder with the sources of the C runtime; its header is in ``include``."""
    return Path(next(iter(edgecompile.__path__))) / "c_runtime"


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


@dataclass(frozen=True)
class Part:
    """Sources that are compiled alike.

    Attributes:
        sources: Sources, of :func:`native_sources` or others that include its headers.
        flags: All flags of the compiler.
        folders: Folders of headers that come before that of the native runtime.
    """

    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class NativeLibrary:
    """A library of the native runtime.

    Attributes:
        arch: ``x86-64`` or ``aarch64``.
        name: name of the variant or the architecture, with what it is for.
        parts: the parts that it is linked from.
        file_name: name of the file, which is its SONAME. ``{}`` stands for a hash of the objects: two bundles in one
            process share a library if and only if it is made of the same ones, also where another linker put them
            together.
    """

    arch: str
    name: str
    parts: tuple[Part, ...]
    file_name: str

    @cached_property
    def key(self) -> str:
        """Identifies its sources and flags, whichever compiler is used."""
        digest = hashlib.sha256()

        def add(*texts: str) -> None:
            for text in texts:
                digest.update(text.encode() + b"\0")

        special = sorted(SMALL_SOURCES), sorted(EXACT_SOURCES)
        add(self.arch, *COMMON_FLAGS, *map(str, special), native_headers_id())
        for part in self.parts:
            add(*part.flags, *map(headers_id, part.folders))
            for source in part.sources:
                add(source.name)
                digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def build(self, output_dir: Path) -> Path:
        """Takes the wheel's into ``output_dir``, or compiles it where the wheel has none.

        Raises:
            ToolchainError, CompileError, DiskFullError.
        """
        return take_prebuilt(self.arch, self.key, output_dir) or self.compile(output_dir)

    def compile(self, output_dir: Path) -> Path:
        """Compiles it into ``output_dir``.

        Raises:
            ToolchainError, CompileError, DiskFullError.
        """
        toolchain = find_toolchain(self.arch)
        objects = [item.path for part in self.parts for item in _compile(toolchain, part)]
        digest = hashlib.sha256()
        for item in objects:
            digest.update(item.read_bytes())
        path = output_dir / self.file_name.format(digest.hexdigest()[:12])
        output_dir.mkdir(parents=True, exist_ok=True)
        link_shared(toolchain, objects, path, exports=["ec_*"], soname=path.name)
        return path


def runtime_library(variant: VariantSpec) -> NativeLibrary:
    """The runtime library of a variant."""
    flags = (*RUNTIME_FLAGS, f"-march={variant.march}", *variant.extra_flags)
    part = Part(tuple(runtime_sources().values()), flags)
    return NativeLibrary(variant.arch, variant.name, (part,), "libeckernels-{}.so")


def probe_library(arch: str) -> NativeLibrary:
    """The library that reports the CPU's features, for the lowest baseline of an architecture."""
    flags = ("-x", "c", "-std=c11", "-O1", f"-march={BASELINE_MARCH[arch]}")
    source = native_sources() / "probe" / "cpu_probe.c"
    return NativeLibrary(arch, f"{arch}-probe", (Part((source,), flags),), "libecprobe.so")


def build_runtime(variant: VariantSpec, output_dir: Path) -> NativeRuntime:
    """Builds the runtime library of ``variant`` into ``output_dir``.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    path = runtime_library(variant).build(output_dir)
    return NativeRuntime(variant.name, path, file_sha256(path))


def build_probe(arch: str, output_dir: Path) -> Path:
    """Builds the library that reports the CPU's features into ``output_dir``.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    return probe_library(arch).build(output_dir)


def compile_native(
    toolchain: Toolchain,
    sources: Iterable[Path],
    machine_flags: Sequence[str],
    folders: Sequence[Path] = (),
) -> list[BuiltObject]:
    """Compiles sources of the native runtime, or others that include its headers, side by side.

    Args:
        toolchain: the tools.
        sources: C++ files; those of :func:`native_sources` get the flags that they ship with.
        machine_flags: flags beside :data:`RUNTIME_FLAGS`, ``-march`` among them.
        folders: other folders of headers, which come before that of the native runtime.

    Returns:
        An object for each source, in their order.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    part = Part(tuple(sources), (*RUNTIME_FLAGS, *machine_flags), tuple(folders))
    return _compile(toolchain, part)


def _compile(toolchain: Toolchain, part: Part) -> list[BuiltObject]:
    root = native_sources()
    sources, flags, folders = part.sources, part.flags, part.folders
    headers = _HEADERS if len(sources) >= _MANY else ""
    include_dirs = (*folders, root, root / "probe")  # the probe names a header from its own folder
    includes, libc = Includes(include_dirs), headers_id(old_libc())

    def build(source: Path) -> BuiltObject:
        name = source.relative_to(root).as_posix() if root in source.parents else ""
        own = (
            *(("-O2",) if name in SMALL_SOURCES else ()),
            *(("-ffp-contract=off",) if name in EXACT_SOURCES else ()),
        )
        text = source.read_bytes()
        return compile_object(
            toolchain,
            text,
            name=source.name,
            flags=(*flags, *own),
            include_dirs=include_dirs,
            headers_id=f"{libc} {includes.identify(text)}",
            precompiled="" if own else headers,
            precompiled_id=f"{libc} {includes.identify(headers.encode())}",
        )

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(build, sources))
