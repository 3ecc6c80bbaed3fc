"""The choice of tokens with times, against the Hugging Face library's logits processor."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import WhisperTimeStampLogitsProcessor

from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.speech.timestamps import TimestampChooser

VOCABULARY, EOS, FIRST = 60, 20, 26


@pytest.mark.parametrize("initial", [None, 0, 9])
@pytest.mark.parametrize("boost", [0.0, 2.5, -2.5])
def test_tokens_are_those_of_the_processor(initial: int | None, boost: float) -> None:
    settings = SimpleNamespace(
        no_timestamps_token_id=FIRST - 1,
        eos_token_id=EOS,
        bos_token_id=EOS,
        max_initial_timestamp_index=initial,
    )
    kinds = set()
    for seed in range(40):
        random = np.random.default_rng(seed)
        processor = WhisperTimeStampLogitsProcessor(settings, begin_index=3)  # type: ignore[arg-type]
        chooser = TimestampChooser(FIRST, EOS, initial)
        tokens = [1, 2, 3]
        for _ in range(30):
            logits = random.standard_normal(VOCABULARY).astype(np.float32)
            logits[FIRST:] += boost
            kept = logits.copy()
            scores = processor(torch.tensor([tokens]), torch.from_numpy(logits.copy())[None])
            token = int(scores[0].argmax())
            assert chooser.choose(logits) == token
            assert (logits == kept).all()
            tokens.append(token)
        kinds.add(tuple(token >= FIRST for token in tokens[3:]))
    assert len(kinds) > 5


def test_no_token_is_left() -> None:
    chooser = TimestampChooser(FIRST, EOS, None)
    logits = np.zeros(VOCABULARY, np.float32)
    logits[FIRST:] = np.nan
    with pytest.raises(NativeError, match="of which the largest is nan"):
        chooser.choose(logits)
