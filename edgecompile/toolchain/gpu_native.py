"""Building the runtime library of programs on NVIDIA's GPUs: one per architecture of the host."""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgecompile.files import file_sha256
from edgecompile.toolchain.compilers import exported_symbols, find_toolchain, link_shared
from edgecompile.toolchain.native import (
    BASELINE_MARCH,
    NativeRuntime,
    compile_native,
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
    The SONAME carries a hash of the objects, as that of the library for CPUs does.

    Raises:
        ToolchainError, CompileError, DiskFullError.
    """
    toolchain = find_toolchain(arch)
    # Host code that only queues work: nothing in it gains from a newer instruction set.
    flags = (f"-march={BASELINE_MARCH[arch]}", "-O2")
    objects = compile_native(toolchain, gpu_runtime_sources(), flags)
    digest = hashlib.sha256()
    for built in objects:
        digest.update(built.path.read_bytes())
    soname = f"libeccuda-{digest.hexdigest()[:12]}.so"
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / soname
    link_shared(toolchain, [o.path for o in objects], path, exports=["ec_*"], soname=soname)
    return NativeRuntime(arch, path, file_sha256(path), exported_symbols(toolchain, path))
