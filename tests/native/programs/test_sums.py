"""Sums over long rows lose as little as torch's, whatever adds them up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.native.programs.host import Host, build  # noqa: E402

CHANNELS = 20  # no whole number of vectors


class LongSums(nn.Module):
    """Sums along rows, down columns and over both, and what is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.linspace(0.5, 1.5, CHANNELS))
        self.register_buffer("query", torch.ones(1, 1, CHANNELS))

    def forward(self, wave: Tensor) -> dict[str, Any]:
        columns = wave.unsqueeze(-1) * self.scales.to(wave.dtype)
        rows = columns.transpose(1, 2)
        centred = wave - wave.mean(-1, keepdim=True)
        return {
            "mean": wave.mean(-1),
            "centred": centred / (centred.square().mean(-1, keepdim=True) + 1e-7).sqrt(),
            "norm": wave.norm(dim=-1),
            "columns": columns.sum(1),
            "all": columns.sum(),
            "softmax": wave.softmax(-1) * wave.shape[-1],
            "layer norm": F.layer_norm(wave, (wave.shape[-1],)),
            "group norm": F.group_norm(rows, 4)[..., ::97],
            "pooled": F.adaptive_avg_pool1d(rows, 1),
            "running": wave.cumsum(-1)[:, ::97],
            "product": torch.bmm(rows, columns),
            "weighed": torch.einsum("bl,blc->bc", wave, columns),
            "attended": F.scaled_dot_product_attention(self.query.to(wave.dtype), columns, columns),
        }


def waves(length: int) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(0).standard_normal(length)
    found = {
        "constant": np.full(length, 0.1),
        "noise": noise,
        "offset": noise * 0.01 + 1,
        "far off": noise + 1000,
        "alternating": np.where(np.arange(length) % 2, 0.1, -0.1001),
        "quiet": noise * 1e-3 + 0.1,
    }
    return {name: wave[None].astype(np.float32) for name, wave in found.items()}


@pytest.fixture
def threads():
    host = Host()
    before, torch_before = host.native.ec_get_num_threads(), torch.get_num_threads()

    def set_threads(count: int) -> None:
        host.native.ec_set_num_threads(count)
        torch.set_num_threads(count)

    yield set_threads
    host.native.ec_set_num_threads(before)
    torch.set_num_threads(torch_before)


def test_long_sums_lose_as_little_as_torch_does(tmp_path: Path, threads) -> None:
    made = {
        "module": LongSums().eval(),
        "inputs": {"wave": torch.zeros(1, 1000)},
        "axes": {"wave": {1: "length"}},
        "limits": {"length": (200, 1_000_000)},
    }
    host = Host()
    built = build(LongSums, tmp_path, made)
    program = host.open(built.library, built.weights)
    worse = []
    for length in (100_003, 480_000):
        for kind, wave in waves(length).items():
            x = torch.from_numpy(wave)
            with torch.no_grad():
                exact = built.model(x.double())
            for count in (1, 2):
                threads(count)
                with torch.no_grad():
                    eager = built.model(x)
                for (name, true), got in zip(exact.items(), host.run(program, wave), strict=True):
                    want, scale = true.numpy(), float(true.abs().max())
                    if name == "mean" and got != want.astype(np.float32):
                        worse.append(f"the mean isn't the nearest float: {kind}, {length}, {count}")
                    if kind == "constant" and name == "centred":
                        continue  # nothing but rounding, magnified
                    if kind == "constant" and name == "layer norm":
                        if got.any():
                            worse.append(f"{name} of a constant isn't 0: {length}, {count}")
                        continue
                    lost = float(np.abs(got - want).max()) / scale
                    torchs = float(np.abs(eager[name].numpy() - want).max()) / scale
                    if lost > 4 * torchs + 1e-6:
                        worse.append(f"{name}, {kind}, {length}, {count}: {lost:.1e}, {torchs:.1e}")
    host.close(program)
    assert worse == []


class Norms(nn.Module):
    """Norms over few values: after a linear layer, which a kernel computes, and before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(1, 37), nn.LayerNorm(37)
        self.groups = nn.GroupNorm(3, 9)
        self.linear.requires_grad_(False)
        self.linear.weight.fill_(1.0)
        self.linear.bias.zero_()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        rows = x.unsqueeze(-1).expand(-1, -1, 9) * 1.0
        return {
            "after": self.norm(self.linear(x.unsqueeze(-1))),
            "before": self.linear(self.norm(x.unsqueeze(-1).expand(-1, -1, 37) * 1.0)[..., :1]),
            "groups": self.groups(rows.transpose(1, 2)),
            "plane": F.layer_norm(rows, (9,)),
        }


def test_norms_of_equal_values_are_zero(tmp_path: Path) -> None:
    """torch gives 0 there; a mean that is off by a rounding gives 0.02 at 1000.7."""
    made = {
        "module": Norms().eval(),
        "inputs": {"x": torch.zeros(1, 10)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (2, 100)},
    }
    host = Host()
    built = build(Norms, tmp_path, made)
    program = host.open(built.library, built.weights)
    for value in (0.1, 0.3, 7.3, -3.14159, 1000.7, 1e-3, 3e7):
        for length in (2, 7, 48, 100):
            x = np.full((1, length), value, np.float32)
            for name, got in zip(
                ("after", "before", "groups", "plane"), host.run(program, x), strict=True
            ):
                assert not got.any(), (name, value, length)
    x = np.random.default_rng(0).standard_normal((1, 50)).astype(np.float32)
    with torch.no_grad():
        want = built.model(torch.from_numpy(x))
    for (name, value), got in zip(want.items(), host.run(program, x), strict=True):
        np.testing.assert_allclose(got, value.numpy(), atol=2e-5, err_msg=name)
    host.close(program)


def test_the_hint_of_a_length_makes_no_sum_a_short_one(tmp_path: Path) -> None:
    """Inductor compares the steps of a crop with the length, and believes from then on that it is below 1,000."""

    class Cropped(nn.Module):
        def forward(self, wave: Tensor) -> tuple[Tensor, ...]:
            return wave.mean(-1), wave.cumsum(-1)[:, ::1000]

    made = {
        "module": Cropped().eval(),
        "inputs": {"wave": torch.zeros(1, 720)},
        "axes": {"wave": {1: "length"}},
        "limits": {"length": (200, 480_000)},
    }
    host = Host()
    built = build(Cropped, tmp_path, made)
    program = host.open(built.library, built.weights)
    wave = waves(480_000)["constant"]
    mean, _ = host.run(program, wave)
    host.close(program)
    assert mean[0] == pytest.approx(float(wave[0, 0]), rel=3e-7)


def test_infinities_stay_what_they_are(tmp_path: Path) -> None:
    """Of an infinite sum there is no loss to be added."""

    class Sums(nn.Module):
        def forward(self, wave: Tensor) -> tuple[Tensor, ...]:
            return wave.sum(-1), (wave.unsqueeze(-1) * torch.ones(CHANNELS)).sum(1)

    made = {
        "module": Sums().eval(),
        "inputs": {"wave": torch.zeros(1, 1000)},
        "axes": {"wave": {1: "length"}},
        "limits": {"length": (200, 4000)},
    }
    host = Host()
    built = build(Sums, tmp_path, made)
    program = host.open(built.library, built.weights)
    infinity = float("inf")
    for at, values, want in (
        ([3], [infinity], infinity),
        ([3, 900], [-infinity, -infinity], -infinity),
        ([999], [-infinity], -infinity),
        ([3, 900], [infinity, -infinity], float("nan")),
        ([500], [float("nan")], float("nan")),
    ):
        wave = np.ones((1, 1000), np.float32)
        wave[0, at] = values
        for got in host.run(program, wave):
            np.testing.assert_array_equal(got, np.full_like(got, want))
    host.close(program)
