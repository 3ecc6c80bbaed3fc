"""Products of int8 and int4 on AMX tiles and by AVX-VNNI are those of AVX-512's VNNI, bit for bit.

Where the CPU lacks the instructions, emulated/ takes the place of the header that has them. All else is
compiled as for CPUs that have them. On aarch64 products of matrices are those of the dot product;
test_on_aarch64.py runs these tests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from tests.native.conftest import HERE, POOL_SOURCES, Build, runnable_marches
from tests.native.kernels.packed_products import ROUNDED, Weights, product
from tests.native.kernels.test_gemm import GELU_ERF, SILU, Epilogue, F, random_floats

pytestmark = pytest.mark.slow

SOURCES = (
    *("base/allocator.cpp", *POOL_SOURCES),
    *(f"kernels/gemm/gemm{part}.cpp" for part in ("", "_epilogue", "_pack", "_split")),
    *(f"kernels/gemm/narrow/gemm_{kind}.cpp" for kind in ("int4", "int8")),
    HERE / "kernels" / "rounded_harness.cpp",
)
#: Fewer run without tiles, and so do those whose last tile would be filled up by more than a quarter.
LEAST = 32


@pytest.fixture(scope="module")
def vectors(build_native: Build) -> ctypes.CDLL:
    if "x86-64-avx512bf16" not in runnable_marches():
        pytest.skip("this CPU has no AVX-512 with VNNI")
    return ctypes.CDLL(str(build_native("vectors", SOURCES, march="x86-64-avx512bf16")))


@pytest.fixture(scope="module", params=["emulated", "real"])
def tiles(request: pytest.FixtureRequest, build_native: Build, vectors: ctypes.CDLL) -> ctypes.CDLL:
    real = request.param == "real"
    if real and "x86-64-amx" not in runnable_marches():
        pytest.skip("this CPU has no AMX")
    folders = () if real else (HERE / "kernels" / "emulated" / "amx",)
    library = build_native(f"tiles-{request.param}", SOURCES, march="x86-64-amx", folders=folders)
    made = ctypes.CDLL(str(library))
    made.t_products.restype = ctypes.c_int64
    return made


Compare = Callable[[Weights, np.ndarray, Epilogue], None]


@pytest.fixture
def compare(vectors: ctypes.CDLL, tiles: ctypes.CDLL) -> Compare:
    """compare(weights, rows, epilogue) on one thread, and on as many as there are rows in a tile's quarter."""

    def of(w: Weights, a: np.ndarray, e: Epilogue) -> None:
        vectors.t_set_num_threads(1)
        want = product(vectors, w, a, e)
        for threads in (1, 4):
            tiles.t_set_num_threads(threads)
            before = tiles.t_products()
            got = product(tiles, w, a, e)
            used = tiles.t_products() - before
            assert used > 0 or tiles.t_products() == -1, "no tile was multiplied"
            finite = ~np.isnan(want)
            assert (np.isnan(got) == ~finite).all()
            assert got[finite].tobytes() == want[finite].tobytes(), (w.kind, a.shape, threads)

    return of


@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize(
    ("k", "n"),
    [(576, 576), (576, 1536), (1536, 576), (1, 40), (31, 31), (64, 16), (65, 33), (127, 70), (4160, 48)],
)  # fmt: skip
def test_tiles_give_every_bit_of_the_vectors(compare: Compare, kind: str, k: int, n: int) -> None:
    rng = np.random.default_rng(k + n)
    w = Weights.of(kind, random_floats(rng, k, n))
    for m in (32, 40, 130) if k * n < 100_000 else (33 + 15,):
        e = Epilogue(bias=random_floats(rng, n), act=SILU, residual=random_floats(rng, m, n))
        compare(w, random_floats(rng, m, k), e)


@pytest.mark.parametrize("kind", ROUNDED)
def test_tiles_with_rows_of_every_kind(compare: Compare, kind: str) -> None:
    """Outliers in some rows of a tile only, zeros, the smallest numbers, and what isn't finite."""
    rng = np.random.default_rng(5)
    k, n = 4225, 70  # more than 64 blocks
    w = Weights.of(kind, random_floats(rng, k, n))
    a = random_floats(rng, 77, k)
    a[3, 100], a[18, 4200], a[33, ::64], a[76, 0] = 1e3, -500, 300, 1e4
    a[5], a[6], a[20, 7], a[21, 9] = 0, F(1e-40), np.nan, np.inf
    a[40:48] *= F(1e30)
    compare(w, a, Epilogue(act=GELU_ERF, alpha=0.5))


@pytest.mark.parametrize("kind", ["int8", "int4", "int4-minimums"])
def test_every_number_of_rows_beside_tiles(
    vectors: ctypes.CDLL, tiles: ctypes.CDLL, kind: str
) -> None:
    rng = np.random.default_rng(6)
    w = Weights.of(kind, random_floats(rng, 200, 33))
    a = random_floats(rng, 100, 200)
    want = product(vectors, w, a)
    for m in range(1, 101):
        before = tiles.t_products()
        assert product(tiles, w, a[:m]).tobytes() == want[:m].tobytes(), m
        if before >= 0:
            assert (tiles.t_products() > before) == (m >= LEAST and 4 * (-m % 16) <= m), m


@pytest.mark.parametrize("kind", ROUNDED)
def test_avx_vnni_gives_every_bit_of_avx_512(
    build_native: Build, vectors: ctypes.CDLL, kind: str
) -> None:
    march = "x86-64-avxvnni"
    real = march in runnable_marches()
    folders = () if real else (HERE / "kernels" / "emulated" / "avx_vnni",)
    narrow = ctypes.CDLL(str(build_native("avx-vnni", SOURCES, march=march, folders=folders)))
    rng = np.random.default_rng(7)
    for k, n in [(576, 96), (1, 40), (65, 33), (127, 70), (4225, 48)]:
        w = Weights.of(kind, random_floats(rng, k, n))
        a = random_floats(rng, 13, k)
        a[3, k // 2], a[5] = 1e3, 0
        for m in range(1, 14):
            e = Epilogue(bias=random_floats(rng, n), residual=random_floats(rng, m, n))
            got, want = product(narrow, w, a[:m], e), product(vectors, w, a[:m], e)
            assert got.tobytes() == want.tobytes(), (k, n, m)


@pytest.fixture(scope="module")
def on_aarch64(build_native: Build) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Products by the dot product, and those that multiply matrices."""
    if "aarch64-i8mm" not in runnable_marches():
        pytest.skip("this CPU has no products of int8 matrices")
    dots, matrices = (
        ctypes.CDLL(str(build_native("rounded", SOURCES, march=march)))
        for march in ("aarch64-dotprod", "aarch64-i8mm")
    )
    return dots, matrices


@pytest.mark.parametrize("kind", ROUNDED)
def test_matrices_give_every_bit_of_dot_products(
    on_aarch64: tuple[ctypes.CDLL, ctypes.CDLL], kind: str
) -> None:
    """Every number of pairs in the last tile, whole pairs and others, before and after the least number of rows."""
    dots, matrices = on_aarch64
    rng = np.random.default_rng(8)
    shapes = [(576, 96), (1, 40), (31, 31), (33, 64), (64, 16), (65, 33), (70, 33), (127, 70)]
    for k, n in shapes:
        w = Weights.of(kind, random_floats(rng, k, n))
        for m in (*range(7, 25), 49):
            a = random_floats(rng, m, k)
            a[m // 2, k // 2], a[m - 2] = 1e3, 0
            e = Epilogue(bias=random_floats(rng, n), act=SILU, residual=random_floats(rng, m, n))
            dots.t_set_num_threads(1)
            want = product(dots, w, a, e).tobytes()
            for threads in (1, 3):
                matrices.t_set_num_threads(threads)
                assert product(matrices, w, a, e).tobytes() == want, (k, n, m, threads)


@pytest.mark.parametrize("kind", ROUNDED)
def test_matrices_with_rows_of_every_kind(
    on_aarch64: tuple[ctypes.CDLL, ctypes.CDLL], kind: str
) -> None:
    """Outliers in some rows of a tile only, zeros, the smallest numbers, and what isn't finite."""
    rng = np.random.default_rng(5)
    for k in (4225, 16385):  # more than 64 blocks, and more than are unpacked
        w = Weights.of(kind, random_floats(rng, k, 40))
        a = random_floats(rng, 21, k)
        a[3, 100], a[8, 4200], a[13, ::64], a[20, 0] = 1e3, -500, 300, 1e4
        a[5], a[6], a[9, 7], a[10, 9] = 0, F(1e-40), np.nan, np.inf
        a[14:17] *= F(1e30)
        want, got = (product(lib, w, a, Epilogue(act=GELU_ERF)) for lib in on_aarch64)
        finite = ~np.isnan(want)
        assert (np.isnan(got) == ~finite).all() and not finite.all()
        assert got[finite].tobytes() == want[finite].tobytes()
