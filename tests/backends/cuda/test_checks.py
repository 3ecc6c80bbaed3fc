"""checks: a GPU's program is compared on the CPU with the graph that it was made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from edgecompile.backends.cuda.checks import check_graph
from edgecompile.backends.cuda.lowering.lower import lower_for_gpu
from edgecompile.errors import VerificationError
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model
from edgecompile.targets.gpu import GpuFacts
from tests.factories.half import deep_autocast


def test_torch_s_roundings_within_forward_don_t_count_against_the_program() -> None:
    exported = export_model(load_model(deep_autocast()), {"length": (1, 32)})
    sizes = [{"length": 12}, {"length": 32}]
    check, found = check_graph(exported, sizes, "fp16")
    graph = exported.program.module()
    lower_for_gpu(graph, GpuFacts(87, 16, 163 << 10, 1536, 4 << 20), "fp16")
    check(graph)
    # The graph with torch's roundings is off by more than the program without them.
    assert [item.sizes for item in found] == sizes and all(i.max_error < 1e-2 for i in found)
    with pytest.raises(VerificationError, match="differs by"):
        check(exported.program.module())


class Ranked(nn.Module):
    """Rows [N, 2] in the order of their scores [N]."""

    def forward(self, scores: Tensor, rows: Tensor) -> Tensor:
        return rows[scores.argsort(stable=True)]


def test_rows_of_nearly_equal_scores_may_come_in_either_order() -> None:
    # float16 has one number for the first and the second score.
    scores, rows = torch.tensor([1.0, 0.9999, 0.5]), torch.arange(6.0).reshape(3, 2)
    spec = {"module": Ranked(), "inputs": {"scores": scores, "rows": rows}}
    exported = export_model(load_model(spec))
    check, found = check_graph(
        exported, [{}], "fp16", lambda sizes: {"scores": scores, "rows": rows}
    )
    graph = exported.program.module()
    lower_for_gpu(graph, GpuFacts(87, 16, 163 << 10, 1536, 4 << 20), "fp16")
    want, got = (
        next(iter(module(scores=scores, rows=rows).values()))
        for module in (exported.program.module(), graph)
    )
    assert torch.equal(got[1:], want[1:].flip(0)) and torch.equal(got[0], want[0])
    check(graph)
    assert found[0].max_error == 0

    class Swapped(nn.Module):
        def forward(self, scores: Tensor, rows: Tensor) -> dict[str, Tensor]:
            return {
                name: rows[[0, 2, 1]]
                for name in exported.program.module()(scores=scores, rows=rows)
            }

    with pytest.raises(VerificationError, match="differs by"):
        check(Swapped())
