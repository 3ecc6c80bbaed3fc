"""Weights in fewer bits, packed by numpy as the kernels read them."""

from __future__ import annotations

import numpy as np

PANEL = 32


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """uint16 bits of the nearest bfloat16 (ties to even) of finite numbers."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def panels(b: np.ndarray, depth: int) -> np.ndarray:
    """``[K, N]`` as ``[ceil(N/32), ceil(K/depth), 32, depth]``, zeros beyond K and N."""
    k, n = b.shape
    groups, count = -(-k // depth), -(-n // PANEL)
    padded = np.zeros((groups * depth, count * PANEL), b.dtype)
    padded[:k, :n] = b
    split = padded.reshape(groups, depth, count, PANEL)
    return np.ascontiguousarray(split.transpose(2, 0, 3, 1))


def pack_bf16(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The packed uint16 and the float32 matrix that they stand for."""
    bits = bf16_bits(b)
    return panels(bits, 2), bf16_values(bits)


def pack_int8(q: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """``q [K, N]`` int8 and ``scales [N]`` as ``[panels, ceil(K/4)·128 + 256]`` int8."""
    values = panels(q, 4)
    count = values.shape[0]
    tail = np.zeros((2, count * PANEL), np.int32)
    tail[0, : q.shape[1]] = scales.astype(np.float32).view(np.int32)
    tail[1, : q.shape[1]] = q.sum(0, dtype=np.int32)
    tails = np.ascontiguousarray(tail.reshape(2, count, PANEL).transpose(1, 0, 2))
    rows = values.shape[1] * values.shape[2] * values.shape[3]
    return np.concatenate(
        [values.reshape(count, rows), tails.view(np.int8).reshape(count, 8 * PANEL)], axis=1
    )


def quantize_columns(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 and a float32 scale for each column of ``[K, N]``."""
    most = np.abs(b).max(0, initial=0).astype(np.float32)
    scales = (most / np.float32(127)).astype(np.float32)
    q = np.rint(b / np.where(scales > 0, scales, 1)).astype(np.int8)
    return q, scales


def row_limit(k: int) -> int:
    """2^A - 1 for the largest A <= 13 with K·127·2^A < 2^31."""
    return max((1 << a) - 1 for a in range(1, 14) if a == 1 or k * 127 << a < 1 << 31)


def quantize_rows(a: np.ndarray) -> np.ndarray:
    """The float64 values that int8 kernels take rows of activations for."""
    limit = np.float32(row_limit(a.shape[1]))
    most = np.abs(a).max(1, initial=0, keepdims=True).astype(np.float32)
    with np.errstate(all="ignore"):
        factor = np.where(most > 0, limit / most, np.float32(0))
        scale = most / limit
        q = np.rint(a * factor)
    return q.astype(np.float64) * scale
