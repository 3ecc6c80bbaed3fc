"""Plain torch modules of the zoo: what people write themselves, small."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "CausalConvNet",
    "Chunked",
    "ConvBlock",
    "Conformer",
    "Crnn",
    "DeepSets",
    "DenseGraph",
    "Dlrm",
    "Experts",
    "FeaturePyramid",
    "GatedMlp",
    "HifiGan",
    "LatentReader",
    "LinearAttention",
    "Mixer",
    "NBeats",
    "ParallelGru",
    "PointNet",
    "PooledRecurrent",
    "Recurrent",
    "Residual",
    "RotaryDecoder",
    "Seq2Seq",
    "SetTransformer",
    "Shuffled",
    "SinField",
    "SqueezeExcite",
    "TextCnn",
    "TorchDecoder",
    "TorchEncoder",
    "UNet",
    "WaveNet",
]

WIDTH = 32
TOKENS = 99


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


class Recurrent(nn.Module):
    """A recurrent layer and a linear one: [B, L, C] to [B, L, 5]."""

    def __init__(self, kind: type[nn.RNNBase], both: bool = False, layers: int = 1) -> None:
        super().__init__()
        self.layer = kind(8, 16, layers, batch_first=True, bidirectional=both)
        self.leave = nn.Linear(32 if both else 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.layer(x)[0])


class PooledRecurrent(nn.Module):
    """Tokens, LSTM, mean over the real positions: [B, L] to [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 16)
        self.layer = nn.LSTM(16, 16, batch_first=True)
        self.leave = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.layer(self.embed(input_ids))[0]
        weight = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.leave((states * weight).sum(1) / weight.sum(1).clamp(min=1.0))


class TorchEncoder(nn.Module):
    """nn.TransformerEncoder over tokens with a padding mask: [B, L] to [B, L, 32]."""

    def __init__(self, before: bool = False, causal: bool = False, act: str = "relu") -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.place = nn.Parameter(torch.randn(128, WIDTH) * 0.1)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 64, activation=act, batch_first=True, norm_first=before
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.causal = causal

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.embed(input_ids) + self.place[:length]
        mask = None
        if self.causal:
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        return self.encoder(x, mask, src_key_padding_mask=attention_mask == 0)


class TorchDecoder(nn.Module):
    """nn.TransformerDecoder: targets look at a memory of a length of its own."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 64, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        length = target.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        return self.decoder(target, memory, tgt_mask=mask)


class Seq2Seq(nn.Module):
    """nn.Transformer with source and target tokens of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.body = nn.Transformer(WIDTH, 4, 1, 1, 64, batch_first=True)
        self.leave = nn.Linear(WIDTH, TOKENS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        return self.leave(self.body(self.embed(source), self.embed(target), tgt_mask=mask))


class Conformer(nn.Module):
    """Half steps, attention and gated depthwise convolution over frames [B, L, 32]."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_ConformerBlock() for _ in range(depth))

    def forward(self, frames: Tensor) -> Tensor:
        for block in self.blocks:
            frames = block(frames)
        return frames


class _ConformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))
        self.halves = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH)) for _ in range(2)
        )
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.widen = nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.narrow = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.halves[0](self.norms[0](x))
        y = self.norms[1](x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        y = F.glu(self.widen(self.norms[2](x).transpose(1, 2)), 1)
        x = x + self.narrow(F.silu(self.norm(self.depthwise(y)))).transpose(1, 2)
        return self.norms[4](x + 0.5 * self.halves[1](self.norms[3](x)))


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


class GatedMlp(nn.Module):
    """gMLP: positions are mixed by a matrix of fixed size; [B, 24, 32] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.enter, self.leave = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Conv1d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.enter(self.norm(x))).chunk(2, -1)
        return x + self.leave(u * self.mix(self.inner(v)))


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


class DeepSets(nn.Module):
    """Sum over the elements of a set: [B, L, 6] to [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(6, 32), nn.ELU(), nn.Linear(32, 32))
        self.all = nn.Sequential(nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 2))

    def forward(self, items: Tensor) -> Tensor:
        return self.all(self.each(items).sum(1) / 10)


class SetTransformer(nn.Module):
    """Induced attention, then pooling by a learned query: [B, L, 8] to [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, WIDTH)
        self.points = nn.Parameter(torch.randn(1, 4, WIDTH))
        self.seed = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.down = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.pool = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.leave = nn.Linear(WIDTH, 4)

    def forward(self, items: Tensor) -> Tensor:
        x = self.enter(items)
        size = x.shape[0]
        points, seed = self.points.expand(size, -1, -1), self.seed.expand(size, -1, -1)
        induced = self.down(points, x, x, need_weights=False)[0]
        x = x + self.up(x, induced, induced, need_weights=False)[0]
        return self.leave(self.pool(seed, x, x, need_weights=False)[0].squeeze(1))


class TextCnn(nn.Module):
    """Convolutions of several widths over embedded tokens, the maximum of each: [B, L] to [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 16)
        self.convs = nn.ModuleList(nn.Conv1d(16, 8, k) for k in (3, 4, 5))
        self.leave = nn.Linear(24, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids).transpose(1, 2)
        return self.leave(torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1))


class Dlrm(nn.Module):
    """Embedded categories and numbers, all pairs multiplied: a click's probability."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 16) for n in (50, 30, 20))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(16 + 6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        low = self.bottom(numbers)
        items = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([low, *items], 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([low, pairs[:, rows, columns]], 1)).sigmoid()


class SinField(nn.Module):
    """A field over coordinates: Fourier features, or sines as activations; [B, L, 3] to [B, L, 4]."""

    def __init__(self, fourier: bool) -> None:
        super().__init__()
        self.fourier = fourier
        self.enter = nn.Linear(3 * 12 if fourier else 3, 64)
        self.middle, self.leave = nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, points: Tensor) -> Tensor:
        if not self.fourier:
            x = torch.sin(3 * self.enter(points))
            return self.leave(torch.sin(self.middle(x)))
        scaled = torch.cat([points * 2**i for i in range(6)], -1)
        x = F.relu(self.enter(torch.cat([scaled.sin(), scaled.cos()], -1)))
        return self.leave(F.relu(self.middle(x)))


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
        found = []
        for step in self.steps:
            images = step(images)
            found.append(images)
        x = self.sides[2](found[2])
        x = F.interpolate(x, scale_factor=2.0, mode="nearest") + self.sides[1](found[1])
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear") + self.sides[0](found[0])
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


class NBeats(nn.Module):
    """Blocks that explain a part of the past and forecast: [B, 24] to [B, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 30)
            )
            for _ in range(3)
        )

    def forward(self, past: Tensor) -> Tensor:
        forecast = torch.zeros_like(past[:, :6])
        for block in self.blocks:
            back, ahead = block(past).split([24, 6], 1)
            past, forecast = past - back, forecast + ahead
        return forecast


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


class RotaryDecoder(nn.Module):
    """A decoder as people write it: RMS norm, rotary positions, grouped heads, gated MLP."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(_RotaryBlock() for _ in range(depth))
        self.norm = nn.RMSNorm(WIDTH)
        self.leave = nn.Linear(WIDTH, TOKENS, bias=False)
        self.leave.weight = self.embed.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        place = torch.arange(input_ids.shape[1], device=x.device, dtype=x.dtype)
        angle = place[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, device=x.device) / 8)
        turn = torch.cat([angle, angle], -1)
        for block in self.blocks:
            x = block(x, turn.cos(), turn.sin())
        return self.leave(self.norm(x))


class _RotaryBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.query = nn.Linear(WIDTH, 32, bias=False)
        self.keys = nn.Linear(WIDTH, 32, bias=False)
        self.mix = nn.Linear(32, WIDTH, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(WIDTH, 64),
            nn.Linear(WIDTH, 64),
            nn.Linear(64, WIDTH),
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norms[0](x)
        q = self.query(y).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.keys(y).unflatten(-1, (4, 8)).transpose(1, 2).chunk(2, 1)
        q, k = (a * cos + torch.cat([-a[..., 4:], a[..., :4]], -1) * sin for a in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.mix(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Experts(nn.Module):
    """A mixture of four experts, the best two for each token: [B, L, 32] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(WIDTH, 4)
        self.up = nn.Parameter(torch.randn(4, WIDTH, 64) * 0.1)
        self.down = nn.Parameter(torch.randn(4, 64, WIDTH) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        value, index = self.route(x).topk(2, -1)
        weight = torch.zeros(*x.shape[:2], 4, device=x.device).scatter(-1, index, value.softmax(-1))
        each = torch.einsum("blc,ecd->beld", x, self.up).relu()
        return x + torch.einsum("beld,edc,ble->blc", each, self.down, weight)


class LinearAttention(nn.Module):
    """Causal attention without softmax, by running sums: [B, L, 32] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
        scale = (q * k.cumsum(1)).sum(-1, keepdim=True)
        return x + self.mix(torch.einsum("blc,blcd->bld", q, sums) / scale)


class ParallelGru(nn.Module):
    """A GRU without the state in its gates, as a scan in logarithms: [B, L, 16] to [B, L, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.leave = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.gate(x), F.softplus(self.value(x)) + 0.1
        keep = -F.softplus(gate)
        total = keep.cumsum(1)
        states = total + torch.logcumsumexp(value.log() - F.softplus(-gate) - total, 1)
        return self.leave(states.exp())


class Chunked(nn.Module):
    """Attention within chunks of 8 positions: lengths that are no multiples are filled up."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        size, length, _ = x.shape
        more = (8 - length % 8) % 8
        q, k, v = F.pad(self.qkv(x), (0, 0, 0, more)).view(size, -1, 8, 3 * WIDTH).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        blind = torch.ones(8, 8, dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(blind, -1e9).softmax(-1) @ v
        return x + self.mix(y.reshape(size, length + more, WIDTH)[:, :length])


class DenseGraph(nn.Module):
    """Two steps over a dense graph, by mean or by attention: nodes [L, 8], edges [L, L]."""

    def __init__(self, attend: bool) -> None:
        super().__init__()
        self.attend = attend
        self.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16)])
        self.scores = nn.ModuleList([nn.Linear(16, 2), nn.Linear(16, 2)])

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        for layer, score in zip(self.layers, self.scores, strict=True):
            nodes = layer(nodes)
            if self.attend:
                a, b = score(nodes).split(1, -1)
                logits = F.leaky_relu(a + b.transpose(0, 1), 0.2)
                weight = logits.masked_fill(edges == 0, -1e9).softmax(-1)
            else:
                weight = edges / edges.sum(-1, keepdim=True).clamp(min=1.0)
            nodes = F.elu(weight @ nodes)
        return nodes


class LatentReader(nn.Module):
    """Eight learned latents read a sequence and think about it: [B, L, 32] to [B, 8, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(8, WIDTH))
        self.read = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.think = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        return self.think(latents + self.read(latents, x, x, need_weights=False)[0])
