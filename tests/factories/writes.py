"""A sparse vector of a text: the weight of each token at its place in the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 30_000


class Sparse(nn.Module):
    """No two positions have the same weight, so that it shows which write was the last."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(4096))

    def forward(self, ids: Tensor) -> Tensor:
        weights = torch.log1p(self.weights[: ids.shape[1]] + ids / VOCABULARY)
        return torch.zeros(ids.shape[0], VOCABULARY).scatter(1, ids, weights)


def spec() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "module": Sparse(),
        "inputs": {"ids": torch.randint(0, VOCABULARY, (1, 12))},
        "axes": {"ids": {1: "length"}},
        "limits": {"length": (1, 4096)},
        "bounds": {"ids": (0, VOCABULARY - 1)},
    }
