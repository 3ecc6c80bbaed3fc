"""A program for a GPU as one shared library: the wrapper for the host's CPU, and the kernels' code in it.

The library needs neither libcudart nor libcuda: what it calls of torch and of the driver is bound to the
native GPU runtime under names of its own, ``ec_...``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edgecompile.backends.cpu.backend import (
    called_symbols,
    generated_headers_id,
    link_renamed,
    torch_include_dirs,
)
from edgecompile.backends.cuda.cubins import Assembled
from edgecompile.backends.inductor.missing_kernels import missing_kernels_error
from edgecompile.backends.inductor.source import split_interface
from edgecompile.toolchain.compilers import BuiltObject, Toolchain, compile_object
from edgecompile.toolchain.native import (
    BASELINE_MARCH,
    NativeRuntime,
    native_headers_id,
    native_sources,
)

#: What a program wants of the runtime library, which offers each with ``ec_`` before it.
FOREIGN = re.compile(r"^(aoti_torch_|cu[A-Z])")

_SLIM_INCLUDE = '#include "generated/slim_streams.h"'
_SLIM = (
    f"{_SLIM_INCLUDE}\n"
    'extern "C" void ec_cuda_expect_number(int64_t, int64_t);\n'
    'extern "C" bool ec_cuda_rehearses();\n'
    'extern "C" bool ec_cuda_multiply(int64_t, int32_t, int64_t, int64_t, int64_t, const void*, '
    "const void*, const void*, void*);\n"
)
_FLAGS = (
    "-std=c++20",
    "-O1",
    "-ffunction-sections",
    "-w",  # torch's headers warn of how they use CUDA's
    "-DUSE_CUDA",
    "-DTORCH_INDUCTOR_CPP_WRAPPER",
    "-DSTANDALONE_TORCH_HEADER",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",
    "-DCPU_CAPABILITY=DEFAULT",
    "-DCPU_CAPABILITY_DEFAULT",
    "-DSTRIP_ERROR_MESSAGES",
    "-D_GLIBCXX_IOSTREAM=1",
)


def cuda_headers() -> Path:
    """The folder with the few declarations of CUDA that generated code uses; ours, not NVIDIA's."""
    return Path(__file__).with_name("headers")


def build_library(
    toolchain: Toolchain,
    wrapper: str,
    kernels: Sequence[Assembled],
    native: NativeRuntime,
    output: Path,
) -> tuple[BuiltObject, ...]:
    """Compiles and links a program at ``output``.

    Args:
        toolchain: the toolchain for the host's architecture.
        wrapper: Inductor's C++.
        kernels: the kernels that it launches.
        native: the GPU runtime library of the same architecture.
        output: path of the library.

    Raises:
        MissingKernelError: it calls what the runtime lacks.
        CompileError, ToolchainError, DiskFullError.
    """
    march = f"-march={BASELINE_MARCH[toolchain.arch]}"
    interface, model = split_interface(wrapper)
    named = [x for x in interface.splitlines() if x.startswith("#include <torch/csrc/")]
    includes, before = "".join(f"{line}\n" for line in (_SLIM_INCLUDE, *named)), (cuda_headers(),)
    wrapped = [
        compile_object(
            toolchain,
            source,
            name=name,
            flags=(*_FLAGS, march),
            include_dirs=(*before, *torch_include_dirs(), native_sources()),
            headers_id=generated_headers_id(source, before),
            precompiled=includes,
            precompiled_id=generated_headers_id(includes.encode(), before),
        )
        for name, source in (
            ("interface.cpp", (_SLIM + interface).encode()),
            ("wrapper.cpp", (_SLIM + model).encode()),
        )
    ]
    support = compile_object(
        toolchain,
        (native_sources() / "generated" / "support.cpp").read_bytes(),
        name="support.cpp",
        flags=("-std=c++20", "-O1", march),
        include_dirs=(native_sources(),),
        headers_id=native_headers_id(),
    )
    code = compile_object(
        toolchain, assembly(kernels).encode(), name="kernels.s", flags=("-x", "assembler")
    )
    objects = (*wrapped, support, code)
    called = set(filter(FOREIGN.match, called_symbols(toolchain, objects)))
    missing = sorted(name for name in called if f"ec_{name}" not in native.exports)
    if missing:
        raise missing_kernels_error(dict.fromkeys(missing, ()), {})
    output.parent.mkdir(parents=True, exist_ok=True)
    link_renamed(toolchain, objects, called, output, native.path)
    return objects


def assembly(kernels: Sequence[Assembled]) -> str:
    """Assembler's text that puts each kernel's container behind the symbol that the wrapper loads."""
    lines = ['.section .rodata.kernels,"a"']
    for kernel in kernels:
        symbol, data = f"__{kernel.kernel.name}_start", kernel.container()
        lines += [".balign 16", f".globl {symbol}", f".hidden {symbol}", f"{symbol}:"]
        padded = data + bytes(-len(data) % 8)
        for start in range(0, len(padded), 64):
            words = memoryview(padded[start : start + 64]).cast("Q")
            lines.append(".quad " + ",".join(hex(word) for word in words))
    lines.append('.section .note.GNU-stack,"",%progbits')
    return "\n".join(lines) + "\n"
