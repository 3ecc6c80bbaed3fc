"""The quality of a language model's bundle: its own next tokens beside the original's, on texts.

A build judges the rounded model by the library that it comes from. Here the bundle itself runs the texts, so
the figures hold the error of its programs, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgecompile.errors import VerificationError
from edgecompile.models.language_texts import language_texts
from edgecompile.models.loaded import LoadedModel
from edgecompile.quantization.quality import Judge, Quality
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.generation.options import Options
from edgecompile.runtime.generation.session import Session
from edgecompile.runtime.generation.stream import TokenStream


def bundle_quality(bundle: Path, model: LoadedModel, *, seed: int = 0) -> tuple[str, Quality]:
    """The name of the variant that ran, and its figures on texts that the original writes.

    Args:
        bundle: a language model's bundle without an encoder.
        model: the original.
        seed: the seed of the texts.

    Raises:
        ModelError: the original fails on the texts.
        UnsupportedHostError: this machine runs no variant.
        VerificationError: the bundle fails on a text.
    """
    made = model.generation
    assert made is not None and made.logits is not None
    texts = language_texts(model, None, seed=seed)
    judge = Judge(made.logits, texts.judging, texts.source, texts.real)
    with open_bundle(str(bundle), warmup=False) as opened:
        variant = str(opened.info["variant"])
        return variant, judge.quality(_logits_of(opened.session(), str(bundle)))


def _logits_of(session: Session, name: str) -> Callable[[Tensor], Tensor]:
    """A function as ``Generation.logits``, which runs the session token by token."""

    def run(text: Tensor) -> Tensor:
        tokens = [int(token) for token in text[0]]
        rows: list[Tensor] = []

        def choose(logits: np.ndarray) -> int:
            rows.append(torch.from_numpy(logits.astype(np.float32)))
            return tokens[len(rows)]

        try:
            options = Options(max_new_tokens=len(tokens) - 1, eos=())
            request = session.request(tokens[:1], None, options)
            for _ in TokenStream(session, request, choose):
                pass
        except EdgecompileError as error:
            raise VerificationError(f"{name} fails on a text: {error.message}") from error
        # Nobody asks what follows the last token.
        return torch.stack([*rows, torch.zeros_like(rows[0])])

    return run
