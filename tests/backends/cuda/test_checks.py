"""checks: a GPU's program is compared on the CPU with the graph that it was made of."""

from __future__ import annotations

import pytest

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
