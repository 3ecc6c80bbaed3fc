"""Whether an encoder-decoder model in two parts says what it says as a whole: tried before compiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from edgecompile.errors import ModelError
from edgecompile.loaders.generators.attention import SOURCE_WAYS, attending
from edgecompile.loaders.generators.causal_check import compare_step
from edgecompile.loaders.generators.seq2seq_step import (
    Projections,
    Seq2SeqStep,
    SourceEncoder,
    decoder_alone,
)
from edgecompile.models.modules import describe_error

__all__ = ["find_seq2seq_step"]

_TOKENS = 24


def find_seq2seq_step(
    model: Any,
    own: str,
    encoder: SourceEncoder,
    projections: Projections,
    sources: Mapping[str, Tensor],
    max_context: int,
    pad: int,
) -> Seq2SeqStep:
    """The decoder over its caches, attending in the first way that agrees with the whole model.

    Args:
        model: the whole; ``own`` is its attention.
        encoder: its encoder with the projections.
        projections: what the decoder keeps.
        sources: inputs of the encoder.
        max_context: rows of the caches.
        pad: what a run is filled up with.

    Raises:
        ModelError: none agrees; says what went wrong in each.
    """
    count = min(_TOKENS, max_context)
    generator = torch.Generator().manual_seed(7)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    tokens = torch.randint(0, vocabulary, (1, count), generator=generator)
    problems = []
    with torch.no_grad():
        with attending(model, own):
            want = model(**sources, decoder_input_ids=tokens, use_cache=False).logits[0]
        cross = encoder(**sources)
        decoder = decoder_alone(model, projections)
        for way in SOURCE_WAYS:
            step = Seq2SeqStep(decoder, len(projections.pairs), way).eval()
            try:
                decoder.set_attn_implementation(way.attention or own)
                problem = compare_step(step, projections.caches, tokens, want, pad, cross)
            except Exception as exc:  # whatever a model raises that isn't made for this
                problem = describe_error(exc)
            if not problem:
                return step
            problems.append(problem)
    raise ModelError(
        f"{type(model).__name__} can't generate over caches that are given from outside: "
        + "; ".join(dict.fromkeys(problems)),
        hint="--task seq2seq-encoder compiles the encoder alone",
    )
