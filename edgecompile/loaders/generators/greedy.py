"""transformers' own greedy generation, which golden texts come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgecompile.loaders.folders.pretrained import import_transformers, quiet
from edgecompile.loaders.generators.attention import attending

__all__ = ["generate_greedily"]


def generate_greedily(
    model: Any,
    own: str,
    begun: Sequence[int],
    generate: Callable[[Tensor, Any], Tensor],
    **settings: Any,
) -> list[int]:
    """The tokens that follow ``begun``.

    Args:
        model: a transformers model.
        own: the attention that it came with.
        begun: tokens of the text so far.
        generate: transformers' method, given these (int64 [1, length]) and the configuration; gives
            the whole text.
        settings: further fields of the configuration.
    """
    transformers = import_transformers()
    plain = transformers.GenerationConfig(do_sample=False, num_beams=1, use_cache=True, **settings)
    # generate() fills what a configuration leaves open from the model's own.
    before, model.generation_config = model.generation_config, plain
    tokens = torch.tensor([list(begun)])
    try:
        with quiet(transformers), attending(model, own), torch.no_grad():
            found = generate(tokens, plain)
    finally:
        model.generation_config = before
    return [int(token) for token in found[0, tokens.shape[1] :]]
