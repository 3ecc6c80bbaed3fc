"""A language model's narrow precision mixed with a wider one, matrix by matrix, so that texts still agree.

All matrices are narrow at first. Those whose rounding moves the next tokens' probabilities most, for each byte that it
saves, become wider until the bound holds. Divergences of small errors nearly add up. So what each matrix causes alone
tells about how many have to be wider, and few mixtures have to be judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from edgecompile.precision import Precision
from edgecompile.quantization.judged import JudgedModel
from edgecompile.quantization.quality import Quality, max_mean_kl


@dataclass(frozen=True)
class Mixture:
    """A mixed precision.

    Attributes:
        precision: the precision of each matrix.
        kept: the number of matrices that are wider for the bound's sake.
        quality: its figures.
    """

    precision: Precision
    kept: int
    quality: Quality


def find_mixture(
    judged: JudgedModel,
    pure: Precision,
    wider: Precision,
    bound: float,
    tell: Callable[[str], None] = lambda text: None,
) -> Mixture | None:
    """The mixture that keeps as few bytes wider as a bound needs.

    Args:
        judged: the model and its texts.
        pure: the narrow precision. Matrices that it keeps itself are as in the wider one.
        wider: a precision that is within the bound.
        bound: the largest ratio of perplexities.
        tell: a function that gets what is being done.

    Returns:
        Without narrow matrices where nothing but the wider precision is within the bound: the narrow
        precision with its figures, which are beyond the bound. None where both are the same.

    Raises:
        ModelError: the model fails on the texts.
    """
    fixed = {weight: wider.of([weight]) for weight, _ in pure.kept}
    ranked: list[tuple[tuple[str, ...], float]] = []

    def keeping(count: int) -> Precision:
        kept = {w: wider.of(group) for group, _ in ranked[:count] for w in group} | fixed
        made = Precision(pure.name, tuple(kept.items()))
        return judged.mix_weights(made, [pure.rounded, wider.rounded])

    narrow = keeping(0)
    groups = judged.program.groups
    if all(narrow.of(names) == wider.of(names) for names in groups):
        return None
    tell(f"running {narrow} in torch")
    found = {0: judged.quality(narrow)}
    if found[0].within(bound):
        return Mixture(narrow, 0, found[0])
    said = f"{pure.name}: error of each layer, {{}} of {len(groups)}"
    ranked += judged.rank(narrow, wider, lambda done: tell(said.format(done)))

    def holds(count: int) -> bool:
        tell(f"running {keeping(count)} in torch")
        found[count] = judged.quality(keeping(count))
        return found[count].within(bound)

    # The divergence that remains with each number of wider matrices, and the share of all that may.
    remaining = [0.0, *accumulate(divergence for _, divergence in reversed(ranked))][::-1]
    allowed = remaining[0] * max_mean_kl(bound) / found[0].mean_kl
    guess = sum(divergence > allowed for divergence in remaining)
    count = least_near(guess, len(ranked), holds)
    if count == len(ranked):
        count = 0
    return Mixture(keeping(count), count, found[count])


def least_near(guess: int, most: int, holds: Callable[[int], bool]) -> int:
    """The least number for which ``holds`` is true, and for all above it.

    Args:
        guess: a number that may be near it. The nearer it is, the fewer are asked.
        most: a number for which it is known to be true, while it is known to be false for 0.
        holds: asked of numbers between the two.
    """
    low, high, step = 0, most, 1
    while high - low > 1:
        at = guess if low < guess < high else (low + high) // 2
        if holds(at):
            high, guess = at, at - step
        else:
            low, guess = at, at + step
        step *= 2
    return high
