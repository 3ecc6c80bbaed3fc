"""Building the runtime library of programs on NVIDIA's GPUs: one per architecture of the host."""

from __future__ import annotations

from pathlib import Path

from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.native import (
    BASELINE_MARCH,
    NativeRuntime,
    compile_native,
    link_runtime,
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


def gpu_runtime_sources() -> tuple[Path, ...]:
    """The sources of the runtime library for GPUs."""
    root = native_sources()
    return (*sorted((root / "cuda").glob("*.cpp")), *(root / name for name in _SHARED))


def build_gpu_runtime(arch: str, output_dir: Path) -> NativeRuntime:
    """Builds the runtime library for GPUs of hosts of ``arch`` into ``output_dir``.

    Neither CUDA's headers nor its libraries are needed: the driver is loaded by name where it runs.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    toolchain = find_toolchain(arch)
    # Host code that only queues work: nothing in it gains from a newer instruction set.
    flags = (f"-march={BASELINE_MARCH[arch]}", "-O2")
    objects = compile_native(toolchain, gpu_runtime_sources(), flags)
    return link_runtime(toolchain, objects, "eccuda", arch, output_dir)
