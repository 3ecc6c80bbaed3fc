"""A small hand-written decoder over a cache that its caller owns: what a generative bundle holds.

Two layers, grouped heads, rotary positions, a sliding window in the second layer. It takes and gives
what FORMAT.md asks of a generative program, and changes its caches in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.factories.outliers import add_outliers
from tests.factories.tiny_models import seeded

VOCABULARY = 61
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 32, 4, 2, 8, 2
WINDOWS = (None, 24)
MAX_CONTEXT, LEAST_CONTEXT, LONGEST_CHUNK = 192, 64, 32
PAD = 0
CACHES = [f"cache_{layer}_{kind}" for layer in range(LAYERS) for kind in ("key", "value")]


class Layer(nn.Module):
    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.norm, self.norm_mlp = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query = nn.Linear(HIDDEN, HEADS * HEAD_DIM)
        self.key = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.value = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.up, self.down = nn.Linear(HIDDEN, 64), nn.Linear(64, HIDDEN)

    def forward(self, x: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        y = self.norm(x)
        n = x.shape[0]
        q = rotate(self.query(y).view(n, HEADS, HEAD_DIM), rows)
        keys.index_copy_(0, rows, rotate(self.key(y).view(n, KV_HEADS, HEAD_DIM), rows))
        values.index_copy_(0, rows, self.value(y).view(n, KV_HEADS, HEAD_DIM))
        columns = torch.arange(keys.shape[0])
        seen = columns[None, :] <= rows[:, None]
        if self.window is not None:
            seen = seen & (columns[None, :] > rows[:, None] - self.window)
        k, v = (t.transpose(0, 1)[None] for t in (keys, values))
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k, v, attn_mask=seen[None, None], enable_gqa=True
        )
        x = x + self.out(attended[0].transpose(0, 1).reshape(n, HEADS * HEAD_DIM))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


def rotate(x: Tensor, rows: Tensor) -> Tensor:
    """Rotary positions: halves of the head turned by an angle that grows with the row."""
    half = HEAD_DIM // 2
    speeds = 10000.0 ** (-torch.arange(half) / half)
    angles = (rows[:, None] * speeds)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer(window) for window in WINDOWS)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        position: Tensor,
        last: Tensor,
        cache_0_key: Tensor,
        cache_0_value: Tensor,
        cache_1_key: Tensor,
        cache_1_value: Tensor,
    ) -> dict[str, Tensor]:
        rows = position + torch.arange(input_ids.shape[1])
        x = self.embedding(input_ids[0]) * 3
        caches = ((cache_0_key, cache_0_value), (cache_1_key, cache_1_value))
        for layer, (keys, values) in zip(self.layers, caches, strict=True):
            x = layer(x, rows, keys, values)
        return {"logits": self.head(self.norm(x.index_select(0, last)))}


def make_caches(rows: int = MAX_CONTEXT) -> list[Tensor]:
    return [torch.zeros(rows, KV_HEADS, HEAD_DIM) for _ in CACHES]


def generate(module: nn.Module, prompt: list[int], new: int) -> list[int]:
    """Greedy tokens by the plainest loop: the whole text anew for every token, no cache kept."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(new):
            ids.append(int(logits_of(module, ids).argmax()))
    return ids[len(prompt) :]


def logits_of(module: nn.Module, ids: list[int]) -> Tensor:
    """Logits [61] behind a text, computed from nothing."""
    with torch.no_grad():
        inputs = (torch.tensor([ids]), torch.tensor([0]), torch.tensor([len(ids) - 1]))
        return module(*inputs, *make_caches(len(ids)))["logits"][0]


@seeded
def decoder() -> dict[str, Any]:
    inputs: dict[str, Tensor] = {
        "input_ids": torch.randint(1, VOCABULARY, (1, 9)),
        # Row 0 for both is right whatever the sizes are, so it is all that the build may draw.
        "position": torch.zeros(1, dtype=torch.int64),
        "last": torch.zeros(1, dtype=torch.int64),
    }
    for name in CACHES:
        inputs[name] = torch.randn(80, KV_HEADS, HEAD_DIM)
    module = Decoder()
    add_outliers(module)
    return {
        "module": module,
        "inputs": inputs,
        "axes": {"input_ids": {1: "length"}, **{name: {0: "context"} for name in CACHES}},
        "limits": {"length": (1, LONGEST_CHUNK), "context": (LEAST_CONTEXT, MAX_CONTEXT)},
        "pad": {"input_ids": PAD},
        "bounds": {"input_ids": (0, VOCABULARY - 1), "position": (0, 0), "last": (0, 0)},
    }
