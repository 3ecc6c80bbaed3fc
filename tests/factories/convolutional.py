"""A model of small convolutional parts, each as a family of models has it, side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

CHANNELS = 8


def _norms_with_statistics(module: nn.Module) -> None:
    """Batch norms that a fold can't leave out unnoticed."""
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(part.weight, 1, 0.3)
            nn.init.normal_(part.bias)
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.3, 2)  # type: ignore[arg-type]


class Frontend(nn.Module):
    """wav2vec2: strided convolutions, group norm, and a grouped convolution for positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(CHANNELS, 32, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(32, 32)
        self.second = nn.Conv1d(32, 48, 2, stride=1, padding=1)
        self.positions = weight_norm(nn.Conv1d(48, 48, 8, padding=4, groups=4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.norm(self.first(x)))))
        return x + F.gelu(self.positions(x)[:, :, :-1])


class Conformer(nn.Module):
    """The convolution module: pointwise, GLU, depthwise, batch norm, pointwise, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(CHANNELS)
        self.first = nn.Conv1d(CHANNELS, 64, 1)
        self.depthwise = nn.Conv1d(32, 32, 5, padding="same", groups=32, bias=False)
        self.batch_norm = nn.BatchNorm1d(32)
        self.second = nn.Conv1d(32, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        z = F.glu(self.first(self.norm(y).transpose(1, 2)), 1)
        z = F.silu(self.batch_norm(self.depthwise(z)))
        return y + self.second(z).transpose(1, 2)


class Causal(nn.Module):
    """Mamba's depthwise convolution, and a dilated causal one behind padding."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(CHANNELS, CHANNELS, 4, padding=3, groups=CHANNELS)
        self.dilated = nn.Conv1d(CHANNELS, 20, 3, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.depthwise(x)[..., : x.shape[-1]])
        return torch.tanh(self.dilated(F.pad(x, (4, 0))))


class Residual(nn.Module):
    """ResNet: a stem with pooling, a block with batch norms and a strided pointwise shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, stride=(1, 2), padding=1)
        self.a = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False)
        self.b = nn.Conv2d(24, 24, 3, padding=1, groups=3, bias=False)
        self.short = nn.Conv2d(16, 24, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (16, 24, 24, 24))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norms[0](self.stem(x[:, None])))
        x = F.max_pool2d(x, 3, 1, 1)
        y = self.norms[2](self.b(self.relu(self.norms[1](self.a(x)))))
        y += self.norms[3](self.short(x))
        return self.relu(y).mean((2, 3))


class Separable(nn.Module):
    """ConvNeXt and MobileNet: depthwise, norm over channels, and linears as convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Conv2d(1, 12, 1)
        self.depthwise = nn.Conv2d(12, 12, (7, 3), padding=(3, 1), groups=12)
        self.norm = nn.LayerNorm(12)
        self.wide = nn.Linear(12, 48)
        self.narrow = nn.Linear(48, 12)
        self.last = nn.Conv2d(12, 6, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.up(x[:, None]))
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        x = x + self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return F.relu(self.last_norm(self.last(x)))


class Upsampling(nn.Module):
    """Vocoders and decoders of images: transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.ConvTranspose1d(CHANNELS, 12, 5, stride=2, padding=1, output_padding=1)
        self.image = nn.ConvTranspose2d(1, 5, (4, 3), stride=(2, 1), padding=1)
        self.grouped = nn.ConvTranspose1d(12, 12, 4, stride=3, groups=12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.grouped(F.leaky_relu(self.line(x), 0.1)), F.relu(self.image(x[:, None]))


class Computed(nn.Module):
    """Weights that are computed from the input, and another dtype: torch's own operator."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv1d(CHANNELS, 3, 3, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        weight = torch.softmax(x.mean((0, 2)), 0)
        line = F.conv1d(x, weight.view(CHANNELS, 1, 1).expand(CHANNELS, CHANNELS, 3), padding=1)
        image = F.conv2d(x[:, None], weight.view(2, 1, 2, 2), stride=(2, 1))
        return line * 2, image.relu(), F.conv1d(x.double(), self.wide.weight.double()).float()


class Parts(nn.Module):
    """x [B, 8, L] through each part; one output or several for each."""

    def __init__(self) -> None:
        super().__init__()
        self.frontend, self.conformer, self.causal = Frontend(), Conformer(), Causal()
        self.residual, self.separable = Residual(), Separable()
        self.upsampling, self.computed = Upsampling(), Computed()
        _norms_with_statistics(self)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        line, image = self.upsampling(x)
        dynamic, strided, wide = self.computed(x)
        frames = x.transpose(1, 2)
        return {
            "frontend": self.frontend(x),
            "conformer": self.conformer(x),
            "causal": self.causal(x),
            "residual": self.residual(frames),
            "separable": self.separable(frames),
            "line": line,
            "image": image,
            "dynamic": dynamic,
            "strided": strided,
            "wide": wide,
        }


def parts() -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module, x = Parts(), torch.randn(2, CHANNELS, 20)
    return {
        "module": module,
        "inputs": {"x": x},
        "axes": {"x": {0: "batch", 2: "length"}},
        "limits": {"length": (4, 64)},
    }
