"""A model of operators that the native runtime doesn't have and won't: for ``--backend torch``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 6


class Spectral(nn.Module):
    """x [B, L, 6]: its covariance's spectrum, and cumulative statistics of every position.

    The operators behind it take texts, flags, integers and optional tensors, and give one result,
    two, three, or a list.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("order", torch.linspace(0.5, 2.0, WIDTH))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.tanh(self.inner(x)) * self.order
        # Its eigenvalues differ, or eigenvectors would be anything.
        covariance = y.mT @ y / 100 + torch.diag(self.order)
        values, vectors = torch.linalg.eigh(covariance)
        triangle = torch.linalg.qr(covariance)[1]
        largest, where = torch.cummax(y, dim=1)
        return {
            "spectrum": values,
            "axes": vectors.abs(),
            "triangle": triangle.abs(),
            "inverse": torch.cholesky_inverse(torch.linalg.cholesky(covariance)),
            "largest": largest,
            "where": where,
            "median": torch.mode((y * 4).round(), dim=-1).values,
            "frequencies": torch.view_as_real(torch.fft.rfft(y, dim=-1)).square().sum(-1).sqrt(),
        }


def spectral() -> dict[str, Any]:
    """See :class:`Spectral`."""
    return {
        "module": Spectral(),
        "inputs": {"x": torch.randn(1, 7, WIDTH)},
        "axes": {"x": {0: "batch", 1: "length"}},
        "max_length": 24,
    }
