"""The C++ that Inductor generates: found, divided and read."""

from __future__ import annotations

import re
from pathlib import Path

from edgecompile.errors import CompileError

__all__ = ["computes_in_vectors", "split_source"]


#: The line that Inductor writes before each generated kernel. Everything before the first one is
#: the model's wrapper (tensor handles, calls); everything after it is kernels alone.
_KERNEL_MARKER = "#include <torch/csrc/inductor/cpp_prefix.h>"

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
            hint="this version of torch isn't supported; use torch 2.13",
        )
    return head.rstrip() + "\n", mark_reductions(marker + tail)


#: The region in which threads sum up shares of their own, which are added behind it.
_REDUCTION = re.compile(r"(omp_get_max_threads\(\);[^#]*#pragma omp parallel)\n")


def mark_reductions(kernels: str) -> str:
    """Names to the runtime, by a clause that means nothing elsewhere, where threads sum up shares.

    It makes as many shares then as threads are set, however few are free (``native/threads/openmp.cpp``):
    results don't depend on what else is computed at the time.
    """
    return _REDUCTION.sub(r"\1 proc_bind(close)\n", kernels)


_KERNEL = re.compile(r'^extern "C"', re.MULTILINE)
_VECTOR = re.compile(r"\bauto (tmp\d+) = at::vec::Vectorized<float>|\b(tmp_acc\w*_vec)\b")


def computes_in_vectors(kernels: str) -> bool:
    """Whether generated kernels calculate with vectors of floats.

    False for a model of linear layers and table look-ups alone, whose kernels (if there are any)
    only copy: nothing can be said then about how they were compiled.
    """
    for kernel in _KERNEL.split(kernels):
        names = {name for pair in _VECTOR.findall(kernel) for name in pair if name}
        if not names:
            continue
        operand = "|".join(sorted(names))
        if re.search(rf"= (?:(?:{operand}) [-+*/] \w|\w+ [-+*/] (?:{operand})\b)", kernel):
            return True
    return False


def only_file(paths: list[Path], suffix: str) -> Path:
    found = [p for p in paths if p.name.endswith(suffix)]
    if len(found) != 1:
        raise CompileError(
            f"Inductor wrote {len(found)} files ending in {suffix}, expected one",
            hint="this version of torch isn't supported; use torch 2.13",
        )
    return found[0]
