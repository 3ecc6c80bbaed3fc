"""What narrow weights do to a language model: how far its next tokens' probabilities move on texts.

The model with rounded weights and the original run the same texts by the library that the model comes
from, both in float64 where they can. So the figures are the precision's error, whatever runs the bundle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from edgecompile.errors import ModelError, VerificationError
from edgecompile.models.double import run_in_float64
from edgecompile.models.modules import describe_error
from edgecompile.precision import MOST_PERPLEXITY_RATIO

#: By how much the perplexity may grow, by precision. Q8_0 of llama.cpp is at 1.0002 to 1.002, Q4_K_M at 1.03
#: to 1.06. bf16 keeps as many bits of a weight as int8 of its block's largest one, or more of others.
MAX_PERPLEXITY_RATIOS: Mapping[str, float] = {"bf16": 1.002, "int8": 1.002, "int4": 1.06}
#: A ratio counts as over its bound where that is so by more than this many of its standard errors.
_ERRORS = 2.0
#: Of the ratio's logarithm: what the mean divergence may be. SmolLM2-135M in int8, rounded to the nearest, has a
#: ratio of 1.0015 and a divergence of 0.0025 on technical prose, 1.7 times as much.
_DIVERGENCES = 2.5
#: Of the user's texts: with fewer, one unlucky word decides.
_FEW_POSITIONS = 200
_MOST_NUMBERS = 1 << 28


@dataclass(frozen=True)
class Quality:
    """A language model with narrow weights beside the original, on next tokens of texts.

    Attributes:
        mean_kl, p99_kl: mean and 99th percentile of the divergence KL(original, narrow) of the next token's
            probabilities, in nats.
        perplexity_ratio: the narrow model's perplexity divided by the original's.
        ratio_error: standard error of the logarithm of that ratio.
        top1: the share of positions where both find the same token most likely.
        tokens: the number of positions.
        texts: the texts, in words.
        real: whether the texts are the user's.
        reference: the reference of the comparison, in words.
        bound: the largest ratio that was allowed; None: nothing was asked for yet.
        matrices: the number of matrices in each precision, the widest first; {}: it isn't known.
        caches_alone: whether only keys and values were rounded, whatever the weights of the bundle are.
    """

    mean_kl: float
    p99_kl: float
    perplexity_ratio: float
    ratio_error: float
    top1: float
    tokens: int
    texts: str
    real: bool
    reference: str
    bound: float | None = None
    matrices: Mapping[str, int] = field(default_factory=dict, hash=False)
    caches_alone: bool = False

    def within(self, bound: float) -> bool:
        """Whether the mean divergence and the ratio, as far as the texts tell it, are within a bound on the ratio.

        A text that the model wrote itself is one of its likeliest, so that any other model finds it less likely:
        of those the divergence alone counts.
        """
        return self.mean_kl <= max_mean_kl(bound) and self._log <= math.log(bound)

    @property
    def _log(self) -> float:
        """The logarithm of the ratio, as far as the texts tell it; -inf where they say nothing of it."""
        if not self.real:
            return -math.inf
        log = math.log(self.perplexity_ratio) if 0 < self.perplexity_ratio < math.inf else math.inf
        return log - _ERRORS * self.ratio_error

    @property
    def least_bound(self) -> float:
        """The least bound on the ratio, in thousandths, that allows the ratio and the mean divergence; inf: none does."""
        log = max(self._log, self.mean_kl / _DIVERGENCES)
        known = math.isfinite(self.mean_kl) and log < math.log(MOST_PERPLEXITY_RATIO)
        bound = math.floor(1000 * math.exp(log) + 1) / 1000 if known else math.inf
        return bound if bound <= MOST_PERPLEXITY_RATIO else math.inf

    def describe(self, precision: str) -> str:
        """The figures, in a sentence."""
        mixed = f" ({list_matrices(self.matrices)})" if len(self.matrices) > 1 else ""
        return (
            f"{precision}{mixed} against {self.reference}: perplexity × {self.perplexity_ratio:.5f} "
            f"(± {self.ratio_error:.1g}), mean KL {self.mean_kl:.2g}, p99 KL {self.p99_kl:.2g}, "
            f"the same likeliest token at {100 * self.top1:.1f} % of {self.tokens} positions "
            f"of {self.texts}"
        )

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values; figures that aren't finite are None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
        }


def list_matrices(counts: Mapping[str, int]) -> str:
    """Counts of matrices by precision, in words."""
    return "matrices: " + ", ".join(f"{count} in {name}" for name, count in counts.items())


def max_mean_kl(bound: float) -> float:
    """The largest mean divergence that goes with a bound on the ratio of perplexities.

    On texts that the original wrote by chance, the mean divergence is the logarithm of that ratio. It tells
    more than the ratio of a few hundred tokens, in which gains and losses cancel.
    """
    return _DIVERGENCES * math.log(bound)


class Judge:
    """Texts, and the original's probabilities on them.

    Args:
        logits: a function from a text, int64 [1, length], to logits [length, vocabulary].
        texts: texts of two tokens at least, one or more; the first counts, and as many further ones as
            memory has room for.
        said: the texts, in words.
        real: whether they are the user's.
        narrow: run in float32, for a quick look.
        tell: a function that gets the number of texts that the original has run.

    Raises:
        ModelError: the original fails, or its logits aren't finite.
    """

    def __init__(
        self,
        logits: Callable[[Tensor], Tensor],
        texts: Sequence[Tensor],
        said: str,
        real: bool,
        *,
        narrow: bool = False,
        tell: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._logits, self._said, self._real = logits, said, real
        self._wide = not narrow
        self._texts: list[Tensor] = []
        self._known: list[Tensor] = []
        room = _MOST_NUMBERS
        for text in texts:
            if self._known and (text.shape[1] - 1) * self._known[0].shape[1] > room:
                break
            answer = self._run(text)
            if not bool(answer.isfinite().all()):
                raise ModelError("the model's own logits on the texts aren't finite")
            self._texts.append(text)
            self._known.append(answer)
            room -= answer.numel()
            tell(len(self._known))

    def quality(
        self,
        other: Callable[[Tensor], Tensor] | None = None,
        tell: Callable[[int], None] = lambda done: None,
    ) -> Quality:
        """The figures of the model as it is now.

        Args:
            other: a function such as ``logits`` to judge in place of the model; None: the model.
            tell: a function that gets the number of texts that were run.

        Raises:
            ModelError: it fails.
            Whatever ``other`` raises.
        """
        divergences, losses, same = [], [], []
        for text, known in zip(self._texts, self._known, strict=True):
            found = self._run(text) if other is None else _probabilities(other(text))
            ours, theirs = found.double(), known.double()
            divergences.append((theirs.exp() * (theirs - ours)).sum(-1).clamp(min=0))
            picked = text[0, 1:, None]
            losses.append((theirs - ours).gather(1, picked)[:, 0])
            same.append((ours.argmax(-1) == theirs.argmax(-1)).double())
            tell(len(same))
        kl, loss, top1 = torch.cat(divergences), torch.cat(losses), torch.cat(same)
        if not bool(kl.isfinite().all() and loss.isfinite().all()):
            kl, loss = kl.fill_(math.inf), loss.fill_(math.inf)
        spread = float(loss.std(correction=0)) / math.sqrt(len(loss))
        return Quality(
            float(kl.mean()),
            float(torch.quantile(kl, 0.99)) if kl.isfinite().all() else math.inf,
            _exp(float(loss.mean())),
            spread if math.isfinite(spread) else 0.0,
            float(top1.mean()),
            len(kl),
            self._said,
            self._real,
            "eager in float64" if self._wide else "eager in float32",
        )

    def _run(self, text: Tensor) -> Tensor:
        """Logarithms of the probabilities behind each token but the last: float32."""
        if self._wide:
            try:
                found = run_in_float64(lambda tokens: {"": self._logits(tokens)}, {"tokens": text})
                return _probabilities(found[""])
            except Exception as error:  # an operator that has no float64
                if self._known:
                    raise ModelError(
                        f"the model fails on a text: {describe_error(error)}"
                    ) from error
                self._wide = False
        try:
            with torch.no_grad():
                return _probabilities(self._logits(text))
        except Exception as error:
            raise ModelError(f"the model fails on a text: {describe_error(error)}") from error


def _probabilities(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits[:-1].double(), -1).float()


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def check_quality(quality: Quality, precision: str, bound: float) -> Quality:
    """The figures with their bound.

    Raises:
        VerificationError: they are beyond it; the message has them.
    """
    if quality.within(bound):
        return replace(quality, bound=bound)
    cure = "" if quality.real else "; or give `texts`, which weights are rounded for and judged by"
    few = (
        "so few positions say little: give more or longer `texts`; "
        if quality.real and quality.tokens < _FEW_POSITIONS
        else ""
    )
    least = quality.least_bound
    wider = (
        f"`max_perplexity_ratio={least:g}` allows both figures"
        if least < math.inf
        else "no `max_perplexity_ratio` allows them"
    )
    raise VerificationError(
        f"{precision} changes what the model says by more than is allowed: {quality.describe(precision)}; "
        f"allowed are a perplexity × {bound:g} and a mean KL of {max_mean_kl(bound):.2g}",
        hint=f'{few}`precision="auto"` keeps the layers wider that cost most; {wider}{cure}',
    )
