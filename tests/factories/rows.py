"""A model whose rows run together and leave each other alone: what one of a batch must not do to others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

TOKENS, WIDTH = 10, 512


class Rows(nn.Module):
    """ids [batch, length] in 0..9 and x [batch, length] to "wide" [batch, length, 512], 2 KiB a token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, WIDTH)

    def forward(self, ids: Tensor, x: Tensor) -> dict[str, Tensor]:
        wide = self.table(ids) * x[..., None]
        return {"wide": wide, "sum": wide.sum(1)}


def make() -> dict[str, Any]:
    """For up to 8 rows of up to 512 tokens."""
    axes = {0: "batch", 1: "length"}
    return {
        "module": Rows().eval(),
        "inputs": {"ids": torch.randint(0, TOKENS, (1, 9)), "x": torch.randn(1, 9)},
        "axes": {"ids": axes, "x": axes},
        "limits": {"batch": (1, 8), "length": (1, 512)},
        "bounds": {"ids": (0, TOKENS - 1)},
    }
