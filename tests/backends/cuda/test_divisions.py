"""Quotients that decide something are exact on a GPU, as torch has them."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.needs import need_triton

PTXAS = need_triton()

from edgecompile.backends.cuda.device_free import move_to_gpu, run_inductor  # noqa: E402
from edgecompile.backends.cuda.gemm.row_tiles import TileChooser  # noqa: E402
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu  # noqa: E402
from edgecompile.targets.gpu import GpuFacts  # noqa: E402

H100 = GpuFacts(90, 114, 227 << 10, 2048, 50 << 20)


class Decides(nn.Module):
    """Quotients of a number, a size and a tensor; what is made of the last one decides nothing."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        shares = (y / x).unsqueeze(0) * 2
        changed = x.clone()
        changed /= 7
        return (
            (x / 7).ceil(),
            (x / x.shape[0]).to(torch.int64),
            shares > 0.7,
            torch.div(x, 3, rounding_mode="trunc"),
            x.reciprocal().floor(),
            changed.floor(),
            torch.histc(x, 7, 0.0, 9.1),
            (x / 11) @ y,
        )


def test_quotients_that_decide_something(tmp_path: Path) -> None:
    inputs = {"x": torch.arange(1.0, 22.0), "y": torch.arange(21.0) + 0.5}
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        Decides().eval(), (), inputs, dynamic_shapes={name: {0: length} for name in inputs}
    )
    graph = program.module()
    report = lower_for_gpu(graph, H100, "fp32")
    assert report.counts["quotients"] == 7
    left = [node for node in graph.graph.nodes if node.target is torch.ops.aten.div.Tensor]
    assert len(left) == 1
    for want, got in zip(Decides()(**inputs), graph(**inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    with torch.no_grad():
        code = run_inductor(
            move_to_gpu(graph, inputs), H100, TileChooser(H100), tmp_path / "code", PTXAS
        )
    for kernel in code.kernels:
        assert "div.rn.f32" in kernel.ptx
        # Neither an approximate quotient nor a product and a sum that are rounded once.
        assert not re.search(r"div\.full|rcp\.approx|fma\.[\w.]*f32", kernel.ptx)
