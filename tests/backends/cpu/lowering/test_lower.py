"""Graph lowering: what it rewrites computes the same, and what it must not touch stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import LoweringReport, lower_graph
from edgecompile.backends.operators import ops


def lowered(
    module: nn.Module, example: dict[str, Tensor], shapes: Mapping[str, Any] | None = None
) -> tuple[torch.fx.GraphModule, LoweringReport]:
    program = torch.export.export(module.eval(), (), example, dynamic_shapes=shapes, strict=False)
    graph = program.module()
    report = lower_graph(graph)
    return graph, report


def targets(graph: torch.fx.GraphModule) -> list[object]:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (31, 7), (32, 8), (33, 5), (384, 96)])
def test_packing_is_reversible(n: int, k: int) -> None:
    weight = torch.randn(n, k)
    packed = ops.pack_weight(weight)
    assert packed.shape == (-(-n // 32), k, 32)
    assert packed.is_contiguous()
    assert torch.equal(ops.unpack_weight(packed, n, k), weight)
    # Column j of panel p is output p*32+j; columns past n are zero.
    flat = packed.transpose(1, 2).reshape(-1, k)
    assert torch.count_nonzero(flat[n:]) == 0


class Attention(nn.Module):
    """Query, key and value from one input, as encoders have it."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64, bias=bias) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        def heads(t: Tensor) -> Tensor:
            return t.view(t.shape[0], t.shape[1], 4, 16).transpose(1, 2)

        y = nn.functional.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), mask[:, None, None, :]
        )
        return self.o(y.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("bias", [True, False])
def test_query_key_value_become_one_product(bias: bool) -> None:
    module = Attention(bias)
    example = {"x": torch.randn(2, 9, 64), "mask": torch.ones(2, 9, dtype=torch.bool)}
    example["mask"][1, 5:] = False
    graph, report = lowered(module, example)
    assert (report.counts["linears"], report.counts["merged"], report.counts["attentions"]) == (
        2,
        3,
        1,
    )
    assert targets(graph).count(ops.LINEAR) == 2
    want, got = module(**example), graph(**example)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "code"),
    [
        (nn.ReLU(), "relu"),
        (nn.GELU(), "gelu_erf"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
        (nn.SiLU(), "silu"),
        (nn.Tanh(), "tanh"),
        (nn.Sigmoid(), "sigmoid"),
    ],
)
def test_activations_are_fused(activation: nn.Module, code: str) -> None:
    module = nn.Sequential(nn.Linear(12, 40), activation, nn.Dropout(0.5), nn.Linear(40, 3))
    x = torch.randn(5, 12)
    graph, report = lowered(module, {"input": x})
    assert (report.counts["linears"], report.counts["activations"]) == (2, 1)
    calls = [n for n in graph.graph.nodes if n.target is ops.LINEAR]
    assert [n.args[5] for n in calls] == [ops.ACTIVATIONS[code], 0]
    torch.testing.assert_close(graph(input=x), module(x), rtol=1e-5, atol=1e-6)


def test_an_activation_with_another_reader_of_the_linear_stays_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.f(x)
            return torch.relu(y) + y

    module, x = Both(), torch.randn(3, 8)
    graph, report = lowered(module, {"x": x})
    assert report.counts["activations"] == 0
    torch.testing.assert_close(graph(x=x), module(x))


class Conv1D(nn.Module):
    """GPT-2's form of a linear: ``addmm`` with the weight as ``[K, N]``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 10))
        self.bias = nn.Parameter(torch.randn(10))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_addmm_with_an_untransposed_weight() -> None:
    module, x = Conv1D(), torch.randn(4, 6)
    graph, report = lowered(module, {"x": x})
    assert report.counts["linears"] == 1
    assert ops.LINEAR in targets(graph)
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-6)


def test_matmul_with_a_transposed_constant() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 8)

        def forward(self, ids: Tensor) -> Tensor:
            return self.embedding(ids) @ self.embedding.weight.t()

    module, ids = Tied(), torch.tensor([[1, 2, 10]])
    graph, report = lowered(module, {"ids": ids})
    assert report.counts["linears"] == 1
    # The embedding still reads the plain weight, the product a packed copy.
    names = {str(n.target) for n in graph.graph.nodes if n.op == "get_attr"}
    assert len(names) == 2
    torch.testing.assert_close(graph(ids=ids), module(ids), rtol=1e-5, atol=1e-6)


def test_products_of_two_activations_stay() -> None:
    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a @ b

    example = {"a": torch.randn(3, 4), "b": torch.randn(4, 5)}
    graph, report = lowered(Product(), example)
    assert report.counts["linears"] == 0
    assert ops.LINEAR not in targets(graph)
    torch.testing.assert_close(graph(**example), example["a"] @ example["b"])


def test_other_dtypes_stay_with_a_reason() -> None:
    module = nn.Linear(4, 4).double()
    x = torch.randn(2, 4, dtype=torch.float64)
    graph, report = lowered(module, {"input": x})
    assert report.counts["linears"] == 0
    assert any("float64" in reason for reason in report.kept.values())
    torch.testing.assert_close(graph(input=x), module(x))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_attention_with_grouped_heads_and_causal_flag(causal: bool, groups: int) -> None:
    class Bare(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=groups > 1
            )

    example = {
        "q": torch.randn(1, 4, 7, 8),
        "k": torch.randn(1, 4 // groups, 7, 8),
        "v": torch.randn(1, 4 // groups, 7, 8),
    }
    graph, report = lowered(Bare(), example)
    assert report.counts["attentions"] == 1
    torch.testing.assert_close(graph(**example), Bare()(**example), rtol=1e-5, atol=1e-6)


def test_one_mask_serves_all_layers() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            full = (mask[:, None, None, :] > 0).expand(1, 1, 5, 5)
            attend: Callable[..., Tensor] = nn.functional.scaled_dot_product_attention
            y = attend(x, x, x, full)
            return attend(y, y, y, full)

    example = {"x": torch.randn(1, 2, 5, 8), "mask": torch.tensor([[1, 1, 1, 0, 0]])}
    graph, report = lowered(Two(), example)
    assert report.counts["attentions"] == 2
    calls = [n for n in graph.graph.nodes if n.target is ops.ATTENTION]
    assert calls[0].args[3] is calls[1].args[3]
    torch.testing.assert_close(graph(**example), Two()(**example), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("q", "kv", "attentions"), [(4, 4, 1), (4, 1, 1), (1, 4, 0)])
def test_heads_that_eager_broadcasts(q: int, kv: int, attentions: int) -> None:
    class Bare(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, v)

    heads = {"q": q, "k": kv, "v": kv}
    example = {name: torch.randn(2, count, 5, 8) for name, count in heads.items()}
    graph, report = lowered(Bare(), example)
    assert report.counts["attentions"] == attentions and len(report.kept) == 1 - attentions
    torch.testing.assert_close(graph(**example), Bare()(**example), rtol=1e-5, atol=1e-6)


def test_heads_of_keys_that_are_split_from_one_product() -> None:
    """torch says of their width that it is a symbol, whose one value is known."""

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            attended: Tensor = self.attend(q, k, k, need_weights=False)[0]
            return attended

    module, example = Cross().eval(), {"q": torch.randn(3, 4, 16), "k": torch.randn(3, 5, 16)}
    batch, length, other = (torch.export.Dim(name, max=9) for name in ("b", "l", "k"))
    shapes = {"q": {0: batch, 1: length}, "k": {0: batch, 1: other}}
    graph, report = lowered(module, example, shapes)
    assert report.counts["attentions"] == 1 and report.kept == {}
    torch.testing.assert_close(graph(**example), module(**example), rtol=1e-5, atol=1e-6)


class Block(nn.Module):
    """Sums around linears, before a norm and after it, as both kinds of transformers have them."""

    def __init__(self, affine: bool = True) -> None:
        super().__init__()
        self.up, self.down, self.out = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 32)
        self.after = nn.LayerNorm(32, elementwise_affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        y = self.after(x + self.down(nn.functional.gelu(self.up(x))))
        z: Tensor = self.out(y) + y
        return z


@pytest.mark.parametrize("affine", [True, False])
def test_residuals_and_norms_join_their_linear(affine: bool) -> None:
    torch.manual_seed(0)
    module = Block(affine)
    if affine:
        nn.init.normal_(module.after.weight)
        nn.init.normal_(module.after.bias)
    x = torch.randn(2, 5, 32)
    graph, report = lowered(module, {"x": x})
    assert (report.counts["linears"], report.counts["residuals"], report.counts["norms"]) == (
        3,
        2,
        1,
    )
    assert not {torch.ops.aten.add.Tensor, torch.ops.aten.layer_norm.default} & set(targets(graph))
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-5)


class Apart(nn.Module):
    """Sums and norms that have to stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm = nn.LayerNorm((5, 32))

    def forward(self, x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        both = self.a(x)
        scaled = torch.add(self.b(x * 2), x, alpha=2)
        return both + x, both * 2, self.b(x + 1) + row, scaled, self.norm(self.b(x * 3))


def test_sums_that_would_change_stay() -> None:
    module = Apart()
    example = {"x": torch.randn(2, 5, 32), "row": torch.randn(32)}
    graph, report = lowered(module, example)
    # Read twice, of another shape, with a factor; a norm over more than rows.
    assert (report.counts["residuals"], report.counts["norms"]) == (0, 0)
    for got, want in zip(graph(**example), module(**example), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Mutation(nn.Module):
    """The input of the linear layer changes before the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        product = self.linear(y)
        y.add_(1)
        return product + y


def test_a_product_does_not_move_past_a_change_of_its_input() -> None:
    module = Mutation()
    x = torch.randn(3, 32)
    graph, _ = lowered(module, {"x": x})
    torch.testing.assert_close(graph(x=x), module(x), rtol=1e-5, atol=1e-5)


class Repetition(nn.Module):
    """The same mask, made again for each of two attentions; noise that must differ."""

    def forward(self, q: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        results = []
        for _ in range(2):
            allowed = mask[:, None, None, :] & torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
            results.append(nn.functional.scaled_dot_product_attention(q, q, q, allowed))
        return (*results, q * 1, q * 1.0, torch.rand_like(q), torch.rand_like(q))


def test_what_is_computed_twice_is_computed_once() -> None:
    module = Repetition()
    example = {"q": torch.randn(1, 2, 6, 8), "mask": torch.tensor([[True] * 4 + [False] * 2])}
    graph, report = lowered(module, example)
    assert report.counts["equal"] >= 4
    attentions = [n for n in graph.graph.nodes if n.target is ops.ATTENTION]
    # Attentions may be random, as they may drop; their masks are one buffer.
    assert len(attentions) == 2 and len({n.args[3] for n in attentions}) == 1
    assert targets(graph).count(torch.ops.aten.rand_like.default) == 2
    scaled = [n for n in graph.graph.nodes if n.target is torch.ops.aten.mul.Tensor]
    assert len(scaled) == 2, "1 and 1.0 differ in what they make of integers"
    for got, want in zip(graph(**example)[:4], module(**example)[:4], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class ChangedMask(nn.Module):
    """Two attentions with a view of a mask that changes between them; and linears that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, q: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        base = mask * 2
        view = base.view(1, 1, 6, 6)
        before = nn.functional.scaled_dot_product_attention(q, q, q, view)
        x = q.transpose(1, 2).reshape(1, 6, 32) * 1
        a = self.first(x)
        base.sub_(100 * torch.ones(6, 6).tril(-1))
        x.add_(1)
        after = nn.functional.scaled_dot_product_attention(q, q, q, view)
        return before, after, a, self.second(x)


def test_what_changes_in_between_is_read_anew() -> None:
    module = ChangedMask()
    example = {"q": torch.randn(1, 2, 6, 16), "mask": torch.randn(6, 6)}
    graph, report = lowered(module, example)
    assert report.counts["merged"] == 0
    for got, want in zip(graph(**example), module(**example), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


#: Kinds of rewrites of convolutions.


def test_a_masked_selection_is_an_index() -> None:
    class Selects(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return torch.masked_select(x, mask) * 2

    example = {"x": torch.randn(5, 4), "mask": torch.rand(5, 1) > 0.5}
    graph, _ = lowered(Selects(), example)
    assert torch.ops.aten.masked_select.default not in targets(graph)
    assert torch.equal(graph(**example), Selects()(**example))


def test_distinct_values_and_repeated_rows_are_written_with_sorts_and_sums() -> None:
    class Distinct(nn.Module):
        def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
            found = torch.unique(x, return_inverse=True, return_counts=True)
            runs = torch.unique_consecutive(x, return_inverse=True, return_counts=True)
            return (*found, *runs, x.repeat_interleave(n, 0, output_size=7))

    example = {
        "x": torch.tensor([[3, 1], [1, 2], [2, 2], [-1, 3]]),
        "n": torch.tensor([2, 0, 4, 1]),
    }
    graph, _ = lowered(Distinct(), example)
    aten = torch.ops.aten
    written = {aten._unique2.default, aten.unique_consecutive.default}
    assert not {*written, aten.repeat_interleave.self_Tensor}.intersection(targets(graph))
    for got, want in zip(graph(**example), Distinct()(**example), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)
