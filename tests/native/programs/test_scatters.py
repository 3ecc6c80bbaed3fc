"""Reading and writing at indices, bags of rows and grouped products of the C ABI against torch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from edgecompile.backends.operators.ops import pack_weight
from tests.native.programs.aoti import Handle, Shim, ShimError, load_shim, load_torch_shim
from tests.native.programs.torch_cases import (
    Optional,
    both,
    handle_of,
    ours,
    random_tensor,
    tensor_of,
)
from tests.native.sweep import sweep

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32]


def in_place(name: str, target: Tensor, *arguments: object) -> tuple[Tensor, Tensor]:
    """``out`` is ``self``, as generated code has it: our result and torch's."""
    results = []
    for shim in (load_shim(), load_torch_shim()):
        out = target.clone()
        made = [handle_of(shim, out)]
        native = []
        for value in arguments:
            if isinstance(value, Tensor):
                made.append(handle_of(shim, value))
                native.append(made[-1])
            elif isinstance(value, str):
                native.append(ctypes.c_char_p(value.encode()))
            elif isinstance(value, bool):
                native.append(ctypes.c_int32(value))
            elif isinstance(value, float):
                native.append(ctypes.c_double(value))
            else:
                native.append(ctypes.c_int64(value))
        try:
            shim.call(name, made[0], made[0], *native)
        finally:
            shim.delete(*made)
        results.append(out)
    return results[0], results[1]


def case(seed: int, dtype: torch.dtype) -> tuple[Tensor, int, Tensor, Tensor]:
    """A target, a dimension, an index that may be smaller in every dimension, and a source."""
    generator = torch.Generator().manual_seed(seed)
    target = random_tensor(seed, dtype)
    dim = (seed * 5) % target.dim()
    sizes = [int(torch.randint(1, n + 1, (), generator=generator)) for n in target.shape]
    sizes[dim] = 5
    index = torch.randint(0, target.shape[dim], sizes, generator=generator)
    source = random_tensor(seed + 99, dtype, [n + seed % 2 for n in sizes])
    return target, dim, index, source


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@sweep("seed", range(10))
def test_scatter_reduce(dtype: torch.dtype, seed: int) -> None:
    target, dim, index, source = case(seed, dtype)
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        if dtype is torch.bfloat16 and reduce in ("sum", "prod", "mean"):
            # torch rounds after each step, ours once: exact values decide nothing here.
            source = torch.where(source.isfinite(), source, 1.0)
        for include in (True, False):
            arguments = (dim - target.dim(), index, source, reduce, include)
            got, wanted = in_place("cpu_scatter_reduce_two_out", target, *arguments)
            if dtype is torch.bfloat16 and reduce == "mean":
                torch.testing.assert_close(got, wanted, equal_nan=True, rtol=0.05, atol=0.05)
            else:
                close(got, wanted)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@sweep("seed", range(6))
def test_scatter(dtype: torch.dtype, seed: int) -> None:
    target, dim, index, source = case(seed, dtype)
    # Which of several writes to one place wins is torch's secret: no place twice.
    order = torch.rand(target.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim)
    index = order[tuple(slice(0, n) for n in index.shape)]
    source = random_tensor(seed + 99, dtype, index.shape)
    close(*in_place("cpu_scatter_src_out", target, dim, index, source))
    close(*in_place("cpu_scatter_value_out", target, dim, index, 1.0))


def test_the_last_write_wins() -> None:
    target, index = torch.zeros(3), torch.tensor([1, 1, 1])
    got, _ = in_place("cpu_scatter_src_out", target, 0, index, torch.tensor([5.0, 6.0, 7.0]))
    assert got.tolist() == [0, 7, 0]


def in_thread(work: Callable[[], None]) -> str:
    """The message of the ShimError that ``work`` ends with.

    What makes the next call fail belongs to a thread and ends with it.
    """
    with ThreadPoolExecutor(1) as pool, pytest.raises(ShimError) as caught:
        pool.submit(work).result()
    return str(caught.value)


def test_a_bad_index_stops_the_run() -> None:
    """Generated code doesn't look at a scatter's result: the next call must fail."""
    shim = load_shim()
    tensors = [torch.zeros(3), torch.zeros(3), torch.tensor([0, 3]), torch.ones(2)]
    handles = [handle_of(shim, t) for t in tensors]
    out, target, index, source = handles

    def run() -> None:
        with pytest.raises(ShimError, match=r"index 3 is outside 0\.\.2"):
            shim.call("cpu_scatter_src_out", out, target, ctypes.c_int64(0), index, source)
        shim.make("clone", out)

    assert "index 3 is outside 0..2" in in_thread(run)
    shim.delete(*handles)


Indices = Sequence[Tensor | None]
MOVED = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]


def put(shim: Shim, target: Tensor, indices: Indices, values: Tensor, add: bool) -> Tensor:
    out = target.clone()
    made = [handle_of(shim, out), handle_of(shim, values)]
    array = (Handle * len(indices))()
    for i, index in enumerate(indices):
        if index is not None:
            made.append(handle_of(shim, index))
            array[i] = made[-1]
    count = ctypes.c_uint32(len(indices))
    try:
        shim.call("index_put_out", made[0], made[0], array, count, made[1], ctypes.c_bool(add))
    finally:
        shim.delete(*made)
    return out


def take(shim: Shim, source: Tensor, indices: Indices) -> Tensor:
    made = [handle_of(shim, source)]
    array = (ctypes.POINTER(Handle) * len(indices))()
    for i, index in enumerate(indices):
        if index is not None:
            made.append(handle_of(shim, index))
            array[i] = ctypes.pointer(made[-1])
    try:
        result = shim.make("cpu_index_Tensor", made[0], array, ctypes.c_int64(len(indices)))
        made.append(result)
        return tensor_of(shim, result)
    finally:
        shim.delete(*made)


def index_cases(target: Tensor, generator: torch.Generator) -> list[list[Tensor | None]]:
    """Lists of indices and masks of a tensor of three dimensions, with holes and without."""

    def index(*shape: int, of: int) -> Tensor:
        return torch.randint(-target.shape[of], target.shape[of], shape, generator=generator)

    def mask(*dims: int) -> Tensor:
        return torch.rand([target.shape[d] for d in dims], generator=generator) < 0.4

    def indices_for(marks: Tensor, of: int) -> Tensor:
        return index(int(marks.sum()), of=of)

    first, pair = mask(0), mask(0, 1)
    return [
        [index(7, of=0)],
        [index(2, 3, of=0), index(3, of=1)],
        [None, index(7, of=1)],
        [index(7, of=0), None, index(1, of=2)],
        [index(3, of=0).int(), index(2, 1, of=1), index(1, of=2)],
        [None, None, index(4, of=2)],
        [first],
        [mask(0, 1, 2)],
        [pair],
        [None, mask(1, 2)],
        [first, None, indices_for(first, 2)],
        [pair, indices_for(pair, 2)],
        [torch.zeros(target.shape[0], dtype=torch.bool)],
        [torch.zeros(0, dtype=torch.int64)],
    ]


@pytest.mark.parametrize("dtype", MOVED)
@sweep("seed", range(8))
def test_index_put(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 9, (4, 5, 6), generator=generator).to(dtype)
    if seed % 2:
        target = target.permute(2, 0, 1)

    for indices in index_cases(target, generator):
        full = tuple(slice(None) if i is None else i for i in indices)
        sizes = target[full].shape[seed % 3 :]  # values broadcast
        values = torch.randint(0, 5, sizes, generator=generator).to(dtype)
        if dtype in (torch.float32, torch.int64):
            got = put(load_shim(), target, indices, values, True)
            places = torch.arange(target.numel()).view(target.shape)[full]
            wanted = target.clone(memory_format=torch.contiguous_format)
            wanted.put_(places, values.expand(places.shape), accumulate=True)
            close(got, wanted)
        same_value = torch.ones((), dtype=dtype)
        got = put(load_shim(), target, indices, same_value, False)
        wanted = target.clone()
        wanted[full] = same_value
        close(got, wanted)


@pytest.mark.parametrize("dtype", MOVED)
@sweep("seed", range(8))
def test_index(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, 9, (4, 5, 6), generator=generator).to(dtype)
    source = [source, source.permute(2, 0, 1), source[::2], source.expand(4, 5, 6)][seed % 4]
    for indices in index_cases(source, generator):
        got = take(load_shim(), source, indices)
        wanted = take(load_torch_shim(), source, indices)
        close(got, wanted)
        if wanted.numel():
            assert got.stride() == wanted.stride()


def test_index_has_the_strides_that_generated_code_expects() -> None:
    x = torch.randn(4, 5, 6)
    index = torch.tensor([[0, 1, 2], [1, 2, 3]]).t()
    for source in (x, x.permute(2, 0, 1)):
        for indices in ([index], [None, index], [index, index]):
            full = tuple(slice(None) if i is None else i for i in indices)
            places = tuple(i.to("meta") if isinstance(i, Tensor) else i for i in full)
            expected = source.to("meta")[places]
            got = take(load_shim(), source, indices)
            close(got, source[full])
            assert got.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_nonzero(dtype: torch.dtype) -> None:
    for seed in range(6):
        x = random_tensor(seed, dtype)
        close(ours("cpu_nonzero", x)[0], x.nonzero())
    assert ours("cpu_nonzero", torch.zeros(3, dtype=dtype))[0].shape == (0, 1)


def test_indices_that_do_not_fit() -> None:
    shim, target = load_shim(), torch.zeros(3, 4)
    yes = torch.ones
    for indices, message in (
        ([torch.tensor([3])], "the index 3 is outside a dimension of size 3"),
        ([None], "there is no index"),
        ([torch.tensor([0, 1]), torch.tensor([0, 1, 2])], "don't broadcast"),
        ([yes(4, dtype=torch.bool)], "a mask of size 4 for a dimension of size 3"),
        ([yes(3, 4, 1, dtype=torch.bool)], "a mask of 3 dimensions for the last 2 of 2"),
        ([yes(3, 4, dtype=torch.bool), torch.tensor([0])], "more indices than the 2 dimensions"),
        ([torch.tensor([0.5])], "an index of float32 isn't supported"),
    ):
        with pytest.raises(ShimError, match=message):
            take(shim, target, indices)
        assert message in in_thread(
            functools.partial(put, shim, target, indices, torch.tensor(1.0), False)
        )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_masked_scatter(dtype: torch.dtype) -> None:
    for seed in range(4):
        x = random_tensor(seed, dtype, [3, 4, 5])
        mask = random_tensor(seed + 9, torch.bool, [3, 4, 5] if seed % 2 else [4, 1])
        source = random_tensor(seed + 20, dtype, [70])
        close(*both("cpu_masked_scatter", x, mask, source)[0])
    with pytest.raises(ShimError, match="more than the 2 values"):
        ours("cpu_masked_scatter", torch.zeros(3), torch.ones(3, dtype=torch.bool), torch.ones(2))


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_embedding_bag(mode: int, dtype: torch.dtype) -> None:
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(11, 6, generator=generator).to(dtype)
        if seed % 3 == 1:
            table = table.t().contiguous().t()
        kind = torch.int32 if seed % 4 == 3 else torch.int64
        indices = torch.randint(0, 11, (9,), generator=generator).to(kind)
        last = bool(seed & 1)
        offsets = torch.tensor([0, 2, 2, 7, 9] if last else [0, 2, 2, 7], dtype=kind)
        scales = torch.rand(9, generator=generator).to(dtype) if mode == 0 and seed & 2 else None
        padding = -1 if seed < 4 else int(indices[1])
        arguments = (table, indices, offsets, False, mode, False, Optional(scales), last, padding)
        got = ours("cpu__embedding_bag_forward_only", *arguments, results=4)
        wanted = torch.ops.aten._embedding_bag_forward_only(
            table, indices, offsets, False, mode, False, scales, last, padding
        )
        error = 1e-2 if dtype is torch.bfloat16 else 1e-6
        torch.testing.assert_close(got[0], wanted[0], rtol=error, atol=error)
        if mode == 0:
            continue  # the others serve the gradient, and torch leaves out what it needn't compute
        for mine, theirs in zip(got[1:], wanted[1:], strict=True):
            close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_bags_end_at_the_last_offset(dtype: torch.dtype) -> None:
    table, indices = torch.randn(11, 6).to(dtype), torch.arange(9)
    for scales in (None, torch.rand(9).to(dtype)):
        more = (False, 0, False, Optional(scales), True, -1)
        for offsets in ([0, 2, 5], [0, 0, 8, 8], [0, 0], [0]):
            bounds = torch.tensor(offsets)
            got = ours("cpu__embedding_bag_forward_only", table, indices, bounds, *more, results=4)
            wanted = torch.ops.aten._embedding_bag_forward_only(
                table, indices, bounds, False, 0, False, scales, True, -1
            )
            error = 1e-2 if dtype is torch.bfloat16 else 1e-6
            torch.testing.assert_close(got[0], wanted[0], rtol=error, atol=error)


def test_embedding_bag_refuses_what_does_not_fit() -> None:
    def run(indices: list[int], offsets: list[int], mode: int = 0, last: bool = False) -> None:
        ours(
            "cpu__embedding_bag_forward_only", torch.zeros(3, 2), torch.tensor(indices),
            torch.tensor(offsets), False, mode, False, Optional(None), last, -1, results=4,
        )  # fmt: skip

    with pytest.raises(ShimError, match="the index 3 is outside a table of 3 rows"):
        run([0, 3], [0])
    with pytest.raises(ShimError, match="offsets aren't ascending"):
        run([0, 1], [0, 2, 1])
    with pytest.raises(ShimError, match="the first offset isn't 0"):
        run([0, 1], [1, 2])
    with pytest.raises(ShimError, match="offsets go beyond the indices"):
        run([0, 1], [0, 3], last=True)
    with pytest.raises(ShimError, match="the last offset is 1, there are 2 indices"):
        run([0, 1], [0, 1], 1, last=True)
    with pytest.raises(ShimError, match="mode 3"):
        run([0, 1], [0], 3)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@sweep("seed", range(6))
def test_grouped_products(precision: str, seed: int) -> None:
    """Rows of each group with a matrix of their own, empty groups, and rows of no group."""
    generator = torch.Generator().manual_seed(seed)
    experts, k, n = 5, [7, 32, 70][seed % 3], [1, 33, 64][seed // 2]
    weights = torch.randn(experts, n, k, generator=generator) / k**0.5
    counts = torch.randint(0, 5, (experts,), generator=generator) * torch.tensor([1, 0, 1, 1, 1])
    offs = counts.cumsum(0).to(torch.int32 if seed % 2 else torch.int64)
    rows = int(offs[-1]) + (seed % 3)
    x = torch.randn(rows, 2 * k, generator=generator)[:, ::2] if seed % 2 else torch.randn(rows, k)
    wanted = torch.zeros(rows, n, dtype=torch.float64)
    start = 0
    for e, end in enumerate(offs.tolist()):
        wanted[start:end] = x[start:end].double() @ weights[e].double().t()
        start = end
    packed = torch.stack([pack_weight(w, precision) for w in weights])
    (got,) = ours("cpu_ec_grouped_linear", x, packed, offs, n)
    error = {"fp32": 1e-5, "bf16": 2e-2, "int8": 5e-2}[precision]
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=error)
    (plain,) = ours("cpu_ec_grouped_mm", x, weights.transpose(1, 2), offs)
    torch.testing.assert_close(plain.double(), wanted, rtol=0, atol=1e-5)
    (other,) = ours("cpu_ec_grouped_mm", x, weights.transpose(1, 2).contiguous(), offs)
    torch.testing.assert_close(other.double(), wanted, rtol=0, atol=1e-5)


def test_grouped_products_refuse_what_does_not_fit() -> None:
    x, w = torch.zeros(4, 8), torch.zeros(2, 8, 3)
    for offs, message in (
        ([3, 2], "offset 1 is 2, not within 3..4"),
        ([3, 5], "offset 1 is 5, not within 3..4"),
        ([4], "1 offsets for 2 matrices"),
    ):
        with pytest.raises(ShimError, match=message):
            ours("cpu_ec_grouped_mm", x, w, torch.tensor(offs))
    with pytest.raises(ShimError, match="w_packed has 512 elements"):
        ours("cpu_ec_grouped_linear", x, torch.zeros(2, 1, 8, 32), torch.tensor([1, 2]), 33)
