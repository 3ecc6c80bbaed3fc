"""A transformer encoder with random weights for the check on a GPU, and the manifest of its plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edgecompile.runtime.format.schema import BucketSpec, Extent, Manifest, TensorSpec, Tolerance

WORDS, POSITIONS = 1000, 512


class Plain(nn.Module):
    """Nothing but torch.nn: what is taken where transformers is missing or can't be captured."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places))
        hidden = (1.0 - attention_mask.to(x.dtype))[:, None, None, :] * -10000.0
        for layer in self.layers:
            x = layer(x, hidden)
        return x


class Layer(nn.Module):
    """Attention and two products, each with its residual sum and norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + hidden
        attended = torch.softmax(scores, dim=-1) @ v
        x = self.norms[0](x + self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """The BERT of transformers, with weights of its own making."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=WORDS,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=POSITIONS,
            attn_implementation="eager",  # type: ignore[call-arg]
        )
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Encoder(nn.Module):
    """states [batch, length, width] in the model's dtype, and their masked mean in float32."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.body(input_ids, attention_mask)
        mask = attention_mask.to(torch.float32)[..., None]
        mean = (states.to(torch.float32) * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        # What is behind the end of a text means nothing; so padded and unpadded runs agree.
        return mean, states * attention_mask.to(states.dtype)[..., None]


def make_encoder(kind: str, width: int, layers: int, heads: int, device: str) -> Encoder:
    """``kind``: "bert" or "plain". In fp16 on a GPU, in fp32 on a CPU."""
    torch.manual_seed(0)
    body = Bert(width, layers, heads) if kind == "bert" else Plain(width, layers, heads)
    model = Encoder(body).eval().requires_grad_(False)
    return model.half().to(device) if device == "cuda" else model


def make_manifest(edges: list[int], width: int, mode: str, precision: str) -> Manifest:
    """Buckets that end at ``edges``, ``mode`` "exact" or "pad", for batch 1."""

    def spec(name: str, top: int) -> TensorSpec:
        return TensorSpec(name, "int64", (1, "length"), pad=0, bounds=(0, top))

    dtype = "float16" if precision == "fp16" else "float32"
    lows = [1, *[edge + 1 for edge in edges]]
    values: dict[str, Any] = {
        "variants": (),
        "probes": {},
        "weights": {},
        "golden": (),
        "files": {},
    }
    return Manifest(
        name="encoder",
        precision=precision,
        inputs=(spec("input_ids", WORDS - 1), spec("attention_mask", 1)),
        outputs=(
            TensorSpec("embedding", "float32", (1, width)),
            TensorSpec("states", dtype, (1, "length", width)),
        ),
        axes={"length": Extent(1, edges[-1])},
        length_axis="length",
        buckets=tuple(
            BucketSpec(mode, {"length": Extent(lo, hi, hi)})
            for lo, hi in zip(lows, edges, strict=False)
        ),
        tolerance=Tolerance(1e-3, 2e-2 if precision == "fp16" else 1e-4),
        **values,
    )
