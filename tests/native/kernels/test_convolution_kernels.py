"""The convolution kernels of every variant against numpy in float64, at the edges of memory."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from tests.native.guarded import guarded
from tests.native.kernels.test_gemm import (
    HARDSIGMOID,
    HARDSWISH,
    RELU,
    RELU6,
    SILU,
    Epilogue,
    activate,
)
from tests.native.kernels.test_gemm import NONE as LINEAR
from tests.native.sweep import sweep

F = np.float32
PANEL = 32


@dataclass(frozen=True)
class Axis:
    size: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: int = 0

    def result(self, transposed: bool) -> int:
        span = self.dilation * (self.kernel - 1) + 1
        if transposed:
            return (self.size - 1) * self.stride + span - 2 * self.padding
        return (self.size + 2 * self.padding - span) // self.stride + 1


NONE = Axis(1)
ACTIVATIONS = LINEAR, SILU, RELU, HARDSWISH, HARDSIGMOID, RELU6


def convolve(x: np.ndarray, w: np.ndarray, axes: list[Axis], groups: int, transposed: bool):
    """Of x [batch, d, h, w, in] and w [out, in of a group, kd, kh, kw], tap by tap."""
    results = [axis.result(transposed) for axis in axes]
    outputs, width = w.shape[:2]
    x = x.reshape(*x.shape[:4], groups, width)
    w = w.reshape(groups, outputs // groups, *w.shape[1:])
    y = np.zeros((len(x), *results, groups, outputs // groups))
    for tap in itertools.product(*(range(axis.kernel) for axis in axes)):
        # Pairs of places along each axis that meet at this tap.
        sources, targets = [], []
        for axis, t, result in zip(axes, tap, results, strict=True):
            most = result if transposed else axis.size
            near = np.arange(axis.size if transposed else result)
            far = near * axis.stride + t * axis.dilation - axis.padding
            inside = (far >= 0) & (far < most)
            sources.append((near if transposed else far)[inside])
            targets.append((far if transposed else near)[inside])
        every = slice(None)
        values, weights = x[(every, *np.ix_(*sources))], w[(every, every, every, *tap)]
        y[(every, *np.ix_(*targets))] += np.einsum("...gc,gnc->...gn", values, weights)
    return y.reshape(*y.shape[:4], outputs)


def pack(w: np.ndarray, axes: list[Axis], groups: int, transposed: bool) -> np.ndarray:
    """The layout that convolution.h describes."""
    orders = []
    for axis in axes:
        taps = list(range(axis.kernel))
        phases = [taps]
        if transposed:
            phases = [
                [
                    t
                    for t in reversed(taps)
                    if (t * axis.dilation - axis.padding - r) % axis.stride == 0
                ]
                for r in range(axis.stride)
            ]
        orders.append(phases)
    order = [tap for phases in itertools.product(*orders) for tap in itertools.product(*phases)]
    rows = np.stack([w[(slice(None), slice(None), *tap)] for tap in order], 1).reshape(len(w), -1)
    parts = [rows] if groups == 1 or len(w) // groups <= 8 else np.split(rows, groups)
    panels = []
    for part in parts:
        n = -(-len(part) // PANEL) * PANEL
        padded = np.zeros((n, rows.shape[1]), F)
        padded[: len(part)] = part
        panels.append(padded.reshape(-1, PANEL, rows.shape[1]).swapaxes(1, 2))
    return np.ascontiguousarray(np.concatenate(panels))


#: Of Winograd's tiles, by the outputs along a side.
POINTS = {2: (0, 1, -1), 4: (0, 0.75, -0.75, 1.5, -1.5)}


def transforms(tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices of outputs [tile, side], inputs [side, side] and weights [side, 3]."""
    points = POINTS[tile]
    others = [[q for q in points if q != p] for p in points]
    inputs = [[*np.poly(rest)[::-1], 0] for rest in others] + [np.poly(points)[::-1]]
    scales = [np.prod(np.subtract(p, rest)) for p, rest in zip(points, others, strict=True)]
    weights = [[p**i / scale for i in range(3)] for p, scale in zip(points, scales, strict=True)]
    outputs = [[*(p**i for p in points), i == tile - 1] for i in range(tile)]
    return np.array(outputs, float), np.array(inputs), np.array([*weights, [0, 0, 1]])


def pack_tiles(w: np.ndarray, tile: int) -> np.ndarray:
    """As :func:`pack`, the points of a tile in place of taps; w [out, in, 1, 3, 3]."""
    weights = transforms(tile)[2]
    points = np.einsum("pi,qj,ncij->ncpq", weights, weights, w[:, :, 0])
    side = tile + 2
    return pack(points[:, :, None].astype(F), [NONE, Axis(side, side), Axis(side, side)], 1, False)


def tile_bound(x: np.ndarray, w: np.ndarray, axes: list[Axis], tile: int) -> np.ndarray:
    """The error of each output: roundings of the sum over channels, and of the transforms."""
    outputs, inputs, weights = map(np.abs, transforms(tile))
    results = [axis.result(False) for axis in axes[1:]]
    counts = [-(-result // tile) for result in results]
    before = [axis.padding for axis in axes[1:]]
    after = [
        max(0, count * tile + 2 - axis.size - axis.padding)
        for count, axis in zip(counts, axes[1:], strict=True)
    ]
    padded = np.pad(np.abs(x[:, 0]), [(0, 0), *zip(before, after, strict=True), (0, 0)])
    points = np.einsum("pi,qj,ncij->pqcn", weights, weights, np.abs(w[:, :, 0]))
    size = np.zeros((len(x), counts[0] * tile, counts[1] * tile, len(w)))
    side = tile + 2
    for i, j in itertools.product(*(range(0, count * tile, tile) for count in counts)):
        patch = padded[:, i : i + side, j : j + side]
        products = np.einsum("pi,qj,bijc,pqcn->bpqn", inputs, inputs, patch, points, optimize=True)
        size[:, i : i + tile, j : j + tile] = np.einsum("ip,jq,bpqn->bijn", outputs, outputs, products, optimize=True)  # fmt: skip
    roundings = 3 * np.sqrt(x.shape[-1]) + 12
    return roundings * 2.0**-24 * size[:, None, : results[0], : results[1]]


def check(
    kernels: ctypes.CDLL, seed: int, batch: int, channels: int, outputs: int, axes: list[Axis],
    groups: int = 1, transposed: bool = False, act: int = LINEAR, threads: int = 2,
    tile: int = 0,
) -> np.ndarray:  # fmt: skip
    """The result, which is right wherever the operands lie."""
    rng = np.random.default_rng(seed)
    axes = [NONE] * (3 - len(axes)) + axes
    sizes = [axis.size for axis in axes]
    results = [axis.result(transposed) for axis in axes]
    x = rng.standard_normal((batch, *sizes, channels)).astype(F)
    w = rng.standard_normal((outputs, channels // groups, *(a.kernel for a in axes)))
    w = (w / np.sqrt(w[0].size)).astype(F)
    bias = rng.standard_normal(outputs).astype(F) if seed % 3 else None
    packed = pack_tiles(w, tile) if tile else pack(w, axes, groups, transposed)
    want = convolve(x.astype(np.float64), w.astype(np.float64), axes, groups, transposed)
    want = want + (0 if bias is None else bias)
    residual, act_last = None, seed % 2 == 0
    if seed % 5 < 3:
        residual = rng.standard_normal(want.shape).astype(F)
    addend = 0 if residual is None else residual
    want = activate(act, want + addend) if act_last else activate(act, want) + addend
    numbers = [n for a, r in zip(axes, results, strict=True) for n in (a.size, r, a.kernel, a.stride, a.dilation, a.padding)]  # fmt: skip
    kernels.t_set_num_threads(threads)
    for at_end in (True, False):
        given = [guarded(array, at_end=at_end) for array in (x, packed)]
        added = [a if a is None else guarded(a, at_end=at_end) for a in (bias, residual)]
        e = Epilogue(added[0], added[1], act, act_last=act_last)
        out = guarded(np.full((batch, *results, outputs), np.nan, F), at_end=at_end)
        kernels.t_convolve(
            *(ctypes.c_int64(n) for n in (batch, groups, channels, outputs)),
            ctypes.c_bool(transposed), ctypes.c_int64(tile), (ctypes.c_int64 * 18)(*numbers),
            *(ctypes.c_void_p(array.ctypes.data) for array in given),
            ctypes.byref(e.native()), ctypes.c_void_p(out.ctypes.data),
        )  # fmt: skip
        if not tile:
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
            continue
        # No activation is steeper than 1.5: hardswish at 3.
        bound = 1.5 * tile_bound(x, w, axes, tile) + 1e-6 * (1 + np.abs(want) + np.abs(addend))
        assert np.all(np.abs(out - want) <= bound), np.max(np.abs(out - want) / bound)
    return out


@sweep("seed", range(36), emulated=(1, 2))
def test_random_convolutions(kernels: ctypes.CDLL, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = int(rng.choice([1, 2, 3], p=[0.4, 0.5, 0.1]))
    transposed = seed % 3 == 2
    while True:
        axes = [
            Axis(
                int(rng.integers(1, {1: 60, 2: 14, 3: 6}[dims])), *(int(rng.choice(values)) for values in
                ([1, 2, 3, 5], [1, 1, 2, 3], [1, 1, 2], [0, 1, 2])),
            )
            for _ in range(dims)
        ]  # fmt: skip
        if all(
            axis.result(transposed) > 0
            and axis.size + 2 * axis.padding > axis.dilation * (axis.kernel - 1)
            for axis in axes
        ):
            break
    groups = int(rng.choice([1, 1, 2, 3]))
    channels, outputs = (groups * int(rng.choice([1, 3, 9, 16, 33])) for _ in "io")
    if seed % 4 == 1:  # depthwise
        groups = channels = outputs = int(rng.choice([3, 16, 37, 64]))
    check(kernels, seed, int(rng.integers(1, 3)), channels, outputs, axes, groups, transposed,
          ACTIVATIONS[seed // 2 % len(ACTIVATIONS)], 1 + seed % 3)  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "outputs", "axes", "groups"),
    [
        (128, 100, [Axis(130, 3, 2)], 1),  # rows as they lie, and some that lie a page apart
        (512, 40, [Axis(90, 3, 2, 1, 1)], 1),
        (300, 33, [Axis(50, 4)], 1),  # sums that go through the result
        (96, 96, [Axis(100, 9, 1, 1, 4)], 2),
        (64, 64, [Axis(20, 3, 1, 1, 1), Axis(24, 3, 1, 1, 1)], 1),
        (70, 70, [Axis(30, 7, 1, 1, 3), Axis(31, 7, 1, 1, 3)], 70),
        (64, 64, [Axis(900, 4, 1, 1, 3)], 64),
        (40, 72, [Axis(11), Axis(13)], 1),
        # Rows in lines of the image, with zeros around it, in one direction alone and without.
        (3, 40, [Axis(45, 7, 2, 1, 3), Axis(79, 7, 2, 1, 3)], 1),
        (3, 8, [Axis(9, 3, 2, 1, 4), Axis(66, 5, 2, 1, 7)], 1),
        (5, 17, [Axis(20, 3, 1, 2, 1), Axis(40, 3)], 1),
        (2, 33, [Axis(8, 3), Axis(37, 5, 1, 1, 2)], 1),
        (4, 96, [Axis(27, 4, 4), Axis(133, 4, 4)], 1),
        (1, 24, [Axis(9, 9), Axis(700, 3, 1, 1, 1)], 1),  # one line of results
        (3, 8, [Axis(12, 3, 1, 1, -1), Axis(50, 3, 1, 1, -2)], 1),
    ],
)
def test_work_is_divided(
    kernels: ctypes.CDLL, channels: int, outputs: int, axes: list[Axis], groups: int
) -> None:
    for seed, act in ((1, LINEAR), (2, HARDSWISH)):  # the activation before and behind the sum
        by_one, by_two, by_four = (
            check(kernels, seed, 2, channels, outputs, axes, groups, act=act, threads=threads)
            for threads in (1, 2, 4)
        )
        assert (by_one == by_two).all() and (by_one == by_four).all()


@pytest.mark.parametrize("tile", POINTS)
@sweep("seed", range(30), emulated=(2, 3))
def test_random_tiles(kernels: ctypes.CDLL, tile: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    padding = int(rng.integers(0, 3))
    least = max(1, 3 - 2 * padding)
    sizes = [int(rng.integers(least, 19)) for _ in "hw"]
    if seed % 3 == 0:
        sizes = [max(least, seed // 3 % 3), max(least, seed // 9)]
    channels, outputs = (int(rng.choice([1, 2, 5, 16, 19, 32, 37, 70])) for _ in "io")
    axes = [Axis(size, 3, 1, 1, padding) for size in sizes]
    check(kernels, seed, int(rng.integers(1, 4)), channels, outputs, axes,
          act=ACTIVATIONS[seed % len(ACTIVATIONS)], threads=1 + seed % 3, tile=tile)  # fmt: skip


def run_tiles(kernels: ctypes.CDLL, x: np.ndarray, packed: np.ndarray, outputs: int, tile: int):
    batch, height, width, channels = x.shape
    out = np.full((batch, height, width, outputs), np.nan, F)
    axes = [1, 1, 1, 1, 1, 0, *(n for size in (height, width) for n in (size, size, 3, 1, 1, 1))]
    kernels.t_convolve(
        *(ctypes.c_int64(n) for n in (batch, 1, channels, outputs)), ctypes.c_bool(False),
        ctypes.c_int64(tile), (ctypes.c_int64 * 18)(*axes), ctypes.c_void_p(x.ctypes.data),
        ctypes.c_void_p(packed.ctypes.data), ctypes.byref(Epilogue().native()),
        ctypes.c_void_p(out.ctypes.data),
    )  # fmt: skip
    return out


@pytest.mark.parametrize("tile", POINTS)
@pytest.mark.parametrize(
    ("channels", "outputs", "size", "batch"),
    [(64, 64, 23, 2), (512, 96, 7, 3), (128, 300, 9, 2), (33, 40, 2, 9), (600, 32, 1, 30)],
)
def test_tiles_give_the_same_bits_however_they_are_divided(
    kernels: ctypes.CDLL, tile: int, channels: int, outputs: int, size: int, batch: int
) -> None:
    """With any number of threads, and for a batch as for its images one by one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, size, size, channels)).astype(F)
    packed = pack_tiles(rng.standard_normal((outputs, channels, 1, 3, 3)), tile)
    kernels.t_set_num_threads(1)
    want = run_tiles(kernels, x, packed, outputs, tile)
    for threads in (1, 2, 3, 8):
        kernels.t_set_num_threads(threads)
        np.testing.assert_array_equal(run_tiles(kernels, x, packed, outputs, tile), want)
        for image in range(batch):
            got = run_tiles(kernels, x[image : image + 1], packed, outputs, tile)
            np.testing.assert_array_equal(got[0], want[image])
