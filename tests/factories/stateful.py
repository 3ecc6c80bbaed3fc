"""Models that keep a state between runs."""

from __future__ import annotations

import torch
from torch import nn

from edgecompile import ModelSpec

HIDDEN = 8


class Detector(nn.Module):
    """Voice activity of 4 features per frame [1, length]: a causal convolution before a GRU.

    Its state are the convolution's last frames, the GRU's hidden values, and the number of frames so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 6, 3)
        self.gru = nn.GRU(6, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, past: torch.Tensor, frames: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = torch.cat([past, x], 1)
        y, h = self.gru(torch.relu(self.convolution(x.transpose(1, 2))).transpose(1, 2), h)
        speech = torch.sigmoid(self.head(y)).squeeze(2)
        return speech, h, x[:, -2:].contiguous(), frames + speech.shape[1]


def start() -> torch.Tensor:
    """The hidden values that a stream begins with."""
    return torch.linspace(-1, 1, HIDDEN).reshape(1, 1, HIDDEN)


def make() -> ModelSpec:
    """The detector for chunks of 1 to 24 frames."""
    torch.manual_seed(0)
    return ModelSpec(
        module=Detector(),
        inputs={
            "x": torch.randn(1, 10, 4),
            "h": torch.randn(1, 1, HIDDEN),
            "past": torch.randn(1, 2, 4),
            "frames": torch.zeros(1, dtype=torch.int64),
        },
        axes={"x": {1: "length"}},
        max_length=24,
        outputs=("speech", "h_next", "past_next", "frames_next"),
        state={"h": "h_next", "past": "past_next", "frames": "frames_next"},
        start={"h": start()},
        bounds={"frames": (0, 1 << 40)},
    )
