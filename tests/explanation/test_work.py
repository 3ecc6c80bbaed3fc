"""Floating-point operations and bytes of a graph, counted, and what of them binds on a target."""

from __future__ import annotations

import torch

from edgecompile.backends.operators import ops
from edgecompile.explanation.work import Limits, count_graph, limits_of
from edgecompile.targets.profile import load_target


def test_flops_and_bytes_of_a_small_graph_are_as_counted_by_hand() -> None:
    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(8, 64)
            self.down = torch.nn.Linear(64, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.exp(x) + 1
            return self.down(self.up(y) * 2)

    x = torch.randn(10, 8)
    program = torch.export.export(Small().eval(), (), {"x": x})
    gm = program.module()
    work = count_graph(gm, {"x": x})
    assert sum(item.flops for item in work) == 2 * 10 * 8 * 64 * 2
    weights = sum(item.weights for item in work)
    assert weights == 4 * (8 * 64 + 64 + 64 * 8 + 8)
    # exp's result lives in the fused loop alone; what the products read and write is in memory.
    rows = {"x": 4 * 80, "y": 4 * 80, "wide": 4 * 640, "twice": 4 * 640, "out": 4 * 80}
    fused = rows["x"] + 2 * rows["y"] + 2 * rows["wide"] + 2 * rows["twice"] + rows["out"]
    assert sum(item.moved for item in work) == weights + fused


def test_views_move_nothing_and_lookups_read_their_rows() -> None:
    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(1000, 16)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids).transpose(0, 1).reshape(16, 5)

    ids = torch.arange(5)
    program = torch.export.export(Rows().eval(), (), {"ids": ids})
    by_name = {item.node.name: item for item in count_graph(program.module(), {"ids": ids})}
    assert by_name["embedding"].weights == 5 * 16 * 4
    assert by_name["transpose"].moved == 0


def test_rows_of_a_packed_weight_are_a_lookup() -> None:
    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.packed = torch.nn.Buffer(ops.pack_weight(torch.randn(1000, 16)))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = ops.PACKED_ROWS(self.packed, ids, 1000, 16)
            return rows

    ids = torch.arange(5)
    program = torch.export.export(Rows().eval(), (), {"ids": ids})
    by_name = {item.node.name: item for item in count_graph(program.module(), {"ids": ids})}
    assert by_name["ec_packed_rows"].weights == 5 * 16 * 4


def test_every_operator_of_ours_can_be_counted() -> None:
    names = {operator.__name__.partition(".")[0] for operator in ops.C_SHIMS}
    assert names == set(ops.IMPLEMENTATIONS)


def test_what_binds_depends_on_the_target() -> None:
    limits = Limits(flops=1e9, bandwidth=1e8)
    assert limits.seconds(2e9, 1e7) == 2.0
    assert limits.seconds(1e6, 1e8) == 1.0
    jetson = limits_of(load_target("jetson-orin-nano"), "fp32")
    assert jetson is not None and jetson.flops > limits.flops
