"""Building the runtime library of programs on NVIDIA's GPUs: one per architecture of the host."""

from __future__ import annotations

from pathlib import Path

from edgecompile.files import file_sha256
from edgecompile.toolchain.native import (
    BASELINE_MARCH,
    RUNTIME_FLAGS,
    NativeLibrary,
    NativeRuntime,
    Part,
    c_runtime_sources,
    native_sources,
)

#: What it shares with the library for CPUs, beside the folder ``cuda``.
_SHARED = (
    "base/allocator.cpp",
    "base/status.cpp",
    "base/unwinding.cpp",
    "program/binding.cpp",
    "program/model_library.cpp",
    "shim/aoti_handles.cpp",
    "shim/aoti_types.cpp",
    "tensors/dtypes.cpp",
    "tensors/tensor.cpp",
)

#: Of the C runtime, what opens a bundle on any machine and has the interface for C.
_C_RUNTIME_ALONE = frozenset(
    {"api.cpp", "cpu_programs.cpp", "describe.cpp", "dispatch.cpp", "model.cpp"}
)


def gpu_runtime_sources() -> tuple[Path, ...]:
    """The sources of the runtime library for GPUs."""
    root = native_sources()
    return (*sorted((root / "cuda").glob("*.cpp")), *(root / name for name in _SHARED))


def variant_sources() -> tuple[Path, ...]:
    """The sources with which Python runs a variant as the C runtime does, most of them that one's own."""
    root = c_runtime_sources()
    shared = (path for path in sorted(root.rglob("*.cpp")) if path.name not in _C_RUNTIME_ALONE)
    return (*sorted((native_sources() / "cuda" / "variants").glob("*.cpp")), *shared)


def gpu_library(arch: str) -> NativeLibrary:
    """The runtime library for GPUs of hosts of an architecture.

    Neither CUDA's headers nor its libraries are needed: the driver is loaded by name where it runs.
    """
    # Host code that only queues work: nothing in it gains from a newer instruction set.
    flags = (*RUNTIME_FLAGS, f"-march={BASELINE_MARCH[arch]}")
    folders = (c_runtime_sources(), c_runtime_sources() / "include")
    hashes = tuple(path for path in variant_sources() if path.name.startswith("sha256"))
    others = tuple(path for path in variant_sources() if path not in hashes)
    parts = (
        Part(gpu_runtime_sources(), (*flags, "-O2")),
        Part(hashes, (*flags, "-O2"), folders),
        Part(others, (*flags, "-Os"), folders),
    )
    return NativeLibrary(arch, f"{arch}-gpu", parts, "libeccuda-{}.so")


def build_gpu_runtime(arch: str, output_dir: Path) -> NativeRuntime:
    """Builds the runtime library for GPUs of hosts of ``arch`` into ``output_dir``.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    path = gpu_library(arch).build(output_dir)
    return NativeRuntime(arch, path, file_sha256(path))
