"""Attention of few queries over a cache, which is divided over the keys."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.native.guarded import guarded
from tests.native.kernels.test_attention import INF, Case, F, check, expected, random_tensor, run


def part_of(dim: int) -> int:
    """The keys of a part."""
    return max(32, 16384 // dim // 32 * 32)


def result(lib: ctypes.CDLL, case: Case) -> np.ndarray:
    out = np.full((*case.q.shape[:3], case.v.shape[3]), np.nan, F)
    run(lib, case, out)
    return out


def decode(
    rng: np.random.Generator, heads: int, group: int, keys: int, dim: int, *, new: int = 1
) -> Case:
    """The last ``new`` of ``keys`` tokens, in a cache with some more rows of NaN."""
    q = random_tensor(rng, 1, heads * group, new, dim)
    k, v = (random_tensor(rng, 1, heads, keys + 5, dim) for _ in range(2))
    for x in (k, v):
        x[:, :, keys:] = np.nan
    return Case(q, k, v, causal=True, offset=keys - new)


def seen(case: Case) -> Case:
    """The same for the general kernel: the keys of the cache that are filled, and no place."""
    keys = case.offset + case.q.shape[2]
    return replace(case, k=case.k[:, :, :keys], v=case.v[:, :, :keys], causal=False, offset=0)


def on_threads(lib: ctypes.CDLL, case: Case) -> np.ndarray:
    """The result, which is the same on one to four threads."""
    results = []
    for threads in (1, 2, 3, 4):
        lib.t_set_num_threads(threads)
        results.append(result(lib, case))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    return results[0]


@pytest.mark.parametrize(("dim", "group"), [(64, 1), (64, 3), (256, 4), (17, 7)])
def test_lengths_around_the_parts(kernels: ctypes.CDLL, dim: int, group: int) -> None:
    rng = np.random.default_rng(dim)
    part = part_of(dim)
    for keys in (1, part - 1, part, part + 1, 2 * part, 2 * part + 1, 3 * part + 40):
        case = decode(rng, 1, group, keys, dim)
        got = on_threads(kernels, case)
        want, bound = expected(seen(case))
        assert (np.abs(got - want) <= bound).all(), keys
        if keys <= part:  # as before there were parts
            np.testing.assert_array_equal(got, result(kernels, seen(case)))


@pytest.mark.parametrize("window", [1, 40, 256, 300])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_windows_and_caps_over_parts(kernels: ctypes.CDLL, window: int, softcap: float) -> None:
    rng = np.random.default_rng(window)
    for keys in (256, 270, 512, 700):
        case = decode(rng, 2, 3, keys, 64)
        for x in (case.k, case.v):
            x[:, :, : max(0, keys - window)] = np.nan
        case = replace(case, window=window, softcap=softcap)
        got = on_threads(kernels, case)
        filled = replace(case, k=np.nan_to_num(case.k), v=np.nan_to_num(case.v))
        want, bound = expected(filled)
        assert (np.abs(got - want) <= bound).all(), keys


def test_parts_whose_keys_are_all_masked(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    keys, part = 800, part_of(64)
    for group in (2, 6):
        case = decode(rng, 2, group, keys, 64)
        case = replace(case, k=case.k[:, :, :keys], v=case.v[:, :, :keys])
        keep = rng.random((1, 2 * group, 1, keys)) < 0.5
        keep[:, 0, :, :part] = False  # the first part
        keep[:, 1, :, part : 2 * part] = False  # one between others
        keep[:, 2, :, 2 * part :] = False  # the last ones
        keep[:, 3] = False  # all
        for low in (None, -INF, np.finfo(F).min):
            mask = keep if low is None else np.where(keep, F(0), F(low)).astype(F)
            masked = replace(case, mask=guarded(mask))
            got = on_threads(kernels, masked)
            check(kernels, masked, rng, f"{group} {low}")
            if low != np.finfo(F).min:
                assert (got[0, 3] == 0).all()


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_nan_or_an_infinity_in_any_part_reaches_the_row(kernels: ctypes.CDLL, name: str) -> None:
    rng = np.random.default_rng(3)
    for place in (3, 300, 690):
        case = decode(rng, 2, 1, 700, 64)
        getattr(case, name)[0, 1, place, 5] = np.nan
        got = on_threads(kernels, case)
        assert np.isfinite(got[0, 0]).all()
        assert np.isnan(got[0, 1, 0, 5])
        mask = np.arange(705) != place  # masked, it does as well
        got = on_threads(kernels, replace(case, mask=guarded(mask.reshape(1, 1, 1, -1))))
        assert np.isnan(got[0, 1, 0, 5])


@pytest.mark.parametrize(
    ("group", "window", "softcap"),
    [(1, 0, 0.0), (3, 0, 0.0), (9, 0, 5.0), (2, 40, 0.0), (6, 300, 5.0)],
)
def test_few_rows_are_the_rows_that_run_alone(
    kernels: ctypes.CDLL, group: int, window: int, softcap: float
) -> None:
    """Bit for bit, whatever part the rows end in."""
    rng = np.random.default_rng(4)
    part = part_of(64)
    for keys in (part - 1, part + 1, part + 2, 2 * part + 3, 777):
        for new in (2, 3, 5, 8):
            case = decode(rng, 2, group, keys, 64, new=new)
            case = replace(case, window=window, softcap=softcap)
            got = on_threads(kernels, case)
            for row in range(new):
                alone = replace(case, q=case.q[:, :, row : row + 1], offset=case.offset + row)
                np.testing.assert_array_equal(got[:, :, row : row + 1], result(kernels, alone))


def test_more_parts_than_are_kept_at_once(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(5)
    case = decode(rng, 1, 64, 1100, 512)  # 35 parts in rounds of 16
    np.testing.assert_allclose(
        on_threads(kernels, case), result(kernels, seen(case)), rtol=1e-5, atol=1e-5
    )


def test_parts_of_each_batch_entry(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(6)
    q = random_tensor(rng, 3, 4, 1, 64)
    k, v = (random_tensor(rng, 3, 2, 600, 64) for _ in range(2))
    case = Case(q, k, v, causal=True, offset=550)
    check(kernels, case, rng, "batch")
    whole = on_threads(kernels, case)
    for b in range(3):
        one = Case(q[b : b + 1], k[b : b + 1], v[b : b + 1], causal=True, offset=550)
        np.testing.assert_array_equal(whole[b : b + 1], result(kernels, one))
