"""A decoder of two layers of 256 over two texts: two length axes and batches, for `edgecompile build`.

edgecompile build benchmarks/engines/two_texts.py:make --target benchmarks/engines/h100.toml --batch 1..4 --lengths FILE
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, TOKENS = 256, 2000


class TwoTexts(nn.Module):
    """Targets [batch, length] look at sources [batch, source_length]; states [batch, length, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 1024, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        # No triu: TensorRT 8.6 takes no Trilu of bool.
        places = torch.arange(target.shape[1], device=target.device)
        mask = places[None, :] > places[:, None]
        return self.decoder(self.embed(target), self.embed(source), tgt_mask=mask)


def make() -> dict[str, Any]:
    """What a build takes; weights are random, and the same each time."""
    torch.manual_seed(0)
    return {
        "module": TwoTexts().eval(),
        "inputs": {
            "source": torch.randint(0, TOKENS, (2, 9)),
            "target": torch.randint(0, TOKENS, (2, 30)),
        },
        "axes": {
            "source": {0: "batch", 1: "source_length"},
            "target": {0: "batch", 1: "length"},
        },
        "limits": {"source_length": (1, 64), "length": (1, 128)},
        "outputs": ["states"],
    }
