"""Models that float16 or TensorRT don't bear as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Wide(nn.Module):
    """Values up to some 1e6, brought back to ordinary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8) * 0.1 + 3000)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt((x * self.weight).abs() * self.weight)


class Overflowing(nn.Module):
    """Tokens [B, L, 8] through a layer that overflows in float16 and one that doesn't: [B, L, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = Wide()
        self.narrow = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.wide(x) / 3000)


class Newer(nn.Module):
    """Operators that ONNX has since opset 18."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Mish()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x) + (x.to(torch.int64) & 3)


class Activated(nn.Module):
    """An operator that TensorRT 10 has, and 8.6 hasn't."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Mish()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


class Mixer(nn.Module):
    """Bitwise operations, of which TensorRT has none."""

    def forward(self, ids: Tensor) -> Tensor:
        return (ids ^ 5) + (ids.to(torch.int32) << 2)


class Bitwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer = Mixer()

    def forward(self, ids: Tensor) -> Tensor:
        return self.mixer(ids).float()


def _seeded(module: type[nn.Module], inputs: dict[str, Tensor], pad: float) -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        made = module()
    (name,) = inputs
    return {
        "module": made,
        "inputs": inputs,
        "axes": {name: {0: "batch", 1: "length"}},
        "pad": {name: pad},
        "limits": {"batch": (1, 2), "length": (1, 64)},
    }


def overflowing() -> dict[str, Any]:
    return _seeded(Overflowing, {"x": torch.ones(1, 12, 8)}, 0.0)


def newer() -> dict[str, Any]:
    return _seeded(Newer, {"x": torch.ones(1, 12, 8)}, 0.0)


def mish() -> dict[str, Any]:
    return _seeded(Activated, {"x": torch.ones(1, 12, 8)}, 0.0)


def bitwise() -> dict[str, Any]:
    return _seeded(Bitwise, {"ids": torch.ones(1, 12, dtype=torch.int64)}, 0)
