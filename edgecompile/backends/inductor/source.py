"""The C++ that Inductor generates: found, divided and read for what it calls from outside.

Inductor writes above each such call which nodes of the graph it stands for, so every call leads back
to the model's modules and lines.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from edgecompile.errors import CompileError
from edgecompile.toolchain.native import runtime_sources
from edgecompile.toolchain.torch_versions import USE_TESTED

#: Characters that a command line which shlex splits can't hold as they are.
_TO_BE_QUOTED = re.compile(r"""[\s'"\\]""")

#: The line that Inductor writes before each generated kernel. Everything before the first one is
#: the model's wrapper (tensor handles, calls); everything after it is kernels alone.
_KERNEL_MARKER = "#include <torch/csrc/inductor/cpp_prefix.h>"

#: What kernels begin with: Inductor's types, the sums that we make of some (inductor/compat/sums.py), and functions of
#: single numbers.
KERNEL_INCLUDES = (
    f'{_KERNEL_MARKER}\n#include "generated/sums.h"\n#include "generated/one_lane.h"\n'
)

#: Inductor appends its own compile commands, with this machine's paths, as comments.
_TRAILER_MARKER = "// Compile cmd"


def split_source(source: str) -> tuple[str, str]:
    """Splits Inductor's single file into the wrapper and the kernels.

    The two are compiled with different flags: kernels are hot and small, the wrapper is cold and
    full of templates.

    Raises:
        CompileError: the file isn't laid out as this version of torch is known to write it.
    """
    source = source.split(_TRAILER_MARKER)[0].rstrip() + "\n"
    head, marker, tail = source.partition(_KERNEL_MARKER)
    if not marker:
        return source, ""
    if "AOTInductorModel" in tail:
        raise CompileError(
            "Inductor's generated file has model code after its kernels",
            hint=USE_TESTED,
        )
    return head.rstrip() + "\n", KERNEL_INCLUDES + take_lanes(mark_reductions(tail))


#: Calls for single numbers of which vectors have their own.
_SINGLE = re.compile(r"\bstd::(cos|sin|exp|log|log1p|tanh|erf|atan)\(")


def take_lanes(kernels: str) -> str:
    """Lets functions of single numbers be those of vectors, a lane of them (``native/generated/one_lane.h``)."""
    return _SINGLE.sub(r"ec::one_\1(", kernels)


#: Where the C interface begins that Inductor copies before each model, and the last of its functions.
_INTERFACE = "static thread_local std::string g_aoti_last_error;"
_LAST_FUNCTION = "AOTIRuntimeError AOTInductorGetLastError("
_INTERFACE_END = '\n} // extern "C"\n'


def split_interface(wrapper: str) -> tuple[str, str]:
    """Splits a wrapper into the C interface of AOTInductor's container and the model, each with the headers.

    The first is the same for every model and takes the compiler longer than most models do: it is compiled
    once for all programs.

    Raises:
        CompileError: the wrapper isn't laid out as this version of torch is known to write it.
    """
    headers, begin, rest = wrapper.partition(_INTERFACE)
    functions, last, rest = rest.partition(_LAST_FUNCTION)
    body, end, model = rest.partition(_INTERFACE_END)
    if not (begin and last and end):
        raise CompileError(
            "Inductor's generated file doesn't begin with the C interface of its container",
            hint=USE_TESTED,
        )
    return headers + begin + functions + last + body + end, headers + model


#: The region in which threads sum up shares of their own, which are added behind it.
_REDUCTION = re.compile(r"(omp_get_max_threads\(\);[^#]*#pragma omp parallel)\n")


def mark_reductions(kernels: str) -> str:
    """Names to the runtime, by a clause that means nothing elsewhere, where threads sum up shares.

    It makes as many shares then as threads are set, however few are free (``native/threads/openmp.cpp``):
    results don't depend on what else is computed at the time.
    """
    return _REDUCTION.sub(r"\1 proc_bind(close)\n", kernels)


def sum_serially(kernels: str) -> str:
    """Lets one thread sum up what ``mark_reductions`` marks: sums depend on no number of threads then."""
    return kernels.replace("parallel proc_bind(close)\n", "parallel num_threads(1)\n")


_KERNEL = re.compile(r'^extern "C"', re.MULTILINE)
#: Each loop's values are numbered from 0: a name that stands for floats in one may stand for whole numbers in another.
_BODY = re.compile(r"(?=\bauto tmp0 =)")
_VECTOR = re.compile(r"\bauto (tmp\d+) = at::vec::Vectorized<float>|\b(tmp_acc\w*_vec)\b")
#: Sums of whole numbers look like those of floats.
_WHOLE = re.compile(r"Vectorized(?:N)?<u?int[^;]*?> (tmp_acc\w*_vec)\b")

_ONE = re.compile(
    r"auto (tmp\d+) = static_cast<float>\(1\.0\);\s+auto (tmp\d+) = at::vec::Vectorized<float>\(\1\);"
)


def computes_in_vectors(kernels: str) -> bool:
    """Whether generated kernels calculate with vectors of floats.

    False for a model of linear layers and table look-ups alone, whose kernels (if there are any)
    only copy: nothing can be said then about how they were compiled. Times 1 is a copy, too.
    """
    for kernel in _KERNEL.split(kernels):
        whole = set(_WHOLE.findall(kernel))
        for body in _BODY.split(kernel):
            if ones := "|".join({one[2] for one in _ONE.finditer(body)}):
                body = re.sub(rf"\w+ [*/] (?:{ones})\b|\b(?:{ones}) \* \w+", "", body)
            names = {name for pair in _VECTOR.findall(body) for name in pair if name} - whole
            operand = "|".join(sorted(names))
            if names and re.search(
                rf"= (?:(?:{operand}) [-+*/] \w|\w+ [-+*/] (?:{operand})\b)", body
            ):
                return True
    return False


def only_file(paths: list[Path], suffix: str) -> Path:
    """The file whose name ends so; raises CompileError unless there is exactly one."""
    matches = [p for p in paths if p.name.endswith(suffix)]
    if len(matches) != 1:
        raise CompileError(
            f"Inductor wrote {len(matches)} files ending in {suffix}, expected one",
            hint=USE_TESTED,
        )
    return matches[0]


#: What operators without a C interface in AOTInductor are called through.
PROXY = "aoti_torch_proxy_executor_call_function"

_PREFIX = "aoti_torch_cpu_"
_GPU_PREFIX = "aoti_torch_cuda_"
#: Inductor writes such a line before each call: nodes of the graph and, where it knows them, operators.
_COMMENT = re.compile(
    r"// Topologically Sorted Source Nodes: \[(.*?)\](?:, Original ATen: \[(.*?)\])?"
)
_CALL = re.compile(rf"\b((?:{_PREFIX}|{_GPU_PREFIX})\w+|{PROXY})\(")
_DEFINED = re.compile(rf"^EC_API int32_t ec_({_PREFIX}\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class ExternCall:
    """One call.

    Attributes:
        symbol: the C function.
        nodes: names of the graph's nodes that it stands for, the operator itself last.
        operators: their operators, such as ``aten.addmm``.
    """

    symbol: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function without its prefix; an operator's name for what has no C interface."""
        if self.symbol != PROXY:
            return self.symbol.removeprefix(_PREFIX).removeprefix(_GPU_PREFIX)
        # What only checks its inputs has no operator's name, but it stands for a node.
        return [*self.nodes, *self.operators][-1] if self.nodes or self.operators else "an operator"

    @property
    def native(self) -> bool:
        """Whether the native runtime has it."""
        return self.symbol in runtime_kernels()


def extern_calls(wrapper: str) -> Iterator[ExternCall]:
    """The calls in AOTInductor's C++ of a model that compute something, in their order.

    These are kernels, and operators without a C interface. A call that only checks the result of a
    missing one, as torch's does after an inverse, is left out.
    """
    nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    lacking: set[str] = set()  # nodes whose operators the runtime lacks
    for line in wrapper.splitlines():
        comment = _COMMENT.search(line)
        if comment is not None:
            nodes, operators = _listed(comment[1]), _listed(comment[2] or "")
            continue
        code = line.partition("//")[0]
        if "extern " in code or code.lstrip().startswith("AOTITorchError "):
            continue  # a declaration
        for symbol in _CALL.findall(code):
            call = ExternCall(symbol, nodes, operators)
            if not call.native:
                if nodes and not operators and lacking.issuperset(nodes):
                    continue
                lacking.update(nodes[-1:])
            yield call


@cache
def runtime_kernels() -> frozenset[str]:
    """The kernels for generated code that the native runtime's sources define."""
    texts = [path.read_text(encoding="utf-8") for path in runtime_sources().values()]
    return frozenset(name for text in texts for name in _DEFINED.findall(text))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder whose path torch's compiler commands can hold: they don't quote it.

    Raises:
        CompileError: every folder for temporary files has a path with spaces or quotes.
    """
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if not _TO_BE_QUOTED.search(parent) and os.access(parent, os.W_OK | os.X_OK):
            return tempfile.TemporaryDirectory(prefix="edgecompile-", dir=parent)
    raise CompileError(
        f"torch's compiler commands can't hold the path {tempfile.gettempdir()}: it has spaces or quotes",
        hint="set TMPDIR to a folder without them",
    )


def name_by_content(
    wrapper: str, constants: Mapping[str, Tensor], shared: Container[str]
) -> tuple[str, dict[str, Tensor]]:
    """Renames the constants that aren't shared among programs, in the code and in the mapping."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in constants.items():
        if name in shared:
            renamed[name] = tensor
            continue
        flat = tensor.detach().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        text = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
        fresh = f"{name}.{hashlib.sha256(text + content).hexdigest()[:12]}"
        old = f'.original_fqn = "{name}"'
        if wrapper.count(old) != 1:
            raise CompileError(
                f"the generated code names the constant {name} {wrapper.count(old)} times",
                hint=USE_TESTED,
            )
        wrapper = wrapper.replace(old, f'.original_fqn = "{fresh}"')
        renamed[fresh] = tensor
    return wrapper, renamed
