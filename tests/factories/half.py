"""A model whose half precision alone comes to more than bfloat16's tolerance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class DeepAutocast(nn.Module):
    """Layers in a region of autocast, each rounded after its product and after its norm; x [B, L, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(24))
        )

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y: Tensor = self.layers(x)
        return y.float()


def deep_autocast() -> dict[str, Any]:
    """See :class:`DeepAutocast`."""
    torch.manual_seed(0)
    return {
        "module": DeepAutocast(),
        "inputs": {"x": torch.randn(1, 12, 16)},
        "axes": {"x": {1: "length"}},
        "max_length": 32,
    }
