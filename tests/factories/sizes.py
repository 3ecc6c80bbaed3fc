"""Models that compute with the length itself: what sampled lengths alone would not show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LONGEST = 130
TABLE = [float(i * 37 % 11) for i in range(LONGEST + 1)]


class OfLength(nn.Module):
    """[B, L, 4] through a layer, then whatever ``compute`` makes of that and of the input."""

    def __init__(self, compute: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(LONGEST + 1.0) * 0.5)
        self.register_buffer("short", torch.arange(80.0).reshape(20, 4))
        self.by_length = dict(enumerate(TABLE))
        self.compute = compute

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, self.layer(x), x)


def numbers(x: Tensor) -> Tensor:
    """Arithmetic on the length alone, one number each: [16]."""
    n = x.shape[1]
    values = (
        n % 7,
        n // 3,
        (20 - n) % 7,
        (20 - n) // 7,
        n / 7,
        (n * 0.3) // 1,
        n**-0.5,
        n * n * n % 1009,
        n & 5,
        (n >> 2) + (n << 1),
        math.floor((n - 20) / 7),
        math.ceil((n - 30) * 0.3),
        math.trunc((n - 20) * 0.3),
        round(n / 2),
        round((n - 20) * 0.25),
        x.numel() % 28,
    )
    return torch.cat([torch.full((1,), value, dtype=torch.float32) for value in values])


def everything(model: Any, y: Tensor, x: Tensor) -> dict[str, Tensor]:
    """A model that is exact at every length, as one program."""
    n = x.shape[1]
    is_third = torch.tensor(n) % 7 == 3
    wide = torch.full((n,), n, dtype=torch.int64)
    narrow = torch.arange(n, dtype=torch.int32)
    for _ in range(12):
        wide = wide * n  # leaves 64 bits at a length of 29
    for _ in range(4):
        narrow = narrow * (narrow + 1)  # leaves 32 bits
    return {
        "numbers": numbers(x),
        "chosen": torch.where(is_third, y * 2, y) + model.table[n],
        "sliced": y + model.table[:n].reshape(1, -1, 1),
        "wrapped": wide % 1009 + narrow % 1000,
        "rolled": y.roll(n // 3, 1) / n,
        # A factor of 1.3 makes as many positions of 2 and of 3.
        "stretched": F.interpolate(x.transpose(1, 2), scale_factor=1.3, mode="linear"),
        "surface": F.interpolate(
            x.transpose(1, 2).reshape(x.shape[0], 2, 2, -1),
            scale_factor=(1.4, 1.26),
            mode="bilinear",
        ),
    }


def branch(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * 2 if x.shape[1] % 7 == 3 else y


def threshold(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y - y.mean(1, keepdim=True) if x.shape[1] > 37 else y


def as_number(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * float(x.shape[1] > 37)


def from_list(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y + TABLE[x.shape[1]]


def from_dict(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y + model.by_length[x.shape[1]]


def from_short_buffer(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y + model.short[: x.shape[1]]


def smallest(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y[:, : min(x.shape[1], 37)] * max(x.shape[1], 20)


def root(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y / math.sqrt(x.shape[1]) + int(math.sqrt(x.shape[1])) + int(x.shape[1] * 0.3)


def logarithm(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * math.log2(x.shape[1] + 1)


def loop(model: Any, y: Tensor, x: Tensor) -> Tensor:
    for index in range(x.shape[1] // 16):
        y = y + index * x
    return y


def blocks(model: Any, y: Tensor, x: Tensor) -> Tensor:
    filled = F.pad(x, (0, 0, 0, -x.shape[1] % 8))
    return filled.reshape(x.shape[0], -1, 8, 4).sum(2)


def halves(model: Any, y: Tensor, x: Tensor) -> Tensor:
    first, second = y.chunk(2, 1)
    return first[:, : second.shape[1]] + second


def thirds(model: Any, y: Tensor, x: Tensor) -> Tensor:
    first, _, third = y.chunk(3, 1)
    return first[:, : third.shape[1]] + third


def both_axes(model: Any, y: Tensor, x: Tensor) -> Tensor:
    batch, n = x.shape[:2]
    return y * (n % batch + batch // 2) + min(n, 3 * batch) + (n * batch) % 5


def batch_branch(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * 2 if x.shape[0] > 2 else y


def pooled(model: Any, y: Tensor, x: Tensor) -> Tensor:
    # As a saved program has it: torch.nn.functional's own is exported as other operators.
    return torch.ops.aten.adaptive_avg_pool1d.default(x.transpose(1, 2), 5)


def rewritten(model: Any, y: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """What torch alone would fix the length by; see edgecompile/export/rewrites."""
    n, z = x.shape[1], y.transpose(1, 2)
    shaped = torch.hann_window(n) + torch.kaiser_window(n) + torch.linspace(-1, 1, n)
    z = z * shaped * math.log(n + 1, 64) / math.sqrt(n) + max(0.5, math.log1p(n))
    first, second = torch.triu_indices(n, n)
    pairs = (z[..., first] * z[..., second]).amax(-1)
    largest, where = F.adaptive_max_pool1d(z, 5, return_indices=True)
    columns = F.adaptive_avg_pool2d(z[:, None], (3, 7)).flatten(1)
    pooled = F.max_pool1d(z, 3, 1, 1)
    return pairs, largest, where, columns, pooled, F.interpolate(z, scale_factor=2, mode="linear")


def to_digits(model: Any, y: Tensor, x: Tensor) -> Tensor:
    return y + round(x.shape[1] * 0.137, 1)


def spec(
    compute: Callable[[Any, Tensor, Tensor], Any] = everything, batch: int = 1
) -> dict[str, Any]:
    """The specification that a factory returns for one of these."""
    torch.manual_seed(0)
    axes = {1: "length"} if batch == 1 else {0: "batch", 1: "length"}
    return {
        "module": OfLength(compute).eval(),
        "inputs": {"x": torch.randn(batch, 16, 4)},
        "axes": {"x": axes},
        "limits": {"length": (1, LONGEST), **({"batch": (1, batch)} if batch > 1 else {})},
        "name": compute.__name__,
    }


def rewritten_spec() -> dict[str, Any]:
    return spec(rewritten)


def picture() -> dict[str, Any]:
    """A network of one size: 1 × 3 × 8 × 8, and five numbers out."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)]
    return {"module": nn.Sequential(*layers), "inputs": (torch.randn(1, 3, 8, 8),)}
