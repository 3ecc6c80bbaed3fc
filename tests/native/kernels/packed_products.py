"""Products with packed weights, and what they are compared with: numpy in float64."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.native.guarded import guarded
from tests.native.kernels.narrow import (
    PANEL,
    RowSteps,
    bf16_bits,
    bf16_values,
    blocks_of,
    column_values,
    half_values,
    pack_bf16,
    pack_int4,
    pack_int8,
    pack_int8_halves,
    quantize_columns,
    quantize_halves,
    quantize_rows,
    quantize_shifted,
)
from tests.native.kernels.test_gemm import GELU_ERF, GELU_TANH, Epilogue, F, check, strided_output

I64 = ctypes.c_int64
PLAIN = ["int8", "int4"]
#: Other forms of their blocks.
FORMS = ["int8-halves", "int4-whole", "int4-zeros", "int4-whole-zeros", "int4-minimums"]
PAIRS = "int8-pairs"  # not a form: of int8, with products that may be added in 16 bits
ROUNDED = [*PLAIN, PAIRS, *FORMS]
NARROW = ["bf16", *ROUNDED]
FORMATS = ["fp32", *NARROW]
COARSE_GELU = 2.0**-14.4  # of whole panels


def pack_fp32(b: np.ndarray) -> np.ndarray:
    """[ceil(N/32)][K][32], filled up with zeros."""
    k, n = b.shape
    panels = -(-n // PANEL)
    whole = np.zeros((k, panels * PANEL), F)
    whole[:, :n] = b
    return np.ascontiguousarray(whole.reshape(k, panels, PANEL).transpose(1, 0, 2))


@dataclass(frozen=True)
class Weights:
    """A matrix as the kernels get it, and the numbers that it stands for ([K, N])."""

    kind: str
    packed: np.ndarray
    values: np.ndarray
    terms: np.ndarray | None = None  # magnitudes of what values are sums of

    @classmethod
    def of(cls, kind: str, b: np.ndarray) -> Weights:
        if kind == "fp32":
            return cls(kind, guarded(pack_fp32(b)), b)
        if kind == "bf16":
            packed, values = pack_bf16(b)
            return cls(kind, guarded(packed), values)
        size = 64 if "whole" in kind else 32
        if kind == "int8-halves":
            q, scales = quantize_halves(b, size, 128)
            wide = scales.astype(F)
            return cls(kind, guarded(pack_int8_halves(q, wide)), half_values(q, wide))
        if kind in ("int4", "int4-whole"):
            q, scales = quantize_halves(b, size)
            return cls(kind, guarded(pack_int4(q, scales, size=size)), half_values(q, scales, size))
        if kind.startswith("int4"):
            zeros = "zeros" in kind
            q, scales, shifts, values = quantize_shifted(b, size, zeros=zeros)
            shift = {"zeros" if zeros else "minimums": shifts}
            packed = pack_int4(q, scales, **shift, size=size)
            least = 0 if zeros else np.repeat(shifts.astype(np.float64), size, 0)[: len(b)]
            return cls(kind, guarded(packed), values, abs(values - least) + abs(least))
        q, scales = quantize_columns(b)
        return cls(kind, guarded(pack_int8(q, scales)), column_values(q, scales))


def run(lib: ctypes.CDLL, w: Weights, a: np.ndarray, c: np.ndarray, e: Epilogue) -> None:
    (m, k), n = a.shape, w.values.shape[1]
    panel = [I64(w.packed.size // max(1, -(-n // PANEL)))] if w.kind in ROUNDED else []
    getattr(lib, f"t_gemm_{_native_name(w.kind)}")(
        I64(m), I64(n), I64(k), ctypes.c_void_p(a.ctypes.data), I64(a.strides[0] // 4),
        ctypes.c_void_p(w.packed.ctypes.data), *panel, ctypes.c_void_p(c.ctypes.data),
        I64(c.strides[0] // 4), ctypes.byref(e.native()),
    )  # fmt: skip


def _native_name(kind: str) -> str:
    if kind == PAIRS:
        return "int8_pairs"
    return "packed" if kind == "fp32" else kind.partition("-")[0]


def verify(lib: ctypes.CDLL, w: Weights, c: np.ndarray, a: np.ndarray, e: Epilogue, what: str):
    """bf16: float32's sums, on some CPUs of rounded rows. int8 and int4: exact sums of rounded blocks, added up."""
    coarse: Any = COARSE_GELU if e.act in (GELU_ERF, GELU_TANH) else 0.0
    if w.kind in ROUNDED:
        roundings = 8 + 2 * len(blocks_of(a, 64 if w.kind in ("int8", PAIRS) else 32))
        rows = quantize_rows(a, row_steps(lib, w.kind))
        if w.terms is not None:
            coarse += 2 * roundings * 2.0**-24 * abs(e.alpha) * (abs(rows) @ w.terms)
        check(c, rows, w.values, e, what, roundings * 2.0**-24, coarse)
    elif w.kind == "fp32":
        check(c, a, w.values, e, what)
    else:
        lib.t_bf16_rounds_a.restype = ctypes.c_bool
        if lib.t_bf16_rounds_a():
            a = bf16_values(bf16_bits(a))
        check(c, a, w.values, e, what, None, coarse)


def row_steps(lib: ctypes.CDLL, kind: str) -> RowSteps:
    return RowSteps(getattr(lib, f"t_{_native_name(kind)}_row_steps")())


def product(lib: ctypes.CDLL, w: Weights, a: np.ndarray, e: Epilogue | None = None) -> np.ndarray:
    c, _ = strided_output((a.shape[0], w.values.shape[1]), w.values.shape[1], True)
    run(lib, w, a, c, e or Epilogue())
    return c
