"""Sorts, scans, histograms and searches of the C ABI against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.native.programs.aoti import ShimError
from tests.native.programs.torch_cases import Optional, both, ours, random_tensor
from tests.native.sweep import sweep

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
ALL = [*FLOATS, *INTEGERS, torch.bool]


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def some_dim(x: Tensor, seed: int) -> int:
    return (seed * 7) % (2 * x.dim()) - x.dim()


@pytest.mark.parametrize("dtype", ALL)
@sweep("seed", range(12))
def test_sorts_are_torchs_stable_ones(dtype: torch.dtype, seed: int) -> None:
    """NaN is the largest, -0 equals 0, and equals keep their order in both directions."""
    x = random_tensor(seed, dtype, None if seed % 3 else [3, 40, 2])
    dim, descending = some_dim(x, seed), bool(seed & 1)
    for got, wanted in both("cpu_sort_stable", x, Optional(True), dim, descending, results=2):
        same(got, wanted)
    # Without the promise of stability torch may do as it likes with equals; ours is stable.
    stable = ours("cpu_sort_stable", x, Optional(True), dim, descending, results=2)
    for got, wanted in zip(ours("cpu_sort", x, dim, descending, results=2), stable, strict=True):
        same(got, wanted)
    values, _ = both("cpu_sort", x, dim, descending, results=2)
    same(*values)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@sweep("seed", range(12))
def test_topk_selects_what_torch_does(dtype: torch.dtype, seed: int) -> None:
    x = random_tensor(seed, dtype, None if seed % 3 else [2, 130, 3])
    dim, largest = some_dim(x, seed), bool(seed & 1)
    k = min(x.shape[dim], seed % 5)
    values, indices = both("cpu_topk", x, k, dim, largest, True, results=2)
    same(*values)
    # Which of several equals torch takes is open; ours takes the first ones.
    same(x.gather(dim, indices[0]), values[0])
    order = x.sort(dim=dim, descending=largest, stable=True).indices.narrow(dim, 0, k)
    same(indices[0], order)


def test_topk_without_equals_has_torchs_indices() -> None:
    x = torch.randperm(5000, generator=torch.Generator().manual_seed(1)).float().view(5, 1000)
    for sorted_ in (True, False):
        got = ours("cpu_topk", x, 50, -1, True, sorted_, results=2)
        wanted = x.topk(50)
        same(got[0], wanted.values)
        same(got[1], wanted.indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@sweep("seed", range(6))
def test_kthvalue(dtype: torch.dtype, seed: int) -> None:
    x = random_tensor(seed, dtype)
    dim = some_dim(x, seed)
    k = 1 + seed % x.shape[dim]
    values, indices = both("cpu_kthvalue", x, k, dim, bool(seed & 1), results=2)
    same(*values)
    index = indices[0] if seed & 1 else indices[0].unsqueeze(dim)
    found = x.gather(dim, index)
    same(found if seed & 1 else found.squeeze(dim), values[0])


def test_scalars_and_empty_tensors_sort() -> None:
    for x in (torch.tensor(3.0), torch.zeros(0), torch.zeros(2, 0, 3), torch.zeros(0, 4)):
        for got, wanted in both("cpu_sort_stable", x, Optional(None), -1, False, results=2):
            same(got, wanted)
    for got, wanted in both("cpu_topk", torch.tensor(3.0), 1, 0, True, True, results=2):
        same(got, wanted)


def test_sorts_refuse_what_is_not_there() -> None:
    x = torch.zeros(3, 4)
    with pytest.raises(ShimError, match="5 values of 4 can't be selected"):
        ours("cpu_topk", x, 5, -1, True, True, results=2)
    with pytest.raises(ShimError, match="dimension 2 of 2"):
        ours("cpu_sort_stable", x, Optional(None), 2, False, results=2)
    with pytest.raises(ShimError, match="there is no value number 0 of 4"):
        ours("cpu_kthvalue", x, 0, 1, False, results=2)
    with pytest.raises(ShimError, match="sorting of complex64 isn't supported"):
        ours("cpu_sort", x.to(torch.complex64), 0, False, results=2)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.int8, torch.bool])
@sweep("seed", range(8))
def test_scans_are_torchs(dtype: torch.dtype, seed: int) -> None:
    x = random_tensor(seed, dtype)
    dim = some_dim(x, seed)
    for name in ("cpu_cumsum", "cpu_cumprod"):
        for result in (None, torch.float64, torch.int32):
            if dtype.is_floating_point and result == torch.int32:
                continue  # a NaN has no integer
            ((got, wanted),) = both(name, x, dim, Optional(result))
            same(got, wanted)
    for name in ("cpu_cummax", "cpu_cummin"):
        for got, wanted in both(name, x, dim, results=2):
            same(got, wanted)
    if dtype.is_floating_point:
        ((got, wanted),) = both("cpu_logcumsumexp", x, dim)
        torch.testing.assert_close(got, wanted, equal_nan=True)


def test_scans_of_scalars_and_nothing() -> None:
    for x in (torch.tensor(3.0), torch.zeros(2, 0)):
        for name in ("cpu_cumsum", "cpu_cumprod"):
            same(*both(name, x, -1, Optional(None))[0])
        for got, wanted in both("cpu_cummax", x, 0, results=2):
            same(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@sweep("seed", range(10))
def test_histograms_are_torchs(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    bins = [1, 2, 7, 8, 100][seed % 5]
    x = torch.rand(50, 13, generator=generator, dtype=dtype).t() * 10 - 3
    whole = torch.randint(0, bins + 1, (90,), generator=generator).to(dtype)
    for lo, hi in ((0.0, 0.0), (-1.5, 3.25), (0.0, float(bins - 1) or 1.0), (5.0, 5.0)):
        same(*both("cpu_histc", x, bins, lo, hi)[0])
        same(*both("cpu_histc", whole, bins, lo, hi)[0])
    odd = torch.tensor([1.0, torch.nan, -torch.inf, 2.0, torch.inf], dtype=dtype)
    same(*both("cpu_histc", odd, bins, 0.0, 2.0)[0])
    same(*both("cpu_histc", torch.zeros(0, dtype=dtype), bins, 0.0, 0.0)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms_of_values_whose_distances_overflow(dtype: torch.dtype) -> None:
    """torch counts them wherever the machine puts an infinity that is made an integer."""
    most = torch.finfo(dtype).max
    for share in (1.0, 0.4, 0.04):  # two steps overflow, one, and one
        x = torch.tensor([-1.0, 1.0, 0.13, -0.87, 0.0, 0.93], dtype=dtype) * most * share
        (got,) = ours("cpu_histc", x, 20, 0.0, 0.0)
        assert got.nonzero().flatten().tolist() == [0, 1, 10, 11, 19]
        assert got[[0, 1, 10, 11, 19]].tolist() == [1, 1, 1, 1, 2]


def test_histograms_refuse_what_torch_does() -> None:
    with pytest.raises(ShimError, match="is not finite"):
        ours("cpu_histc", torch.tensor([1.0, torch.nan]), 3, 0.0, 0.0)
    with pytest.raises(ShimError, match="max must be larger"):
        ours("cpu_histc", torch.ones(3), 3, 2.0, 1.0)
    with pytest.raises(ShimError, match="of 0 bins"):
        ours("cpu_histc", torch.ones(3), 0, 0.0, 1.0)
    with pytest.raises(ShimError, match="a histogram of int64"):
        ours("cpu_histc", torch.ones(3, dtype=torch.int64), 3, 0.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
@pytest.mark.parametrize("right", [False, True])
def test_searches_are_torchs(dtype: torch.dtype, right: bool) -> None:
    for seed in range(6):
        x = random_tensor(seed, dtype)
        edges = random_tensor(seed + 50, dtype, [9]).sort().values
        for narrow in (False, True):
            same(*both("cpu_bucketize_Tensor", x, edges, narrow, right)[0])
            arguments = (narrow, right, Optional(None), Optional(None))
            same(*both("cpu_searchsorted_Tensor", edges, x, *arguments)[0])
    lines = random_tensor(7, dtype, [3, 4, 9]).sort().values
    x = random_tensor(8, dtype, [3, 4, 5])
    arguments = (False, right, Optional(None), Optional(None))
    same(*both("cpu_searchsorted_Tensor", lines, x, *arguments)[0])
