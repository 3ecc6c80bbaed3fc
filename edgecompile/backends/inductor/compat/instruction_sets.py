"""The vector instruction set that Inductor generates code for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest.mock import patch

import torch._inductor.cpu_vec_isa as cpu_vec_isa

from edgecompile.errors import CompileError


def vector_isa(arch: str, simdlen: int) -> cpu_vec_isa.VecISA:
    """Inductor's vector ISA class for an architecture and a vector width in bits.

    For SSE (x86-64, 128 bits), which Inductor has no vector code for, the class that stands for
    scalar code: it is false.

    Raises:
        CompileError: Inductor has no such instruction set.
    """
    table: dict[tuple[str, int], type[cpu_vec_isa.VecISA]] = {
        ("x86-64", 128): cpu_vec_isa.InvalidVecISA,
        ("x86-64", 256): cpu_vec_isa.VecAVX2,
        ("x86-64", 512): cpu_vec_isa.VecAVX512,
        ("aarch64", 128): cpu_vec_isa.VecNEON,
    }
    if (arch, simdlen) not in table:
        raise CompileError(
            f"torch's Inductor has no {simdlen}-bit vector code for {arch}",
            hint="use a variant with one of: " + ", ".join(f"{a} {b} bit" for a, b in table),
        )
    return table[arch, simdlen]()


def forced_isa(isa: cpu_vec_isa.VecISA) -> AbstractContextManager[None]:
    """Makes ``isa`` the only instruction set that Inductor sees; none, if it's false.

    Inductor otherwise offers what the build host's CPU has, so AVX-512 or NEON code could not be
    generated elsewhere. The function is looked up at each call, hence patched and restored.
    """
    visible = [] if isinstance(isa, cpu_vec_isa.InvalidVecISA) else [isa]
    return patch.multiple(cpu_vec_isa, valid_vec_isa_list=lambda: visible)


def unprobed_isa() -> AbstractContextManager[None]:
    """Keeps Inductor from compiling and loading a test of AVX-512's bfloat16 where the build host's CPU has that.

    Only its own matmuls ask for the result, and the programs have none of these.
    """
    return patch.multiple(cpu_vec_isa.VecAVX512, __bool__=cpu_vec_isa.VecISA.__bool__)
