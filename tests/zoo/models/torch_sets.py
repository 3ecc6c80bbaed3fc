"""Plain torch modules of the zoo over sets, points, tables and windows of fixed size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "DeepSets",
    "DenseGraph",
    "Dlrm",
    "GatedMlp",
    "LatentReader",
    "NBeats",
    "SetTransformer",
    "SinField",
]

WIDTH = 32


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
