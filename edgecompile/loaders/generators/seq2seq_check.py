"""Whether an encoder-decoder model in two parts says what it says as a whole: tried before compiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from edgecompile.loaders.generators.attention import SOURCE_WAYS, Way, attending
from edgecompile.loaders.generators.causal_check import compare_step, first_agreeing, trial_tokens
from edgecompile.loaders.generators.seq2seq_step import (
    Projections,
    Seq2SeqStep,
    SourceEncoder,
    decoder_alone,
)

__all__ = ["find_seq2seq_step"]


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
    tokens = trial_tokens(model, max_context)
    with torch.no_grad():
        with attending(model, own):
            want = model(**sources, decoder_input_ids=tokens, use_cache=False).logits[0]
        cross = encoder(**sources)
        decoder = decoder_alone(model, projections)

        def attempt(way: Way) -> tuple[Seq2SeqStep, str]:
            step = Seq2SeqStep(decoder, len(projections.pairs), way).eval()
            decoder.set_attn_implementation(way.attention or own)
            return step, compare_step(step, projections.caches, tokens, want, pad, cross)

        hint = "--task seq2seq-encoder compiles the encoder alone"
        return first_agreeing(SOURCE_WAYS, attempt, model, hint)
