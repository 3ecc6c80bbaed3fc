"""Half precision within forward: what torch computes in bfloat16 and float16, rounded where it rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.native.programs.host import Host, build  # noqa: E402

WIDTH = 32


class Halves(nn.Module):
    """Regions of autocast, one within another, converted tensors, and a submodule of bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.narrow = nn.Sequential(nn.Linear(WIDTH, 48), nn.LayerNorm(48), nn.GELU()).bfloat16()
        self.conv = nn.Conv1d(WIDTH, 24, 3, padding=1)
        self.small = nn.Linear(WIDTH, 16).half()
        self.register_buffer("table", torch.randn(7, WIDTH).bfloat16())

    def forward(self, x: Tensor) -> dict[str, Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(F.gelu(self.a(x)))
            total = y.sum(1)
            with torch.autocast("cpu", enabled=False):
                plain = self.b(F.relu(self.a(x)))
            convolved = self.conv(y.transpose(1, 2))
            products = torch.bmm(y, y.transpose(1, 2)).softmax(-1)
            named = torch.einsum("bld,bmd->blm", y, x)
            joined = torch.cat([y, x], -1)
        z = x.bfloat16()
        changed = z.clone()
        changed.mul_(3).add_(z)
        best = (z * 2).topk(3, -1)
        return {
            "autocast": F.layer_norm(y.float(), (WIDTH,)),
            "sum": total.float(),
            "plain": plain,
            "convolved": convolved.float(),
            "products": products.float(),
            "named": named.float(),
            "joined": joined.float(),
            "submodule": self.narrow(z).float(),
            "float16": torch.tanh(self.small(x.half())).float(),
            "float16 result": self.small(x.half()),
            "changed": changed.float(),
            "best": best.values.float(),  # among equal ones torch takes any
            "chosen": torch.where(z > 0, z / 3, z.exp()).float(),
            "mean": z.mean(1, dtype=torch.float32),
            "table": (z @ self.table.t()).float(),
            "running": z.cumsum(1).float(),
            "rounded": x.half().float(),
        }


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q, k, v = (
                part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
            )
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).float()


def run(kind: type[nn.Module], folder: Path, lengths: tuple[int, ...]) -> Any:
    """Yields, by length, eager's results by name and the program's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = kind().eval()
    made = {
        "module": module,
        "inputs": {"x": torch.zeros(1, 9, WIDTH)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (3, 200)},
    }
    host = Host()
    built = build(kind, folder, made)
    program = host.open(built.library, built.weights)
    for length in lengths:
        x = np.random.default_rng(length).standard_normal((1, length, WIDTH)).astype(np.float32)
        with torch.no_grad():
            want = built.model(torch.from_numpy(x))
        yield want, host.run(program, x)
    host.close(program)


def test_half_precision_is_rounded_as_torch_rounds_it(tmp_path: Path) -> None:
    for want, got in run(Halves, tmp_path, (3, 17, 200)):
        for (name, expected), value in zip(want.items(), got, strict=True):
            assert value.dtype == expected.numpy().dtype, name
            a, b = value.astype(np.float64), expected.double().numpy()
            scale = np.abs(b).max()
            # A sum in another order may be rounded to the next number: seldom, and no further.
            assert np.abs(a - b).max() <= 2**-6 * scale, name
            assert (np.abs(a - b) > 1e-5 * scale).mean() < 0.01, name


def test_attention_of_half_precision(tmp_path: Path) -> None:
    """torch rounds its weights to bfloat16 too, in between; we don't."""
    for want, (got,) in run(Attending, tmp_path, (3, 150)):
        (expected,) = want.values() if isinstance(want, dict) else (want,)
        assert np.abs(got - expected.numpy()).max() <= 2**-7 * float(expected.abs().max())
