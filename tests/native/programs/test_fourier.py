"""Compiled programs that transform along a dynamic length, against eager."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from tests.native.programs.host import LENGTHS, LONGEST, VOCABULARY, Host, build  # noqa: E402

WIDTH, MODES = 6, 3


class StateSpace(nn.Module):
    """A recurrence as one convolution by Fourier transforms, and a layer that weights coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.decay = nn.Parameter(-torch.rand(WIDTH))
        self.weights = nn.Parameter(torch.randn(WIDTH, WIDTH, MODES, dtype=torch.cfloat))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        u = self.table(ids).transpose(1, 2)
        length = u.shape[-1]
        kernel = torch.exp(self.decay[:, None] * torch.arange(length))
        product = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(product, n=2 * length)[..., :length]
        coefficients = torch.fft.rfft(u, n=2 * length, norm="ortho")
        kept = torch.zeros_like(coefficients)
        kept[..., :2] = torch.einsum("bcl,cdl->bdl", coefficients[..., :2], self.weights[..., :2])
        return {
            "y": y,
            "weighted": torch.fft.irfft(kept, n=2 * length + 1, norm="ortho"),
            "same": torch.fft.irfft(torch.fft.rfft(y), n=length),
            "spectrum": torch.fft.fft2(y).abs(),
            "rows": torch.fft.irfft2(torch.fft.rfft2(u, norm="ortho"), s=(WIDTH, length)),
        }


@pytest.mark.slow
def test_transforms_of_a_program(tmp_path: Path) -> None:
    built = build(StateSpace, tmp_path)
    host = Host()
    program = host.open(built.library, built.weights)
    for length in (*LENGTHS, 3, 64, LONGEST - 1):
        ids = np.random.default_rng(length).integers(0, VOCABULARY, (1, length))
        with torch.no_grad():
            want = built.model(torch.from_numpy(ids))
        for (name, x), y in zip(want.items(), host.read(host.start(program, ids)), strict=True):
            largest = x.abs().max().item()
            np.testing.assert_allclose(y, x.numpy(), rtol=0, atol=4e-6 * largest, err_msg=name)
    host.native.ec_program_close(program)
