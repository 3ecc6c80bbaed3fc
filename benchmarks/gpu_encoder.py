"""A BERT-like encoder of torch's own parts, for times beside a bundle of the same sizes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WORDS, POSITIONS = 30522, 512


class Layer(nn.Module):
    """Attention with a mask of keys, and two products; each with its residual sum and norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``x`` is [batch, length, width], ``mask`` true where keys count."""
        batch, length, width = x.shape

        def split(part: torch.Tensor) -> torch.Tensor:
            return part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        found = functional.scaled_dot_product_attention(
            split(self.q(x)), split(self.k(x)), split(self.v(x)), attn_mask=mask
        )
        x = self.first(x + self.out(found.transpose(1, 2).reshape(batch, length, width)))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """Sentence embeddings: the masked mean of the last states, of length one."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(POSITIONS, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[batch, width] of the model's dtype."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.positions(places) + self.kinds.weight[0]
        x = self.norm(x)
        mask = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        weight = attention_mask.unsqueeze(-1).to(x.dtype)
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return functional.normalize(mean, dim=1)
