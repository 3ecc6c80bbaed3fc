"""Plain torch modules of the zoo that are made of convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "CausalConvNet",
    "ConvBlock",
    "Crnn",
    "FeaturePyramid",
    "HifiGan",
    "Mixer",
    "PointNet",
    "Residual",
    "Shuffled",
    "SqueezeExcite",
    "UNet",
    "WaveNet",
]

WIDTH = 32


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class ConvBlock(nn.Module):
    """Convolution, batch norm, activation; 1-D or 2-D."""

    def __init__(
        self,
        dims: int,
        enter: int,
        leave: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        act: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        conv, norm = (nn.Conv1d, nn.BatchNorm1d) if dims == 1 else (nn.Conv2d, nn.BatchNorm2d)
        around = dilation * (kernel - 1) // 2
        self.conv = conv(enter, leave, kernel, stride, around, dilation, groups, bias=False)
        self.norm = norm(leave)
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class SqueezeExcite(nn.Module):
    """Channels weighted by their means: [B, C, H, W] to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * self.up(F.silu(self.down(scale))).sigmoid()


class CausalConvNet(nn.Module):
    """A temporal convolutional network: dilated convolutions that look back only; [B, L, C]."""

    def __init__(self, channels: int = WIDTH, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, 3, dilation=2**i) for i in range(depth)
        )
        self.leave = nn.Linear(channels, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for index, layer in enumerate(self.layers):
            x = x + F.relu(layer(F.pad(x, (2 * 2**index, 0))))
        return self.leave(x.transpose(1, 2))


class WaveNet(nn.Module):
    """Gated dilated convolutions with skips over samples: [B, 1, L] to [B, 8, L]."""

    def __init__(self, channels: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, channels, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(depth)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(depth))
        self.leave = nn.Conv1d(channels, 8, 1)

    def forward(self, samples: Tensor) -> Tensor:
        x = self.enter(samples)
        skips = torch.zeros_like(x)
        for index, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
            a, b = gate(F.pad(x, (2**index, 0))).chunk(2, 1)
            y = mix(a.tanh() * b.sigmoid())
            x, skips = x + y, skips + y
        return self.leave(F.relu(skips))


class Mixer(nn.Module):
    """MLP-Mixer over 16 patches of an image: [B, 3, 32, 32] to [B, 10]."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, WIDTH, 8, 8)
        self.places = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)) for _ in range(depth)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * depth))
        self.leave = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.enter(images).flatten(2).transpose(1, 2)
        for index, (place, channel) in enumerate(zip(self.places, self.channels, strict=True)):
            x = x + place(self.norms[2 * index](x).transpose(1, 2)).transpose(1, 2)
            x = x + channel(self.norms[2 * index + 1](x))
        return self.leave(x.mean(1))


class PointNet(nn.Module):
    """A learned alignment, a shared MLP and the maximum over points: [B, L, 3] to [B, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.align = nn.Sequential(nn.Conv1d(3, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1), nn.ReLU())
        self.matrix = nn.Linear(32, 9)
        self.shared = nn.Sequential(
            nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1)
        )
        self.leave = nn.Linear(64, 10)

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.matrix(self.align(points.transpose(1, 2)).amax(2)).view(-1, 3, 3)
        x = self.shared(torch.bmm(points, matrix).transpose(1, 2))
        return self.leave(x.amax(2))


class UNet(nn.Module):
    """Down, across, up with a transposed convolution, joined with what was there before."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        up = nn.ConvTranspose1d if dims == 1 else nn.ConvTranspose2d
        last = nn.Conv1d if dims == 1 else nn.Conv2d
        self.first = ConvBlock(dims, 3, 16)
        self.down = ConvBlock(dims, 16, 32, stride=2)
        self.across = ConvBlock(dims, 32, 32)
        self.up = up(32, 16, 2, 2)
        self.join = ConvBlock(dims, 32, 16)
        self.leave = last(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        x = self.up(self.across(self.down(first)))
        return self.leave(self.join(torch.cat([first, x[..., : first.shape[-1]]], 1)))


class FeaturePyramid(nn.Module):
    """Three scales brought together by interpolation: [B, 3, 32, 32] to [B, 4, 16, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(ConvBlock(2, a, 16, stride=2) for a in (3, 16, 16))
        self.sides = nn.ModuleList(nn.Conv2d(16, 16, 1) for _ in range(3))
        self.leave = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        features = []
        for step in self.steps:
            images = step(images)
            features.append(images)
        x = self.sides[2](features[2])
        x = F.interpolate(x, scale_factor=2.0, mode="nearest") + self.sides[1](features[1])
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear") + self.sides[0](features[0])
        return self.leave(x)


class Shuffled(nn.Module):
    """Super-resolution by pixel shuffle: [B, 1, L, 24] to [B, 1, 2L, 48]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(16, 4, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows)


class Crnn(nn.Module):
    """Convolutions and a recurrent layer along the width of a line of text: [B, 1, 16, W]."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            ConvBlock(2, 1, 8), nn.MaxPool2d((2, 1)), ConvBlock(2, 8, 16), nn.MaxPool2d((2, 1))
        )
        self.layer = nn.GRU(64, 16, batch_first=True, bidirectional=both)
        self.leave = nn.Linear(32 if both else 16, 20)

    def forward(self, lines: Tensor) -> Tensor:
        x = self.convs(lines).flatten(1, 2).transpose(1, 2)
        return F.log_softmax(self.leave(self.layer(x)[0]), -1)


class HifiGan(nn.Module):
    """A vocoder: upsampling by transposed convolutions with residual stacks; [B, 16, L] to [B, 1, 4L]."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(16, 32, 7, padding=3)
        self.ups = nn.ModuleList(nn.ConvTranspose1d(a, a // 2, 4, 2, padding=1) for a in (32, 16))
        self.mixes = nn.ModuleList(nn.Conv1d(a, a, 3, padding=3, dilation=3) for a in (16, 8))
        self.leave = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.enter(mel)
        for up, mix in zip(self.ups, self.mixes, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = x + mix(F.leaky_relu(x, 0.1))
        return self.leave(F.leaky_relu(x)).tanh()
