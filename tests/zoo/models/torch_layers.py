"""Plain torch modules of the zoo over sequences: recurrent layers, attention, experts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "Chunked",
    "Conformer",
    "Experts",
    "LinearAttention",
    "ParallelGru",
    "PooledRecurrent",
    "Recurrent",
    "RotaryDecoder",
    "Seq2Seq",
    "TextCnn",
    "TorchDecoder",
    "TorchEncoder",
]

WIDTH = 32
TOKENS = 99


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
