"""Whether a row of a batch changes with those beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edgecompile.buckets.ranges import AxisRange
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning.rows import why_rows_mix

AXES = {"length": AxisRange(2, 24, 9), "batch": AxisRange(1, 32, 1)}


class Rows(nn.Module):
    """[B, L, 8] through a function of them."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def load(function: Callable[[torch.Tensor], torch.Tensor]) -> LoadedModel:
    spec = {
        "module": Rows(function),
        "inputs": {"x": torch.randn(2, 5, 8)},
        "axes": {"x": {0: "batch", 1: "length"}},
        "limits": {"length": (1, 32), "batch": (1, 32)},
    }
    return load_model(spec)


def attend(x: torch.Tensor) -> torch.Tensor:
    """Across rows: who swapped two dimensions."""
    q = x.transpose(0, 1)
    return F.scaled_dot_product_attention(q, q, q).transpose(0, 1)


MIXED = {
    "norm over the batch": lambda x: F.batch_norm(
        x.transpose(1, 2), None, None, training=True
    ).transpose(1, 2),
    "attention across rows": attend,
    "sorted over the batch": lambda x: x.sort(0).values,
    "largest of all rows": lambda x: x / x.abs().amax(),
    "shifted to the next row": lambda x: x.roll(1, 0),
    "only where a row is large": lambda x: x + (x.amax() > 30) * 1.0,
}
APART = {
    "norm of a row": lambda x: F.layer_norm(x, (8,)),
    "attention within a row": lambda x: F.scaled_dot_product_attention(x, x, x),
    "sorted within a row": lambda x: x.sort(1).values,
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_change_each_other_are_found(name: str) -> None:
    assert "isn't what it is alone" in why_rows_mix(load(MIXED[name]), AXES)


@pytest.mark.parametrize("name", APART)
def test_rows_that_leave_each_other_alone_are_believed(name: str) -> None:
    assert why_rows_mix(load(APART[name]), AXES) == ""
