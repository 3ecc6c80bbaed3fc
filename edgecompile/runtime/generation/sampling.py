"""Chooses the next token from logits, by numpy alone.

The steps and their order are those of the Hugging Face library's logits processors for
generation: repetition penalty, temperature, the k best, the nucleus of mass p. Each computes in
float32 as they do, so that the same logits leave the same tokens to choose from.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Tuple, cast

import numpy as np

from ..base.errors import NativeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Of a seed; what numpy's RandomState takes, whose numbers never change between its versions.
MAX_SEED = 2**32 - 1


class Sampling(NamedTuple):
    """The settings for choosing tokens. ``do_sample`` False: the likeliest, after the repetition penalty.

    ``temperature`` > 0; ``top_k`` 0 and ``top_p`` 1 keep every token; ``seed`` None: another
    sequence each time.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: Optional[int] = None


class Sampler:
    """Chooses the tokens of one text, one after another."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], room: int) -> None:
        """``room`` is how many tokens can be chosen at most."""
        self._sampling = sampling
        self._random = np.random.RandomState(sampling.seed) if sampling.do_sample else None
        self._ids: Optional[NDArray[np.int64]] = None
        if sampling.repetition_penalty != 1.0:
            self._ids = np.empty(len(prompt) + room, np.int64)
            self._ids[: len(prompt)] = prompt
        self._count = len(prompt)

    def choose(self, logits: "NDArray[np.float32]") -> int:
        """The next token for logits [vocabulary], which are only read.

        Raises:
            NativeError: no logit, or not the largest, is a finite number.
        """
        sampling, scores = self._sampling, logits
        if self._ids is not None:
            scores = logits.copy()
            penalize(scores, self._ids[: self._count], sampling.repetition_penalty)
        token = int(scores.argmax())
        if not math.isfinite(scores[token]):
            raise NativeError(
                "the model gave logits of which the largest is {}".format(scores[token])
            )
        if self._random is not None:
            tokens, weights = weigh(scores, sampling)
            ends = weights.cumsum()
            point = self._random.random_sample() * ends[-1]
            # Rounding might put the point onto the very end.
            index = min(int(ends.searchsorted(point, side="right")), len(tokens) - 1)
            token = int(tokens[index])
        if self._ids is not None:
            self._ids[self._count] = token
            self._count += 1
        return token

    def add(self, token: int) -> None:
        """Takes a token that wasn't chosen here as one of the text."""
        if self._ids is not None:
            self._ids[self._count] = token
            self._count += 1


def penalize(scores: "NDArray[np.float32]", ids: "NDArray[np.int64]", penalty: float) -> None:
    """Makes the tokens ``ids`` less likely, for a penalty over 1, in place.

    Positive scores are divided by it, negative ones multiplied, each token's once.
    """
    # Some models take more tokens than they give logits of.
    ids = ids[ids < len(scores)]
    values = scores[ids]
    scores[ids] = np.where(values < 0, values * np.float32(penalty), values / np.float32(penalty))


def warp(scores: "NDArray[np.float32]", sampling: Sampling) -> "NDArray[np.float32]":
    """Scores after temperature, top_k and top_p; minus infinity for tokens that are out."""
    if sampling.temperature != 1.0:
        scores = _cool(scores, sampling.temperature)
    if 0 < sampling.top_k < len(scores):
        least = np.partition(scores, len(scores) - sampling.top_k)[-sampling.top_k]
        scores = np.where(scores < least, np.float32(-np.inf), scores)
    if sampling.top_p < 1.0:
        scores = _keep_nucleus(scores, sampling.top_p)
    return scores


def weigh(
    scores: "NDArray[np.float32]", sampling: Sampling
) -> "Tuple[NDArray[np.intp], NDArray[np.float64]]":
    """The tokens that may be chosen, ascending, and their weights, of which the largest is 1."""
    warped = warp(scores, sampling)
    tokens = np.flatnonzero(warped > -np.inf)
    logits = warped[tokens].astype(np.float64)
    return tokens, np.exp(logits - logits.max())


def _cool(scores: "NDArray[np.float32]", temperature: float) -> "NDArray[np.float32]":
    """Scores divided by the temperature."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result: Any = scores / np.float32(temperature)
        if not np.isfinite(result.max()):
            # Near 0 they overflow. Their distances to the largest one do so without harm.
            least = np.finfo(np.float32).tiny
            result = (scores - scores.max()) / max(np.float32(temperature), least)
    return cast("NDArray[np.float32]", result)


def _keep_nucleus(scores: "NDArray[np.float32]", mass: float) -> "NDArray[np.float32]":
    """The likeliest tokens whose probabilities together reach ``mass``; at least one.

    Of tokens that are equally likely the later ones stay.
    """
    present = np.flatnonzero(scores > -np.inf)
    values = scores[present]
    order = values.argsort(kind="stable")
    ascending = values[order]
    weights = np.exp(ascending - ascending[-1])
    shares = weights / weights.sum(dtype=np.float32)
    # Summed in float64 and rounded, as the original's sums are on a CPU.
    below = shares.cumsum(dtype=np.float64).astype(np.float32) <= np.float32(1.0 - mass)
    below[-1] = False
    result: Any = np.full(scores.shape, -np.inf, np.float32)
    stay = present[order[~below]]
    result[stay] = scores[stay]
    return cast("NDArray[np.float32]", result)
