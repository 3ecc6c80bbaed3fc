"""What Inductor has no code for, and sizes that depend on values, written with what it has, for a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from tests.backends.cuda.test_gpu_lowering import check, flat, lowered, targets

aten = torch.ops.aten


class Adapters(nn.Module):
    """Rows of each language go through layers of their own; what no language takes stays zero."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.norm, self.rows = nn.LayerNorm(8), rows

    def forward(self, x: Tensor, language: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for i, layer in enumerate(self.layers):
            mask = language == i
            part = x[mask]
            y[mask] = torch.nn.functional.gelu(layer(self.norm(part))) * 2 + part
        return y


@pytest.mark.parametrize("shape", [(6,), (6, 5)])
def test_rows_that_are_selected_and_put_back(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=64)
    language = torch.arange(6).reshape(-1, *[1] * (len(shape) - 1)).expand(shape) % 3
    example = {"x": torch.randn(*shape, 8), "language": language.contiguous()}
    graph, report = check(
        Adapters().eval(), example, shapes={"x": {0: rows}, "language": {0: rows}}, interpret=False
    )
    assert report.counts["masks"] == 2
    assert not {aten.index.Tensor, aten.index_put_.default} & set(targets(graph))


def test_what_is_selected_is_a_copy() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x, y, mask = x * 1, torch.zeros_like(x), x.sum(1) > 0
            part = x[mask]
            x[mask] = part * 2
            y[mask] = part * 3
            return x, y

    torch.manual_seed(0)
    _, report = check(Twice(), {"x": torch.randn(6, 8)}, interpret=False)
    assert report.counts["masks"] == 1


def test_whole_sequences_that_are_selected() -> None:
    torch.manual_seed(0)
    example = {"x": torch.randn(3, 5, 8), "language": torch.tensor([0, 2, 1])}
    _, report = check(Adapters().eval(), example, interpret=False)
    assert report.counts["masks"] == 2


class Mixture(nn.Module):
    """Tokens sorted by expert, divided by counts that are read on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.weight = nn.Parameter(torch.randn(4, 24, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(1)
        counts = torch.nn.functional.one_hot(chosen, 4).sum(0).tolist()
        order = chosen.argsort(stable=True)
        parts = x[order].split(counts, dim=0)
        joined = torch.cat(
            [torch.nn.functional.linear(part, self.weight[i]) for i, part in enumerate(parts)]
        )
        return torch.zeros(x.shape[0], 24).index_add(0, order, torch.relu(joined))


def test_rows_that_are_divided_by_counts() -> None:
    torch.manual_seed(0)
    length = torch.export.Dim("length", min=2, max=64)
    module = Mixture()
    graph, report = check(module, {"x": torch.randn(19, 16)}, shapes={"x": {0: length}})
    assert report.counts["grouped"] == 2  # as it is found, and as it becomes a kernel
    assert report.counts["asserted"] == 1
    assert not {aten.item.default, aten.split_with_sizes.default} & set(targets(graph))
    x = torch.randn(50, 16)
    assert (graph(x=x) - module(x)).abs().max() < 1e-2


class Asserts(nn.Module):
    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        last = ends.max().item()
        torch._check(last <= x.shape[0])
        return x * 2


def test_numbers_that_are_only_asserted_are_asserted_on_the_gpu() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    example = {"x": torch.randn(9, 4), "ends": torch.tensor([3, 9])}
    graph, report = check(
        Asserts(), example, shapes={"x": {0: rows}, "ends": None}, interpret=False
    )
    assert report.counts["asserted"] == 1 and aten.item.default not in targets(graph)
    assert aten._assert_async.msg in targets(graph)
    with pytest.raises(RuntimeError, match="assertion failed"):
        graph(x=torch.randn(8, 4), ends=example["ends"])


class Bag(nn.Module):
    def __init__(self, mode: str, padding: int | None = None, last: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 8, mode=mode, padding_idx=padding, include_last_offset=last)

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        return self.bag(ids, offsets, weights)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    module = Bag(mode, padding)
    length = torch.export.Dim("length", min=2, max=64)
    ids = torch.randint(30, (4, 9))
    ids[2] = 3  # padding alone
    graph, report = check(module, {"ids": ids}, interpret=False)
    assert report.counts["bags"] == 1 and aten.arange.start_step not in targets(graph)
    offsets = torch.tensor([0, 4, 4, 20])  # one is empty
    shapes = {"ids": {0: length}, "offsets": None}
    check(module, {"ids": ids.flatten(), "offsets": offsets}, shapes=shapes, interpret=False)
    offsets = torch.tensor([0, 4, 4, 36])
    check(
        Bag(mode, padding, last=True), {"ids": ids.flatten(), "offsets": offsets}, interpret=False
    )


def test_bags_with_factors() -> None:
    torch.manual_seed(0)
    ids, weights = torch.randint(30, (4, 9)), torch.rand(4, 9)
    offsets = torch.tensor([0, 4, 20])
    check(Bag("sum"), {"ids": ids, "offsets": None, "weights": weights}, interpret=False)
    flat = {"ids": ids.flatten(), "offsets": offsets, "weights": weights.flatten()}
    check(Bag("sum"), flat, interpret=False)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_rows_of_padding_and_of_other_bags_may_be_no_numbers(mode: str) -> None:
    torch.manual_seed(0)
    module = Bag(mode, padding=3)
    with torch.no_grad():
        module.bag.weight[3], module.bag.weight[4] = torch.nan, torch.inf
        if mode != "max":  # of which torch skips them or not, as they come
            module.bag.weight[4, 4:] = torch.nan
    ids = torch.randint(5, 30, (4, 9))
    ids[:, 2], ids[3, 5] = 3, 4  # the last bag alone has what is no number
    offsets = torch.tensor([0, 9, 9, 20, 27])
    for example in ({"ids": ids}, {"ids": ids.flatten(), "offsets": offsets}):
        graph, report = lowered(module, example, "fp32")
        assert report.counts["bags"] == 1
        (got,), want = flat(graph(**example)), module(**example)
        assert want[:-1].isfinite().all() and not want[-1].isfinite().any()
        assert torch.allclose(got, want, equal_nan=True, atol=1e-5)


class Scatters(nn.Module):
    def __init__(self, dim: int, how: str, include: bool) -> None:
        super().__init__()
        self.dim, self.how, self.include = dim, how, include

    def forward(self, x: Tensor, index: Tensor, src: Tensor) -> Tensor:
        return x.scatter_reduce(self.dim, index, src, self.how, include_self=self.include)


@pytest.mark.parametrize("how", ["amax", "amin", "mean"])
@pytest.mark.parametrize("include", [False, True])
def test_values_sent_to_places(how: str, include: bool) -> None:
    torch.manual_seed(0)
    for dim, shape, size in ((0, (40,), 7), (1, (3, 40, 2), 7), (-1, (2, 33), 60)):
        target = list(shape)
        target[dim] = size
        example = {
            "x": torch.randn(target),
            "index": torch.randint(size - 1, shape),  # nothing goes to the last place
            "src": torch.randn(shape),
        }
        graph, report = check(Scatters(dim, how, include), example)
        assert report.counts["scatters"] == 1
        assert aten.scatter_reduce.two not in targets(graph)


@pytest.mark.parametrize("how", ["amax", "amin", "mean"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_values_beyond_the_index_go_nowhere(how: str, dim: int) -> None:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=7)
    example = {
        "x": torch.randn(4, 5, 6),
        "index": torch.randint(4, (4, 5, 6)),
        "src": torch.randn(7, 8, 9) * 9,
    }
    shapes = {"x": {0: rows}, "index": {0: rows}, "src": None} if dim else None
    _, report = check(Scatters(dim, how, True), example, shapes=shapes)
    assert report.counts["scatters"] == 1


@pytest.mark.parametrize("how", ["amax", "amin"])
def test_narrow_integers_that_nothing_is_sent_to_stay(how: str) -> None:
    sign = -1 if how == "amax" else 1
    example = {
        "x": torch.full((1, 2), 5 * sign, dtype=torch.int32),
        "index": torch.zeros((1, 1), dtype=torch.int64),
        "src": torch.full((1, 1), 3, dtype=torch.int32),
    }
    graph, report = check(Scatters(1, how, True), example)
    assert report.counts["scatters"] == 1
    assert graph(**example)[0].tolist() == [3, 5 * sign]


def test_values_that_reach_a_part_of_the_lines_stay() -> None:
    example = {"x": torch.randn(3, 7), "index": torch.randint(7, (2, 9)), "src": torch.randn(2, 9)}
    _, report = lowered(Scatters(1, "amax", True), example, "fp16")
    assert list(report.kept.values()) == ["its index doesn't reach all lines"]


class Routed(nn.Module):
    """The scores of two experts are nearly equal."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4, bias=False)
        self.score, self.leave = nn.Linear(32, 600), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, _ = torch.topk(torch.softmax(self.router(x).float(), -1), 2)
        return weights.type_as(x) * self.leave(x)[:, :2], self.score(x).argmax(-1).float() * 0


def test_products_that_choose_stay_in_float32() -> None:
    torch.manual_seed(0)
    graph, _ = check(Routed(), {"x": torch.randn(5, 32)}, interpret=False)
    kinds = {name: parameter.dtype for name, parameter in graph.named_parameters()}
    assert kinds.pop("router.weight") == torch.float32
    assert set(kinds.values()) | {x.dtype for x in graph.buffers()} == {torch.float16}


def test_what_a_mask_leaves_is_sorted_and_sent_by_lines() -> None:
    class Sorts(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            kept = x[x[:, 0] > 0]
            first, places = kept[:, 0].sort(stable=True)
            most = torch.zeros(3).scatter_reduce(0, places % 3, first, "amax")
            return first, places, kept.sort(dim=1)[0], kept.sort(dim=0)[1], most

    rows = torch.export.Dim("rows", min=2, max=64)
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    graph, report = lowered(Sorts(), {"x": x}, "fp32", {"x": {0: rows}})
    assert report.counts["sorts"] == 3 and report.counts["scatters"] == 1
    for given in (x, x.abs(), -x.abs()):
        for got, want in zip(flat(graph(x=given)), flat(Sorts()(given)), strict=True):
            assert torch.equal(got, want)
