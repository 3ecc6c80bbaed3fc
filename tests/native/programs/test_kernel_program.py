"""A compiled model of dynamic length that calls the kernels which are no matrix products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
moe = pytest.importorskip("transformers.integrations.moe")

from torch import Tensor, nn  # noqa: E402

from tests.native.programs.aoti import load_shim  # noqa: E402
from tests.native.programs.host import LENGTHS, VOCABULARY, Host, build  # noqa: E402

pytestmark = pytest.mark.slow

EXPERTS, CHOSEN, WIDTH = 4, 2, 24


class Experts(nn.Module):
    """A mixture of experts as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, 40, WIDTH) / 5)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 40) / 6)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(self.router(x).softmax(-1), CHOSEN, dim=-1)
        order, perm = torch.sort(chosen.reshape(-1))
        counts = torch.histc(order.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        offs = torch.cumsum(counts, 0, dtype=torch.int32)
        rows = x[perm // CHOSEN]
        product = torch.ops.transformers.grouped_mm_fallback
        rows = torch.relu(product(rows, self.up.transpose(-2, -1), offs=offs))
        rows = product(rows, self.down.transpose(-2, -1), offs=offs)
        rows = rows * weights.reshape(-1)[perm].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, perm // CHOSEN, rows)


class Medley(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, 12, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.experts = Experts()
        self.register_buffer("starts", torch.tensor([0, 1]))

    def forward(self, ids: Tensor) -> dict[str, Any]:
        x = self.table(ids)
        x, (_, cell) = self.lstm(x)
        x, state = self.gru(x)
        mixed = self.experts(x[0])
        counts = torch.zeros(VOCABULARY, dtype=torch.int64).scatter_add(
            0, ids[0], torch.ones_like(ids[0])
        )
        best = mixed.new_zeros(VOCABULARY, WIDTH).scatter_reduce(
            0, ids[0].unsqueeze(1).expand(-1, WIDTH), mixed, "amax", include_self=False
        )
        return {
            "mixed": mixed,
            "cell": cell,
            "state": state,
            "counts": counts,
            "best": best,
            "running": torch.cummax(mixed, 0).values,
            "products": torch.cumprod(torch.tanh(mixed) + 1, 0),
            "bag": nn.functional.embedding_bag(ids[0], self.table.weight, self.starts, mode="mean"),
        }


def test_kernels_in_a_program(tmp_path: Path) -> None:
    built = build(Medley, tmp_path)
    host = Host()
    before = load_shim().live()
    program = host.open(built.library, built.weights)
    for length in LENGTHS:
        ids = np.random.default_rng(length).integers(0, VOCABULARY, (1, length))
        got = host.run(program, ids)
        with torch.no_grad():
            wanted = built.model(torch.from_numpy(ids))
        for (name, want), have in zip(wanted.items(), got, strict=True):
            scale = 1 + float(want.abs().max())
            np.testing.assert_allclose(have, want.numpy(), rtol=0, atol=1e-5 * scale, err_msg=name)
    host.close(program)
    assert load_shim().live() == before
