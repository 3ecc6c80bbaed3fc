"""A module that compiles within seconds."""

from __future__ import annotations

import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.relu(self.first(x))))


EXAMPLE = {"x": torch.randn(1, 6, 8)}
AXES = {"x": {1: "length"}}


def program(*, dynamic: bool = True) -> torch.export.ExportedProgram:
    shapes = {"x": {1: torch.export.Dim("length", min=2, max=16)}} if dynamic else None
    return torch.export.export(Tiny().eval(), (EXAMPLE["x"],), dynamic_shapes=shapes)
