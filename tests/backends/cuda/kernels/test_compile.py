"""Our kernels compile to machine code for the GPUs that are served, without one: Triton's own ptxas does it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from edgecompile.backends.cuda.kernels.attention import attention_kernel
from edgecompile.backends.cuda.kernels.boxes import align_kernel, suppression_kernel
from edgecompile.backends.cuda.kernels.convolution import convolution_kernel, depthwise_kernel
from edgecompile.backends.cuda.kernels.grouped import grouped_kernel
from edgecompile.backends.cuda.kernels.recurrence import recurrence_kernel
from edgecompile.backends.cuda.kernels.rows import row_kernel
from edgecompile.backends.cuda.kernels.sorting import rank_kernel

_ATTENTION = {
    "SCALE": 0.125,
    "MASK": 1,
    "MASK_ROWS": True,
    "CAUSAL": False,
    "PLACED": False,
    "WINDOW": 0,
    "SOFTCAP": 0.0,
    "WIDE": False,
    "D": 80,
    "DV": 80,
    "BD": 128,
    "BDV": 128,
    "BM": 32,
    "BN": 32,
}
_DECODE = {**_ATTENTION, "MASK": 0, "CAUSAL": True, "PLACED": True, "WINDOW": 64, "SOFTCAP": 30.0}
_FLAT = {
    **{"C": 64, "N": 64, "KH": 3, "KL": 3, "SH": 1, "SL": 1, "PH": 1, "PL": 1, "DH": 1, "DL": 1},
    **{"BIAS": True, "RESIDUAL": True, "ACTIVATION": 1, "WIDE": False, "BM": 64, "BN": 64},
}
_CONVOLUTION = {**_FLAT, "GROUPS": 1, "SPLIT": False, "BK": 64}
_SUPPRESSION = {"B": "*fp32", "G": "*i64", "T": "*fp64", "K": "*i8"}
_LSTM = {"KIND": 0, "REVERSE": True, "BIAS": True, "BH": 64, "BK": 64}


def compiled(
    kernel: Any, pointers: Mapping[str, str], constants: Mapping[str, Any], sm: int
) -> Any:
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    # Buffers begin at multiples of 256 bytes.
    aligned: Any = {(names.index(n),): [["tt.divisibility", 16]] for n in pointers if n in names}
    source = ASTSource(kernel, signature=signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", sm, 32), options={"num_warps": 4})


def half(names: str, **others: str) -> dict[str, str]:
    return {**dict.fromkeys(names, "*fp16"), **others}


@pytest.mark.parametrize(
    "sm",
    [87, *(pytest.param(sm, marks=pytest.mark.slow) for sm in (80, 89, 90))],
)
def test_kernels_compile(sm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for kernel, pointers, constants in (
        (attention_kernel, half("QKVY", M="*i1", P="*i64"), _ATTENTION),
        (attention_kernel, half("QMY", K="*fp32", V="*fp32", P="*i64"), _DECODE),
        (attention_kernel, half("QKVY", M="*i1", P="*i64"), {**_ATTENTION, "WIDE": True}),
        (convolution_kernel, half("XWBRY"), {**_CONVOLUTION, "WIDE": True}),
        (depthwise_kernel, half("XWBRY"), {**_FLAT, "BM": 32, "WIDE": True}),
        (rank_kernel, half("XV", P="*i64"), {"DESCENDING": True, "BI": 64, "BJ": 64}),
        (grouped_kernel, half("XWY", E="*i32"), {"BM": 32, "BN": 64, "BK": 32}),
        (convolution_kernel, half("XWBRY"), _CONVOLUTION),
        (depthwise_kernel, half("XWBRY"), {**_FLAT, "BM": 32}),
        (row_kernel, half("X", W="*i8", S="*fp32", Y="*fp32"), {"BK": 64, "BN": 64}),
        (suppression_kernel, _SUPPRESSION, {"GROUPED": True, "BLOCK": 1024}),
        (
            align_kernel,
            half("XY", B="*fp32", S="*fp32"),
            {"SAMPLES": 0, "ALIGNED": True, "BC": 128},
        ),
        (recurrence_kernel, half("XWBY", S="*fp32", C="*fp32"), _LSTM),
    ):
        made = compiled(kernel, pointers, constants, sm)
        assert made.asm["cubin"][:4] == b"\x7fELF"
        assert f".target sm_{sm}" in made.asm["ptx"]
        assert made.metadata.shared <= 99 << 10  # what every one of these lets a block have
        if kernel in (suppression_kernel, align_kernel):
            # A quotient decides what is hidden, and the number of samples.
            assert "div.rn.f32" in made.asm["ptx"] and "div.full" not in made.asm["ptx"]
        if kernel in (attention_kernel, convolution_kernel):
            assert "mma" in made.asm["ptx"]  # tensor cores
        if kernel is convolution_kernel:
            # Rows of the image and of the weight come 16 bytes at a time, past the registers.
            assert set(re.findall(r"cp\.async\.[^;]*?\], (0x\w+)", made.asm["ptx"])) == {"0x10"}
