"""Weights in fewer bits, packed by numpy as the kernels read them."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

PANEL = 32
BLOCK = 64  # inputs that share a scale
HALF = 32  # of int4's weights
OUTLIER = 12.0


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


def blocks_of(x: np.ndarray, size: int = BLOCK) -> list[slice]:
    """Slices of the last axis's blocks."""
    return [slice(i, min(i + size, x.shape[-1])) for i in range(0, x.shape[-1], size)]


def pack_int8(q: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """``q [K, N]`` int8 and ``scales [ceil(K/64), N]`` as ``[panels, bytes]`` int8."""
    n = q.shape[1]
    count = -(-n // PANEL)
    parts = [np.zeros((count, 0), np.int8)]
    for block, scale in zip(blocks_of(q.T), scales, strict=True):
        values = panels(q[block], 4)
        padded = np.zeros(count * PANEL, np.float32)
        padded[:n] = scale
        size = values.shape[1] * PANEL * 4
        parts += [values.reshape(count, size), padded.reshape(count, PANEL).view(np.int8)]
    return np.concatenate(parts, axis=1)


def quantize_columns(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 and float32 scales for each block and column of ``[K, N]``."""
    q = np.zeros(b.shape, np.int8)
    scales = np.zeros((len(blocks_of(b.T)), b.shape[1]), np.float32)
    for i, block in enumerate(blocks_of(b.T)):
        scales[i] = np.abs(b[block]).max(0, initial=0).astype(np.float32) / np.float32(127)
        q[block] = np.rint(b[block] / np.where(scales[i] > 0, scales[i], 1))
    return q, scales


def column_values(q: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The float64 matrix that they stand for."""
    return q * np.repeat(scales.astype(np.float64), BLOCK, 0)[: len(q)]


def pack_int4(
    q: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    minimums: np.ndarray | None = None,
    size: int = HALF,
) -> np.ndarray:
    """int4 as ``[panels, bytes]`` uint8.

    Args:
        q: ``[K, N]`` in [-8, 7], or with zeros or minimums in [0, 15].
        scales: float16 ``[ceil(K/size), N]``.
        zeros, minimums: none, or uint8 or float16 shaped as the scales.
        size: inputs that share a scale, 32 or 64.
    """
    k, n = q.shape
    count, blocks = -(-n // PANEL), -(-k // BLOCK)
    each = BLOCK // size
    padded = np.full((blocks * BLOCK, count * PANEL), 8, np.uint8)
    padded[:k, :n] = q + 8 if zeros is None and minimums is None else q

    def of_block(block: int, numbers: np.ndarray) -> np.ndarray:
        wide = np.zeros((each, count * PANEL), numbers.dtype)
        own = numbers[each * block : each * (block + 1)]
        wide[: len(own), :n] = own
        parts = np.ascontiguousarray(wide.reshape(each, count, PANEL).transpose(1, 0, 2))
        return parts.reshape(count, each * PANEL).view(np.uint8)

    parts = [np.zeros((count, 0), np.uint8)]
    for block in range(blocks):
        columns = padded[block * BLOCK :][:BLOCK]
        low, high = panels(columns[:HALF], 4), panels(columns[HALF:], 4)
        parts += [(low | high << 4).reshape(count, HALF * PANEL)]
        parts += [of_block(block, x) for x in (scales, zeros, minimums) if x is not None]
    return np.concatenate(parts, axis=1)


def pack_int8_halves(q: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """``q [K, N]`` int8 and float32 ``scales [ceil(K/32), N]`` as ``[panels, bytes]`` int8."""
    k, n = q.shape
    count, blocks = -(-n // PANEL), -(-k // BLOCK)
    padded = np.zeros((blocks * BLOCK, n), np.int8)
    padded[:k] = q
    wide = np.zeros((2 * blocks, count * PANEL), np.float32)
    wide[: len(scales), :n] = scales
    parts = [np.zeros((count, 0), np.int8)]
    for block in range(blocks):
        own = wide[2 * block : 2 * block + 2].reshape(2, count, PANEL).transpose(1, 0, 2)
        parts += [panels(padded[block * BLOCK :][:BLOCK], 4).reshape(count, BLOCK * PANEL)]
        parts += [np.ascontiguousarray(own).reshape(count, 2 * PANEL).view(np.int8)]
    return np.concatenate(parts, axis=1)


def quantize_halves(
    b: np.ndarray, size: int = HALF, most: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """int4 in [-8, 7] and float16 scales for each 32 rows and column of ``[K, N]``; ``most`` 128: int8 likewise."""
    q = np.zeros(b.shape, np.int8)
    scales = np.zeros((len(blocks_of(b.T, size)), b.shape[1]), np.float16)
    for i, block in enumerate(blocks_of(b.T, size)):
        part = b[block].astype(np.float64)
        scales[i] = np.maximum(part.max(0) / (most - 1), part.min(0) / -most)
        steps = scales[i].astype(np.float64)
        q[block] = np.clip(np.rint(part / np.where(steps > 0, steps, 1)), -most, most - 1)
    return q, scales


def half_values(q: np.ndarray, scales: np.ndarray, size: int = HALF) -> np.ndarray:
    """The float64 matrix that they stand for."""
    return q * np.repeat(scales.astype(np.float64), size, 0)[: len(q)]


def quantize_shifted(
    b: np.ndarray, size: int, *, zeros: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values of 0 to 15, float16 scales, and zeros or minimums of each block; then what they stand for."""
    q = np.zeros(b.shape, np.uint8)
    shape = (len(blocks_of(b.T, size)), b.shape[1])
    scales, shifts = np.zeros(shape, np.float16), np.zeros(shape, np.uint8 if zeros else np.float16)
    values = np.zeros(b.shape)
    for i, block in enumerate(blocks_of(b.T, size)):
        part = b[block].astype(np.float64)
        least = np.minimum(part.min(0), 0) if zeros else part.min(0)
        scales[i] = (np.maximum(part.max(0), 0 if zeros else -np.inf) - least) / 15
        steps = np.where(scales[i] > 0, scales[i].astype(np.float64), 1)
        shifts[i] = np.clip(np.rint(-least / steps), 0, 16) if zeros else least
        shift, own = shifts[i].astype(np.float64), scales[i].astype(np.float64)
        q[block] = np.clip(
            np.rint(part / steps + shift if zeros else (part - shift) / steps), 0, 15
        )
        values[block] = own * (q[block] - shift) if zeros else own * q[block] + shift
    return q, scales, shifts, values


class RowSteps(IntEnum):
    """How rows of activations are rounded, as gemm_narrow.h says."""

    FINE = 0
    COARSE = 1
    SUMS = 2


def largest_sums(block: np.ndarray) -> np.ndarray:
    """Of each row the largest sum of magnitudes of one sign among four values that meet in 16 bits."""
    padded = np.zeros((len(block), BLOCK), np.float32)
    padded[:, : block.shape[1]] = block * np.float32(0.25)  # four may be infinite
    halves = padded.reshape(-1, 2, 2, 8, 2)  # two groups of four, 16 values apart
    sums = [
        (one[:, :, 0] + one[:, :, 1]).sum(-1).max((1, 2), initial=0)
        for one in (np.maximum(halves, 0), np.maximum(-halves, 0))
    ]
    return np.maximum(*sums)[:, None]


def quantize_rows(a: np.ndarray, steps: RowSteps) -> np.ndarray:
    """The float64 values that int8 and int4 kernels take rows of activations for."""
    wide = a.astype(np.float64)
    by_sums = steps is RowSteps.SUMS
    coarse, second = (31, 64) if by_sums else (127, 128)  # of quarters
    result = np.empty_like(wide)
    with np.errstate(all="ignore"):
        mean_square = (wide * wide).mean(1, keepdims=True) if a.shape[1] else np.zeros((len(a), 1))
        for block in blocks_of(a):
            most = np.abs(a[:, block]).max(1, initial=0, keepdims=True).astype(np.float32)
            fine = most.astype(np.float64) ** 2 > OUTLIER**2 * mean_square
            fine |= steps is RowSteps.FINE
            limit = np.where(fine, coarse * second, coarse).astype(np.float32)
            if by_sums:
                most = largest_sums(a[:, block])
            factor = np.where(most > 0, limit / most, np.float32(0))
            result[:, block] = np.rint(a[:, block] * factor).astype(np.float64) * (most / limit)
    result[~np.isfinite(a).all(1)] = np.nan
    return result
