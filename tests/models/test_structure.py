from __future__ import annotations

import torch
from torch import Tensor, nn

from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel, model_structure


class Net(nn.Module):
    def __init__(self, width: int = 8, seed: int = 0, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(20, width)
        self.norm = nn.LayerNorm(width, eps=eps)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.norm(self.table(ids))
        return result


class Doubled(Net):
    """The same tensors, other code."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 2


def load(module: nn.Module, limit: int = 32) -> LoadedModel:
    return load_model(
        {
            "module": module,
            "inputs": {"ids": torch.ones(1, 6, dtype=torch.int64)},
            "axes": {"ids": {0: "batch", 1: "length"}},
            "limits": {"length": (1, limit)},
            "bounds": {"ids": (0, 19)},
        }
    )


def test_only_what_decides_the_cost_counts() -> None:
    known = model_structure(load(Net()))
    assert len(known) == 64
    assert model_structure(load(Net(seed=1))) == known
    assert model_structure(load(Net(), limit=64)) == known
    others = [load(Net(width=16)), load(Net(eps=1e-6)), load(Doubled())]
    assert len({known, *map(model_structure, others)}) == 4
