"""Which writes at indices may collide, and what becomes of them in generated code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import generate_cpp
from edgecompile.backends.lowering.collisions import may_collide
from edgecompile.targets.profile import load_variant

N, WIDTH = 9, 8
KINDS = ("scatter", "index_put", "index_copy", "index_fill", "put")


def zeros(*sizes: int) -> Tensor:
    return torch.zeros(sizes or (64, WIDTH))


def put(y: Tensor, indices: tuple[object, ...], values: Tensor | float) -> Tensor:
    y[indices] = values
    return y


Write = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Of x [n, 8], ids [n] and a start [].
COLLIDE: dict[str, Write] = {
    "ids": lambda x, ids, start: put(zeros(), (ids,), x),
    "sums of ids": lambda x, ids, start: put(zeros(), (ids + 1,), x),
    "remainders": lambda x, ids, start: put(zeros(), (torch.arange(x.shape[0]) % 7,), x),
    "divided": lambda x, ids, start: put(zeros(), (torch.arange(x.shape[0]) // 2,), x),
    # -1 is the last place: these reach further than there are places.
    "falling below zero": lambda x, ids, start: put(
        zeros(31, WIDTH), (torch.arange(-2, x.shape[0] - 2),), x
    ),
    "shifted below zero": lambda x, ids, start: put(
        zeros(31, WIDTH), (torch.arange(x.shape[0]) - 2,), x
    ),
    "from a length below zero": lambda x, ids, start: put(
        zeros(63, WIDTH), (torch.arange(-x.shape[0], x.shape[0]),), torch.cat([x, x])
    ),
    "shifted by the length": lambda x, ids, start: put(
        zeros(33, WIDTH), (torch.arange(2 * x.shape[0]) - x.shape[0],), torch.cat([x, x])
    ),
    "shifted by a start": lambda x, ids, start: put(
        zeros(31, WIDTH), (torch.arange(x.shape[0]) - start,), x
    ),
    "shifted by a start below zero": lambda x, ids, start: put(
        zeros(8, WIDTH), (start - 6 + torch.arange(x.shape[0]),), x
    ),
    "a start for each row, below zero": lambda x, ids, start: put(
        zeros(3, 2), (torch.arange(3)[:, None], ids[:3, None] % 2 - 2 + torch.arange(3)), x[:3, :3]
    ),
    "in steps around the end": lambda x, ids, start: put(
        zeros(8, WIDTH), (start - 7 + torch.arange(5) * 2,), x[:1] * torch.arange(5)[:, None]
    ),
    "a constant raised to zero": lambda x, ids, start: put(
        zeros(2, WIDTH), (torch.tensor([-3, -2, -1]) + 2,), x[:3]
    ),
    "down to below zero": lambda x, ids, start: put(
        zeros(31, WIDTH), (torch.arange(2, 2 - x.shape[0], -1),), x
    ),
    "one for all": lambda x, ids, start: put(zeros(), (start.expand(x.shape[0]),), x),
    "pairs": lambda x, ids, start: put(zeros(), (ids, ids % WIDTH), x[:, 0]),
    "rows with ids of their own": lambda x, ids, start: put(
        zeros(), (torch.arange(3)[:, None], torch.stack([ids % 8] * 3)), x.t()[:3]
    ),
    "sorted values": lambda x, ids, start: put(zeros(), (ids.sort().values,), x),
    "two of the same": lambda x, ids, start: put(zeros(), (torch.tensor([0, 1, 0]),), x[:3]),
    "from both ends": lambda x, ids, start: put(zeros(2, 8), (torch.tensor([0, -1, 1]),), x[:3]),
    "scatter": lambda x, ids, start: zeros().scatter(0, ids[:, None].expand(-1, WIDTH), x),
    "scatter places of another dimension": lambda x, ids, start: zeros(64, WIDTH).scatter(
        0, x.argsort(1), x
    ),
    "index_copy": lambda x, ids, start: zeros(2, 64).index_copy(1, ids, x.t()[:2]),
    "put": lambda x, ids, start: zeros().put(ids, x[:, 0]),
}
DONT: dict[str, Write] = {
    "arange": lambda x, ids, start: put(zeros(), (torch.arange(x.shape[0]),), x),
    "backwards": lambda x, ids, start: put(zeros(), (torch.arange(x.shape[0] - 1, -1, -1),), x),
    "behind the length": lambda x, ids, start: put(
        zeros(), (torch.arange(x.shape[0], 2 * x.shape[0]) + x.shape[0] // 3,), x
    ),
    "from a start": lambda x, ids, start: put(zeros(), (start + torch.arange(x.shape[0]) * 2,), x),
    "a start for each row": lambda x, ids, start: put(
        zeros(3, 64), (torch.arange(3)[:, None], ids[:3, None] + torch.arange(2)), x[:3, :2]
    ),
    "within all places": lambda x, ids, start: put(
        zeros(), (torch.arange(-x.shape[0], x.shape[0]),), torch.cat([x, x])
    ),
    "off a start": lambda x, ids, start: put(zeros(), (start - torch.arange(x.shape[0]),), x),
    "a raised constant": lambda x, ids, start: put(
        zeros(3, WIDTH), (torch.tensor([-3, -2, -1]) + 2,), x[:3]
    ),
    "argsort": lambda x, ids, start: put(zeros(), (x[:, 0].argsort(),), x),
    "topk": lambda x, ids, start: put(zeros(), (x[:, 0].topk(2).indices,), x[:2]),
    "one index apart": lambda x, ids, start: put(
        zeros(64, 64), (ids, torch.arange(x.shape[0])), x[:, 0]
    ),
    "rows of places": lambda x, ids, start: put(
        zeros(64, WIDTH), (torch.arange(x.shape[0])[:, None], x.argsort(1)), x
    ),
    "a constant": lambda x, ids, start: put(zeros(), (torch.tensor([4, 0, 2]),), x[:3]),
    "behind a dimension": lambda x, ids, start: put(
        zeros(3, 64), (slice(None), torch.arange(x.shape[0])), x.t()[:3]
    ),
    "a number": lambda x, ids, start: put(zeros(), (ids,), 2.0) + x.sum(),
    "the same at all": lambda x, ids, start: put(zeros(2, 64), (slice(None), ids), x[:2, :1]),
    "one row for all": lambda x, ids, start: put(zeros(), (ids,), x[0]),
    "index_fill": lambda x, ids, start: zeros().index_fill(0, ids, 2.0),
    "scatter a number": lambda x, ids, start: zeros().scatter(0, ids[:, None], 1.0),
    "scatter places": lambda x, ids, start: zeros(64, WIDTH).scatter(1, x.argsort(1), x),
    "scatter one each": lambda x, ids, start: zeros(64, 50).scatter(1, ids[:, None], x[:, :1]),
    "where": lambda x, ids, start: put(zeros(64), (torch.nonzero(ids[:3] >= 0)[:, 0],), x[:3, 0]),
}  # fmt: skip


def program(writes: list[Write]) -> tuple[torch.fx.GraphModule, dict[str, Tensor]]:
    class Model(nn.Module):
        def forward(self, x: Tensor, ids: Tensor, start: Tensor) -> tuple[Tensor, ...]:
            return tuple(write(x, ids, start) for write in writes)

    length = torch.export.Dim("length", min=3, max=32)
    example = {
        "x": torch.randn(N, WIDTH),
        "ids": torch.randint(0, 40, (N,)),
        "start": torch.tensor(3),
    }
    shapes = {"x": {0: length}, "ids": {0: length}, "start": None}
    exported = torch.export.export(Model(), (), example, dynamic_shapes=shapes, strict=False)
    graph = exported.module()
    lower_graph(graph)
    return graph, example


def test_what_may_collide() -> None:
    """As exported, before torch's decompositions."""
    writes = {**COLLIDE, **DONT}
    graph, _ = program(list(writes.values()))
    nodes = [
        node for node in graph.graph.nodes
        if getattr(node.target, "overloadpacket", None) is not None
        and str(node.target).split(".")[1].strip("_") in KINDS
    ]  # fmt: skip
    found = dict(zip(writes, (may_collide(graph, node) for node in nodes), strict=True))
    assert found == {name: name in COLLIDE for name in writes}


def test_only_writes_that_may_collide_leave_generated_loops() -> None:
    for writes, calls in ((COLLIDE, len(COLLIDE)), (DONT, 0)):
        graph, example = program(list(writes.values()))
        code = generate_cpp(graph, example, load_variant("x86-64-v3")).wrapper
        put_calls = code.count("aoti_torch_index_put_out(buf")
        assert put_calls + code.count("aoti_torch_cpu_scatter_src_out(buf") == calls
