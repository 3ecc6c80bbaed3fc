"""Programs rewritten for a GPU compute what they did; on the CPU, and with our kernels interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.kernels.launch import interpreted
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.backends.lowering.rewriting import LoweringReport
from edgecompile.targets.gpu import GpuFacts

ORIN = GpuFacts(87, 16, 163 << 10, 1536, 4 << 20)
_BOUNDS = {"fp32": 2e-6, "fp16": 5e-3, "bf16": 4e-2}


def lowered(
    module: nn.Module,
    example: Mapping[str, Tensor],
    precision: str,
    shapes: Mapping[str, Any] | None = None,
) -> tuple[torch.fx.GraphModule, LoweringReport]:
    with torch.no_grad():
        program = torch.export.export(
            module.eval(), (), dict(example), dynamic_shapes=shapes, strict=False
        )
    graph = program.module()
    report = lower_for_gpu(graph, ORIN, precision)
    return graph, report


def check(
    module: nn.Module,
    example: Mapping[str, Tensor],
    precision: str = "fp16",
    shapes: Mapping[str, Any] | None = None,
    *,
    interpret: bool = True,
) -> tuple[torch.fx.GraphModule, LoweringReport]:
    """Compares with eager in float32, and returns what :func:`lowered` does."""
    graph, report = lowered(module, example, precision, shapes)
    with torch.no_grad():
        want = module(**example)
        results = [graph(**example)]
        if interpret:
            with interpreted():
                results.append(graph(**example))
    for got in results:
        for one, other in zip(flat(got), flat(want), strict=True):
            assert one.dtype == other.dtype
            assert one.is_contiguous()
            scale = max(1.0, other.abs().max().item())
            assert (one - other).abs().max().item() <= _BOUNDS[precision] * scale
    return graph, report


def flat(value: Any) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, Tensor)]


def targets(graph: torch.fx.GraphModule) -> list[object]:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


class Decoder(nn.Module):
    """Grouped heads, angles made of positions, a norm in float32, a mask of float32's lowest."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.norm = nn.Parameter(torch.rand(32) + 0.5)
        self.register_buffer("frequency", 1e4 ** (-torch.arange(8) / 8), persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        wide = x.to(torch.float32)
        y = self.norm * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        positions = torch.arange(ids.shape[1], device=ids.device) + 5000
        angles = positions[:, None].to(torch.float32) * self.frequency.float()

        def heads(t: Tensor, n: int) -> Tensor:
            t = t.view(*t.shape[:2], n, 8).transpose(1, 2)
            return t * angles.cos().to(t.dtype) + t.flip(-1) * angles.sin().to(t.dtype)

        q, k, v = heads(self.q(y), 4), heads(self.k(y), 2), heads(self.v(y), 2)
        hidden = (1.0 - mask[:, None, None].to(torch.float32)) * torch.finfo(torch.float32).min
        a = nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), hidden
        )
        scores = torch.softmax(q @ k.repeat_interleave(2, 1).transpose(2, 3) + hidden, -1)
        return (
            x + a.transpose(1, 2).reshape(x.shape) + scores.mean((1, 3), keepdim=False)[..., None]
        )


def decoder_inputs() -> dict[str, Tensor]:
    mask = torch.ones(2, 19, dtype=torch.int64)
    mask[1, 11:] = 0
    return {"ids": torch.arange(38).reshape(2, 19), "mask": mask}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_decoder(precision: str) -> None:
    length = torch.export.Dim("length", min=2, max=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Decoder()
    graph, report = check(
        module, decoder_inputs(), precision, {"ids": {1: length}, "mask": {1: length}}
    )
    assert report.counts["attentions"] == 1
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    assert {p.dtype for name, p in graph.named_parameters() if name != "norm"} == {half}
    # Angles of position 5000 in float16 would be off by whole radians.
    assert graph.get_buffer("frequency").dtype == torch.float32


class RepeatedApart(nn.Module):
    """Heads repeated for their groups as transformers does it; the keys go through something else then."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def repeat(x: Tensor) -> Tensor:
            lifted = x[:, :, None].expand(*x.shape[:2], 2, *x.shape[2:])
            return lifted.reshape(x.shape[0], 4, *x.shape[2:])

        keys, values = repeat(k).tanh(), repeat(v)
        return nn.functional.scaled_dot_product_attention(q, keys, values)


def test_keys_and_values_keep_one_number_of_heads() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    _, report = check(RepeatedApart(), {"q": q, "k": k, "v": v})
    assert report.counts["attentions"] == 1


class Tied(nn.Module):
    """One table to read from and to multiply with, and one that is also read as float32."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(20, 8))
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = nn.functional.embedding(ids, self.table) * self.scale
        return x @ self.table.t(), self.scale.to(torch.float32) * 3


def test_a_constant_that_is_read_in_both_forms() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Tied()
    graph, _ = check(module, {"ids": torch.arange(6)[None]})
    names = {name: t.dtype for name, t in [*graph.named_parameters(), *graph.named_buffers()]}
    assert names["table"] == torch.float16
    assert names["scale"] == torch.float32
    assert [dtype for name, dtype in names.items() if name.startswith("ecpack_half_scale")] == [
        torch.float16
    ]


class ThreeDimensional(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)


def test_attention_without_heads() -> None:
    q, k = torch.randn(3, 9, 16), torch.randn(3, 9, 16)
    graph, _ = check(ThreeDimensional(), {"q": q, "k": k}, "fp32")
    assert torch.ops.edgecompile.gpu_attention.default in targets(graph)


def test_attention_that_the_kernel_cant_compute_is_written_out() -> None:
    class Broadcast(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, k)

    graph, report = check(
        Broadcast(), {"q": torch.randn(2, 4, 9, 16), "k": torch.randn(1, 4, 9, 16)}
    )
    assert torch.ops.aten.scaled_dot_product_attention.default not in targets(graph)
    assert list(report.kept.values()) == ["the batch sizes of query, key and value differ"]


class Encoder(nn.Module):
    """With the mask of queries and keys that transformers makes for encoders."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(x.shape[2]) + 0
        seen = mask.new_ones((), dtype=torch.bool) & (places[None, None, :, None] >= 0)
        seen = (seen & mask.to(torch.bool)[:, None, None, :]).expand(-1, 2, -1, -1)
        return nn.functional.scaled_dot_product_attention(x, x, x, seen)


def test_a_mask_of_keys_stays_one() -> None:
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    graph, _ = check(Encoder(), {"x": torch.randn(2, 2, 9, 16), "mask": mask}, "fp32")
    (node,) = graph.graph.find_nodes(
        op="call_function", target=torch.ops.edgecompile.gpu_attention.default
    )
    assert node.args[3].meta["val"].shape == (2, 1, 1, 9)


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(torch.tensor(x.shape[-1], dtype=torch.float))


def test_numbers_made_as_tensors_are_written_as_such() -> None:
    graph, _ = check(Scaled(), {"x": torch.randn(3, 9)}, interpret=False)
    assert not list(graph.graph.find_nodes(op="get_attr", target="lifted_tensor_0"))
    assert torch.ops.aten.full.default in targets(graph)


class Counts(nn.Module):
    """How many tokens each of 6 experts gets; and of numbers that lie between bins or outside."""

    def forward(self, order: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        counts = torch.histc(order.float(), bins=6, min=0, max=5)
        return counts.cumsum(0), torch.histc(x.float(), bins=7, min=-1, max=2)


def test_histograms_are_exact() -> None:
    # More than float16 can count one by one.
    order = torch.arange(5000) % 6
    length = torch.export.Dim("length", min=2, max=8192)
    example = {"order": order, "x": torch.randn(4, 50)}
    graph, report = check(
        Counts(), example, shapes={"order": {0: length}, "x": None}, interpret=False
    )
    assert report.counts["counts"] == 2
    assert torch.ops.aten.histc.default not in targets(graph)
    for n in (2, 4001):
        order = torch.randint(6, (n,))
        got, want = graph(order=order, x=example["x"]), Counts()(order, example["x"])
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


class Rows(nn.Module):
    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return torch.index_select(x, -1, places)


def test_places_are_picked() -> None:
    example = {"x": torch.randn(2, 3, 9), "places": torch.tensor([4, 0, 4])}
    graph, report = check(Rows(), example, "fp32", interpret=False)
    assert report.counts["selections"] == 1 and torch.ops.aten.index.Tensor in targets(graph)


class Step(nn.Module):
    """A decoder's step over caches that the caller owns."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList([nn.Linear(32, n, bias=False) for n in (32, 16, 16)])
        self.output = nn.Linear(32, 32)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        q, *new = (p(x)[0].view(1, -1, 8) for p in self.projections)
        whole = []
        for cache, rows in zip((keys, values), new, strict=True):
            cache.index_copy_(0, position, rows)
            whole.append(cache.transpose(0, 1)[None])
        y = torch.ops.edgecompile.ec_cached_attention(
            q.transpose(0, 1)[None], *whole, position, 0, 0.3, 0.0
        )
        return self.output(y.transpose(1, 2).reshape(1, 1, 32))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_writes_its_caches_in_place(precision: str) -> None:
    from edgecompile.export.operators import cached_attention

    assert cached_attention.CACHED_ATTENTION is not None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, x = Step(), torch.randn(1, 1, 32)
        keys, values = torch.randn(24, 2, 8), torch.randn(24, 2, 8)
    position = torch.tensor([7])

    def inputs() -> dict[str, Tensor]:
        return {"x": x, "keys": keys.clone(), "values": values.clone(), "position": position}

    graph, report = lowered(module, inputs(), precision)
    assert report.counts["attentions"] == 1
    assert report.counts["merged"] == 3
    assert report.counts["vectors"] == 2  # one row: no template of Inductor's takes it
    mine, theirs, interpreter = inputs(), inputs(), inputs()
    with torch.no_grad():
        want, got = module(**theirs), graph(**mine)
        with interpreted():
            third = graph(**interpreter)
    for y, given in ((got, mine), (third, interpreter)):
        assert (y - want).abs().max().item() <= _BOUNDS[precision] * 2
        for name in ("keys", "values"):
            assert given[name].dtype == torch.float32
            assert (given[name] - theirs[name]).abs().max().item() <= _BOUNDS[precision]
            assert torch.equal(given[name][8:], theirs[name][8:])


def test_half_precision_within_forward_is_the_build_s() -> None:
    """Regions of autocast and halves of weights compute as all else does; outputs keep their types."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8).half()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.first(x)
            z = self.second(y.half()).relu()
            return y.float(), z

    torch.manual_seed(0)
    module, x = Halves(), torch.randn(2, 9, 8)
    for precision, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
        graph, _ = lowered(
            module, {"x": x}, precision, {"x": {1: torch.export.Dim("length", min=4, max=40)}}
        )
        products = [
            n.meta["val"].dtype
            for n in graph.graph.nodes
            if n.target is torch.ops.aten.linear.default
        ]
        assert products == [dtype, dtype]
        with torch.no_grad():
            for got, want in zip(flat(graph(x=x)), module(x), strict=True):
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=0, atol=2e-2)


@pytest.mark.parametrize(
    ("activation", "merged"),
    [
        (nn.ReLU, 0), (nn.GELU, 0), (nn.SiLU, 0), (nn.Tanh, 0), (nn.Sigmoid, 0),
        (nn.ReLU6, 2), (nn.Hardswish, 2), (nn.Hardsigmoid, 2),
    ],
)  # fmt: skip
def test_linears_before_some_activations_keep_their_kernels(
    activation: type[nn.Module], merged: int
) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(32, 16), nn.Linear(32, 32), activation()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.act(self.a(x)), self.act(self.b(x))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, x = Pair(), torch.randn(4, 32)
    _, report = check(module, {"x": x}, "fp32", interpret=False)
    assert report.counts["merged"] == merged
