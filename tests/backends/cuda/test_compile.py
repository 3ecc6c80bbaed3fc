"""Our kernels compile to machine code for the GPUs that are served, without one: Triton's own ptxas does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from edgecompile.backends.cuda.kernels.attention import attention_kernel
from edgecompile.backends.cuda.kernels.grouped import grouped_kernel
from edgecompile.backends.cuda.kernels.recurrence import recurrence_kernel
from edgecompile.backends.cuda.kernels.sorting import rank_kernel

_ATTENTION = {
    "SCALE": 0.125,
    "MASK": 1,
    "MASK_ROWS": True,
    "CAUSAL": False,
    "PLACED": False,
    "WINDOW": 0,
    "SOFTCAP": 0.0,
    "D": 80,
    "DV": 80,
    "BD": 128,
    "BDV": 128,
    "BM": 32,
    "BN": 32,
}
_DECODE = {**_ATTENTION, "MASK": 0, "CAUSAL": True, "PLACED": True, "WINDOW": 64, "SOFTCAP": 30.0}
_LSTM = {"KIND": 0, "REVERSE": True, "BIAS": True, "BH": 64, "BK": 64}


def compiled(
    kernel: Any, pointers: Mapping[str, str], constants: Mapping[str, Any], sm: int
) -> Any:
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=signature, constexprs=values)
    return triton.compile(source, target=GPUTarget("cuda", sm, 32), options={"num_warps": 4})


def half(names: str, **others: str) -> dict[str, str]:
    return {**dict.fromkeys(names, "*fp16"), **others}


@pytest.mark.parametrize(
    "sm",
    [87, 90, pytest.param(80, marks=pytest.mark.slow), pytest.param(89, marks=pytest.mark.slow)],
)
def test_kernels_compile(sm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for kernel, pointers, constants in (
        (attention_kernel, half("QKVY", M="*i1", P="*i64"), _ATTENTION),
        (attention_kernel, half("QMY", K="*fp32", V="*fp32", P="*i64"), _DECODE),
        (rank_kernel, half("XV", P="*i64"), {"DESCENDING": True, "BI": 64, "BJ": 64}),
        (grouped_kernel, half("XWY", E="*i32"), {"BM": 32, "BN": 64, "BK": 32}),
        (recurrence_kernel, half("XWBY", S="*fp32", C="*fp32"), _LSTM),
    ):
        made = compiled(kernel, pointers, constants, sm)
        assert made.asm["cubin"][:4] == b"\x7fELF"
        assert f".target sm_{sm}" in made.asm["ptx"]
        assert made.metadata.shared <= 99 << 10  # what every one of these lets a block have
        if kernel is attention_kernel:
            assert "mma" in made.asm["ptx"]  # tensor cores
