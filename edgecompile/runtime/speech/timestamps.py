"""Chooses tokens with times among them, by Whisper's rules.

The rules and their order are those of the Hugging Face library's logits processor for timestamps.
"""

import math
from typing import TYPE_CHECKING, List, Optional

import numpy as np

from ..base.errors import NativeError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TimestampChooser:
    """Chooses the likeliest tokens of a window: times come in pairs around text, and never go back."""

    def __init__(self, first: int, eos: int, max_initial: Optional[int]) -> None:
        """``first`` is the token of the time 0, ``max_initial`` the latest time of a window's first token."""
        self._first, self._eos, self._max_initial = first, eos, max_initial
        self._tokens: List[int] = []

    def choose(self, logits: "NDArray[np.float32]") -> int:
        """The next token for logits [vocabulary], which are only read.

        Raises:
            NativeError: no logit that is left is a finite number.
        """
        first, tokens = self._first, self._tokens
        scores = logits.copy()
        scores[first - 1] = -np.inf
        last = bool(tokens) and tokens[-1] >= first
        before = len(tokens) < 2 or tokens[-2] >= first
        if last and before:
            scores[first:] = -np.inf
        elif last:
            scores[: self._eos] = -np.inf
        times = [token for token in tokens if token >= first]
        if times:
            least = times[-1] + (not last or before)
            scores[first:least] = -np.inf
        if not tokens:
            scores[:first] = -np.inf
            if self._max_initial is not None:
                scores[first + self._max_initial + 1 :] = -np.inf
        if _weigh(scores[first:]) > scores[:first].max():
            scores[:first] = -np.inf
        token = int(scores.argmax())
        if not math.isfinite(scores[token]):
            raise NativeError(
                "the model gave logits of which the largest is {}".format(scores[token])
            )
        tokens.append(token)
        return token


def _weigh(scores: "NDArray[np.float32]") -> float:
    """The score of all the tokens together: the logarithm of the sum of their exponentials."""
    most = float(scores.max())
    if not math.isfinite(most):
        return most
    return most + math.log(float(np.exp(scores.astype(np.float64) - most).sum()))
