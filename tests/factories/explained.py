"""Models with one cause each why they are refused or slow; for the tests of ``edgecompile explain``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.factories.detector import OPS

WIDTH = 8


class Sixteens(nn.Module):
    """Another formula where the length is no multiple of 16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 16 == 0:
            return x * 2
        return x * 3


class Inverse(nn.Module):
    """A linear layer, then the inverse of a matrix, of which no runtime of ours has a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.solve = Solve()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.solve(self.linear(x))


class Solve(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gram = x.transpose(1, 2) @ x + torch.eye(WIDTH)
        return x @ torch.linalg.inv(gram)


class Stacked(nn.Module):
    """Products with a stack of matrices: nothing that packed weights serve. No length axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.stack = nn.Parameter(torch.randn(3, 4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(x)) @ self.stack


class Picked(nn.Module):
    """Pairs of rows that are picked by their values: only a run knows the number of rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([x[0], x[0], x[x[..., 0] > 0.5]])
        pairs = rows.unfold(0, 2, 1)
        return x + pairs.sum((0, 2))


class Averaged(nn.Module):
    """Averages over two boxes of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("regions", torch.tensor([[0.0, 1, 1, 5, 5], [0.0, 2, 2, 8, 7]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = OPS.roi_align(x, self.regions, 1.0, 2, 2, 2, True)
        return result


def _tokens(module: nn.Module) -> dict[str, Any]:
    return {
        "module": module,
        "inputs": {"x": torch.randn(1, 12, WIDTH)},
        "axes": {"x": {1: "length"}},
        "pad": {"x": 0.0},
        "max_length": 40,
    }


def sixteens() -> dict[str, Any]:
    return _tokens(Sixteens())


def inverse() -> dict[str, Any]:
    torch.manual_seed(5)
    return _tokens(Inverse())


def picked() -> dict[str, Any]:
    return _tokens(Picked())


def stacked() -> dict[str, Any]:
    torch.manual_seed(5)
    return {"module": Stacked(), "inputs": {"x": torch.randn(6, WIDTH)}}


def averaged() -> dict[str, Any]:
    return {"module": Averaged(), "inputs": {"x": torch.randn(1, 2, 9, 9)}}
