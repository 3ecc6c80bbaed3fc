"""Planning for a model: what is refused before anything is built."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from edgecompile.compilation import export_bucket
from edgecompile.errors import PlanError
from edgecompile.models import LoadedModel, load_model
from edgecompile.plan_request import require_paddable
from edgecompile.ranges import AxisRange, Bucket


class Tokens(nn.Module):
    """One vector for each token: padding can't reach the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.table(ids)
        return vectors


class Mean(Tokens):
    """Their mean, padding and all."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(1)


def load(module: nn.Module, **changes: object) -> LoadedModel:
    spec = {
        "module": module,
        "inputs": {"ids": torch.ones(1, 6, dtype=torch.int64)},
        "axes": {"ids": {0: "batch", 1: "length"}},
        "limits": {"length": (1, 32)},
        "pad": {"ids": 0},
        "bounds": {"ids": (0, 19)},
    }
    return load_model({**spec, **changes})


def test_a_model_that_padding_changes_cant_have_padded_buckets() -> None:
    require_paddable(load(Tokens()), 1, 32)
    with pytest.raises(PlanError, match="length 1 padded to 32: outputs change"):
        require_paddable(load(Mean()), 1, 32)
    with pytest.raises(PlanError, match="no pad value is known for ids"):
        require_paddable(load(Tokens(), pad={}, bounds={}), 1, 32)


def test_a_bucket_without_an_axis_of_the_model_is_refused() -> None:
    bucket = Bucket("exact", (("length", AxisRange(1, 32, 12)),))
    with pytest.raises(PlanError, match="says nothing about the axis batch"):
        export_bucket(load(Tokens()), bucket)
