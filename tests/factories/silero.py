"""Silero's voice activity detector in torch, with the weights of its package (silero-vad)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Samples of a frame at 16 kHz, those of the frame before it included.
FRAME, CONTEXT = 512, 64


class Silero(nn.Module):
    """Frames [frames, 576] of one recording to the probability of speech in each: [frames, 1].

    ``h`` and ``c`` are the LSTM's state behind the frames before these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, frames: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stft_conv(F.pad(frames[:, None], (0, CONTEXT), "reflect"))
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        x = F.relu(self.conv4(F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x))))))))
        x, (h, c) = self.lstm(x[:, :, 0][None], (h, c))
        return torch.sigmoid(self.final_conv(F.relu(x[0])[..., None]))[:, :, 0], h, c


def frames_of(sound: Tensor) -> Tensor:
    """A recording [samples] as frames, each behind the last samples of the one before it."""
    padded = F.pad(sound, (CONTEXT, 0))
    return padded.unfold(0, FRAME + CONTEXT, FRAME)


def scripted_silero(package: Path) -> Any:
    """The package's own model for 16 kHz, which is TorchScript: torch.export takes no such thing."""
    return torch.jit.load(package / "silero_vad" / "data" / "silero_vad.jit")._model


def silero(package: Path) -> dict[str, Any]:
    """The model for edgecompile; ``package`` is where silero-vad is installed."""
    model, scripted = Silero(), scripted_silero(package)
    names = {
        **{f"encoder.{i}.reparam_conv": f"conv{i + 1}" for i in range(4)},
        "decoder.decoder.2": "final_conv",
    }
    weights = {"stft_conv.weight": scripted.stft.forward_basis_buffer}
    for name, value in scripted.state_dict().items():
        part, _, kind = name.rpartition(".")
        if part == "decoder.rnn":
            weights[f"lstm.{kind}_l0"] = value
        elif part in names:
            weights[f"{names[part]}.{kind}"] = value
    model.load_state_dict(weights)
    return {
        "module": model,
        "inputs": {
            "frames": torch.randn(5, FRAME + CONTEXT) * 0.1,
            "h": torch.zeros(1, 1, 128),
            "c": torch.zeros(1, 1, 128),
        },
        "axes": {"frames": {0: "length"}},
        "max_length": 64,
        "outputs": ("speech", "h_next", "c_next"),
        "state": {"h": "h_next", "c": "c_next"},
    }
