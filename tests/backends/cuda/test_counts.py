"""Selections whose size depends on values, for a GPU: places and a count that the host reads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.number_ranges import number_range
from edgecompile.errors import MissingKernelError
from tests.backends.cuda.test_gpu_lowering import flat, lowered, targets

aten = torch.ops.aten
ROWS = torch.export.Dim("rows", min=2, max=64)


class Selects(nn.Module):
    """Calls a function of ``x`` [rows, 8] and a mask [rows]."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.function(x, mask)


def check(function: Callable[[Tensor, Tensor], Any], selections: int, bound: float = 0.0) -> None:
    """Compares with eager where none, some and all are true, at two sizes; in float32."""
    torch.manual_seed(0)
    module = Selects(function)
    example = {"x": torch.randn(6, 8), "mask": torch.arange(6) % 3 == 1}
    shapes = {"x": {0: ROWS}, "mask": {0: ROWS}}
    graph, report = lowered(module, example, "fp32", shapes)
    assert report.counts["selections"] == selections
    assert aten.nonzero.default not in targets(graph)
    for rows in (6, 33):
        for kept in ("none", "some", "all"):
            x = torch.randn(rows, 8)
            mask = torch.rand(rows) > 0.5 if kept == "some" else torch.full((rows,), kept == "all")
            with torch.no_grad():
                want, got = module(x.clone(), mask.clone()), graph(x=x.clone(), mask=mask.clone())
            for one, other in zip(flat(got), flat(want), strict=True):
                assert one.dtype == other.dtype and one.shape == other.shape
                assert torch.allclose(one, other, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda part: part - part.mean(0),
        lambda part: torch.softmax(part, 0),
        lambda part: part.cumsum(0),
        lambda part: part + torch.arange(part.shape[0])[:, None],
        lambda part: part @ part.t() @ part,
    ],
)
def test_rows_that_depend_on_each_other(function: Any) -> None:
    def put(x: Tensor, mask: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[mask] = function(x[mask])
        return y

    check(put, 2, 1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: torch.nonzero(mask),
        lambda x, mask: torch.nonzero(x > 0),
        lambda x, mask: torch.nonzero((x[:, :4] > 0).float().reshape(-1, 2, 2) * 0.25),
        lambda x, mask: torch.masked_select(x, x > 0),
        lambda x, mask: torch.masked_select(x, mask[:, None]),
        lambda x, mask: x[x > 0],
        lambda x, mask: x.t()[:, mask],
        lambda x, mask: x.reshape(-1, 2, 4)[:, x[:2, :4] > 0],
    ],
)
def test_what_is_selected(function: Any) -> None:
    check(function, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: torch.unique(x),
        lambda x, mask: torch.unique((x * 2).round(), return_inverse=True, return_counts=True),
        lambda x, mask: torch.unique(mask, return_inverse=True)[1],
        lambda x, mask: torch.unique_consecutive(mask, return_inverse=True, return_counts=True),
        lambda x, mask: x[torch.unique((x[:, 0] > 0).long())],
    ],
)
def test_what_is_distinct(function: Any) -> None:
    check(function, 1)


def test_rows_that_are_repeated() -> None:
    def moved(x: Tensor, mask: Tensor) -> Tensor:
        """The first row as often as the mask is true, others once where it isn't."""
        rest = (~mask).long()
        counts = torch.where(torch.arange(x.shape[0]) == 0, mask.sum() + rest, rest)
        return x.repeat_interleave(counts, 0, output_size=x.shape[0])

    check(moved, 1)
    check(
        lambda x, mask: x.t().repeat_interleave(torch.tensor(2), 1, output_size=2 * x.shape[0]), 1
    )
    check(
        lambda x, mask: x.repeat_interleave(
            mask.new_ones(x.shape[0] * 8).long(), output_size=x.numel()
        ),
        1,
    )


def test_a_mask_beside_other_indices() -> None:
    check(lambda x, mask: x[mask, 3], 1)
    check(lambda x, mask: x[:, None][mask, :, torch.tensor([5])], 1)


def test_what_is_written() -> None:
    def one_row(x: Tensor, mask: Tensor) -> Tensor:
        y = x * 1
        y[mask] = x[0]
        return y

    def added(x: Tensor, mask: Tensor) -> Tensor:
        return (x * 1).index_put((mask,), x[mask] * 2, accumulate=True)

    def number(x: Tensor, mask: Tensor) -> Tensor:
        y = x * 1
        y[mask] = 7.0
        return y

    check(one_row, 1)
    check(added, 2)
    check(number, 0)  # which needs no places


def test_a_mask_that_changes_between() -> None:
    def twice(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        own = mask | (x[:, 0] > 1)
        first = x[own]
        own.logical_not_()
        return first, x[own]

    check(twice, 2)


def test_equal_counts() -> None:
    check(lambda x, mask: x[mask] + x.flip(0)[mask], 2)


def test_numbers_as_sizes() -> None:
    def begin(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = mask.sum().item()
        torch._check(count >= 0)
        torch._check(count <= x.shape[0])
        return x[:count], x[count:], torch.arange(count)

    check(begin, 0)


def test_numbers_without_an_end() -> None:
    """As a size they are refused; others need none."""

    def size(x: Tensor, mask: Tensor) -> Tensor:
        count = x.abs().sum().to(torch.int64).item()
        torch._check(count >= 0)
        return x.new_zeros(count)

    with pytest.raises(MissingKernelError, match=r"aten\.item, once, in .*: .*torch\._check"):
        lowered(Selects(size), {"x": torch.randn(6, 8), "mask": torch.ones(6) > 0}, "fp32")
    check(lambda x, mask: x * x.sum().to(torch.int64).item() + x[:, 0].max().item(), 0)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x, mask: torch.unique(x, dim=0), "unique_dim"),
        (lambda x, mask: x.repeat_interleave(mask.long(), 0), "repeat_interleave"),
    ],
)
def test_other_sizes_are_refused_with_their_modules(function: Any, name: str) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.finds = Selects(function)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.finds(x, mask) * 2  # type: ignore[no-any-return]

    words = rf"aten\.{name}.*, once, in finds \(Selects\) at test_counts\.py:\d+: the size of its"
    with pytest.raises(MissingKernelError, match=words):
        lowered(Outer(), {"x": torch.randn(6, 8), "mask": torch.ones(6) > 0}, "fp16")


def test_ends_of_numbers() -> None:
    u, s = sympy.symbols("u s", integer=True)

    def ends(lower: Any, upper: Any, *claims: Any) -> tuple[Any, Any]:
        span = SimpleNamespace(lower=sympy.sympify(lower), upper=sympy.sympify(upper))
        known = {u: [SimpleNamespace(expr=claim) for claim in claims]}
        return number_range(
            SimpleNamespace(var_to_range={u: span}, deferred_runtime_asserts=known), u
        )

    assert ends(0, 64) == (0, 64)
    assert ends(0, 64, sympy.Le(u, s), sympy.Lt(u, 2 * s)) == (0, sympy.Min(64, s, 2 * s - 1))
    assert ends(0, 64, sympy.Le(0, u - 3)) == (3, 64)
    assert ends(0, sympy.oo, sympy.Eq(s + 1, u)) == (sympy.Max(0, s + 1), s + 1)
    assert ends(0, 64, sympy.Le(2 * u, s), sympy.Le(u, s * u)) == (0, 64)  # no end by itself
    assert ends(-5, sympy.oo) == (-5, -5)
