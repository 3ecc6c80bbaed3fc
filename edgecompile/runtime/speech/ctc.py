"""Greedy decoding of a token for each frame: equal neighbours are one, and blanks are left out."""

from typing import TYPE_CHECKING, Any, Dict, List

import numpy as np

from ..base.errors import InputError, NativeError
from ..format.manifest.speech_schema import CtcSpec, SpeechSpec
from .features import open_log_mel
from .recording import normalize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle


def run_ctc(
    model: "OpenBundle", spec: SpeechSpec, ctc: CtcSpec, samples: "NDArray[np.float32]"
) -> "NDArray[np.float32]":
    """The logits [frames, vocabulary] of a recording's samples [n].

    Raises:
        InputError: there are fewer samples than the features need.
        OutsideBucketsError: no bucket takes as many samples.
        NativeError: native code reported a failure, or logits aren't finite.
    """
    if spec.log_mel is not None:
        least = 2 * spec.log_mel.hop
        if len(samples) < least:
            text = "the recording has {} samples, must have {} at least"
            raise InputError(text.format(len(samples), least))
        samples = open_log_mel(model, spec.log_mel).compute_normalized(samples)
    elif spec.normalize:
        samples = normalize(samples)
    inputs: Dict[str, Any] = {spec.input: samples[None]}
    for item in model.manifest.inputs:
        if item.name != spec.input:
            inputs[item.name] = np.ones((1, len(samples)), item.dtype)
    logits: NDArray[np.float32] = model.run(inputs)[ctc.output][0]
    if not np.isfinite(logits).all():
        raise NativeError("the model gave logits that aren't finite")
    return logits


def find_tokens(logits: "NDArray[np.float32]", blank: int) -> List[int]:
    """The tokens of a text for logits [frames, vocabulary]."""
    best = logits.argmax(axis=1)
    new = np.ones(len(best), bool)
    new[1:] = best[1:] != best[:-1]
    tokens: List[int] = best[new & (best != blank)].tolist()
    return tokens
