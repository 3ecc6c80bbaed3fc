"""The backend ``torch``: AOTInductor's C++ with torch's own kernels, for hosts that have torch.

The program is compiled as for our runtime, but the graph stays as it was exported, and what the code
calls (torch's C interface, OpenMP, Sleef) is bound to the libtorch_cpu that torch has loaded in the
process that opens it: one entry of DT_NEEDED, found by its name and on no path. To link it nothing
but names is needed, so it's built for other architectures as well.
"""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Sequence
from pathlib import Path

from torch.fx import GraphModule

import edgecompile
from edgecompile.backends import LIBTORCH
from edgecompile.backends.cpu.backend import (
    FOREIGN,
    InductorCpuBackend,
    called_symbols,
    link_renamed,
)
from edgecompile.backends.inductor.compat.generation import GeneratedCpp
from edgecompile.backends.torch.calls import list_calls
from edgecompile.errors import CompileError
from edgecompile.precision import Precision
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.format.manifest.schema import TORCH
from edgecompile.toolchain.compilers import (
    BuiltObject,
    Toolchain,
    compile_object,
    dynamic_symbols,
    link_shared,
)
from edgecompile.toolchain.native import NativeRuntime, native_headers_id, native_sources

#: What support.cpp does instead of torch.
_OWN = ("aoti_torch_check", "aoti_torch_proxy_executor_call_function")
#: Longest piece of a string literal that every compiler takes.
_PIECE = 4096


def torch_sources() -> Path:
    """The folder with the objects that are linked into every program."""
    return Path(next(iter(edgecompile.__path__))) / "torch_runtime" / "native"


def foreign_symbols(library: Path) -> frozenset[str]:
    """The symbols that a program calls in torch and in the libraries that torch brings along."""
    return frozenset(filter(FOREIGN.match, dynamic_symbols(library, defined=False)))


class InductorTorchBackend(InductorCpuBackend):
    """Compiles exported programs to shared libraries that need torch's."""

    def lower(self, module: GraphModule, precision: Precision, padded: bool) -> dict[str, object]:
        """Leaves the graph as it is: its kernels are torch's."""
        return {"runtime": TORCH}

    def support(self, generated: GeneratedCpp) -> bytes:
        """C++ that every program needs beside its own code, and its list of operators."""
        text = list_calls(generated.calls)
        pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
        literal = "\n".join(json.dumps(piece) for piece in pieces)
        return b"\n".join(
            (
                b'#include "base/find_object.h"',
                (torch_sources() / "support.cpp").read_bytes(),
                b'extern "C" __attribute__((visibility("default"))) const char ec_torch_calls[] =',
                f"{literal};\n".encode(),
            )
        )

    def link(
        self,
        toolchain: Toolchain,
        objects: Sequence[BuiltObject],
        native: NativeRuntime | None,
        output: Path,
    ) -> None:
        """Links against a stand-in of libtorch_cpu that has the names of what is called.

        Raises:
            CompileError: torch here lacks some of it.
        """
        called = set(filter(FOREIGN.match, called_symbols(toolchain, objects))) - {*_OWN}
        if architecture(platform.machine()) == toolchain.arch:
            _require(called)
        stub = output.with_name(f"{output.name}.{LIBTORCH}")
        try:
            _link_stub(toolchain, called, stub)
            exports = ("AOTInductor*", "ec_torch_calls")
            link_renamed(toolchain, objects, _OWN, output, stub, exports)
        finally:
            stub.unlink(missing_ok=True)


def _require(called: set[str]) -> None:
    library = ctypes.CDLL(LIBTORCH)  # loaded already: this finds it by its name
    missing = sorted(name for name in called if not hasattr(library, name))
    if missing:
        raise CompileError(
            f"the generated code calls what torch here doesn't have: {', '.join(missing)}",
            hint="this is a defect of torch's code generator, or of how it was built",
        )


def _link_stub(toolchain: Toolchain, names: set[str], output: Path) -> None:
    source = "#pragma GCC visibility push(default)\n"
    source += "".join(f"void {name}(void) {{}}\n" for name in sorted(names))
    built = compile_object(
        toolchain,
        source.encode(),
        name="libtorch.c",
        # Some are the compiler's own functions, which it knows with other arguments.
        flags=("-x", "c", "-std=c11", "-O1", "-fno-builtin", "-w"),
        headers_id=native_headers_id(),
        include_dirs=(native_sources(),),
    )
    link_shared(toolchain, [built.path], output, exports=["*"], soname=LIBTORCH)
