"""Whether a model over its caches says what it says by itself: tried before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from edgecompile.errors import ModelError
from edgecompile.export.checks import TOLERANCE, compare_outputs
from edgecompile.loaders.generators.attention import (
    WAYS,
    Way,
    attend_always,
    attending,
    own_attention,
)
from edgecompile.loaders.generators.causal_step import (
    INPUT,
    LAST,
    POSITION,
    GenerationStep,
    KeyValueShape,
    empty_caches,
)
from edgecompile.models.modules import describe_error

__all__ = ["compare_step", "find_step", "first_agreeing", "run_step", "trial_tokens"]

Step = TypeVar("Step", bound=GenerationStep)

_TOKENS = 24
# A window that a model of any size outgrows within these tokens.
_WINDOW = 6
# What configurations call them; a window of chunks begins anew at each (Llama 4).
_WINDOWS = ("sliding_window", "attention_chunk_size")


def find_step(
    model: Any, shapes: Sequence[KeyValueShape], max_context: int, pad: int
) -> GenerationStep:
    """The model over its caches, attending in the first way that agrees with the model itself.

    Tokens go in in pieces, one of them padded, over caches full of noise, with the windows of
    sliding layers so short that they matter; afterwards the model is left attending that way.

    Raises:
        ModelError: none agrees; says what went wrong in each.
    """
    own = own_attention(model)
    tokens = trial_tokens(model, max_context)
    with _short_windows(model), attending(model, own), torch.no_grad():
        want = model(input_ids=tokens, use_cache=False).logits[0]

        def attempt(way: Way) -> tuple[GenerationStep, str]:
            step = GenerationStep(model, len(shapes), way).eval()
            with attending(model, way.attention or own):
                return step, compare_step(step, shapes, tokens, want, pad)

        step = first_agreeing(WAYS, attempt, model, "--task logits compiles it without a cache")
    attend_always(model, step.way.attention or own)
    return step


def trial_tokens(model: Any, max_context: int) -> Tensor:
    """Random tokens that a step is tried on, int64 [1, length]."""
    generator = torch.Generator().manual_seed(7)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    return torch.randint(0, vocabulary, (1, min(_TOKENS, max_context)), generator=generator)


def first_agreeing(
    ways: Iterable[Way], attempt: Callable[[Way], tuple[Step, str]], model: Any, hint: str
) -> Step:
    """The step of the first way of attention that agrees with the model.

    Args:
        ways: in order of preference.
        attempt: makes the step of a way, and says what differs, or "".
        model: the model, for the error.
        hint: what to do where none agrees.

    Raises:
        ModelError: none agrees; says what went wrong in each.
    """
    problems = []
    for way in ways:
        try:
            step, problem = attempt(way)
        except Exception as exc:  # whatever a model raises that isn't made for this
            problem = describe_error(exc)
        else:
            if not problem:
                return step
        problems.append(problem)
    raise ModelError(
        f"{type(model).__name__} can't generate over caches that are given from outside: "
        + "; ".join(dict.fromkeys(problems)),
        hint=hint,
    )


def compare_step(
    step: nn.Module,
    shapes: Sequence[KeyValueShape],
    tokens: Tensor,
    want: Tensor,
    pad: int,
    more: Mapping[str, Tensor] | None = None,
) -> str:
    """The difference, or "" if there is none.

    Args:
        step: a :class:`~edgecompile.loaders.generators.causal_step.GenerationStep`.
        shapes: of its caches.
        tokens: int64 [1, length].
        want: the model's own logits [length, vocabulary].
        pad: what a run is filled up with.
        more: its further inputs.
    """
    count = tokens.shape[1]
    noise = torch.Generator().manual_seed(11)
    caches = empty_caches(shapes, count + 9, noise)
    first = max(1, count * 2 // 5)
    pieces = [(0, first), (first, min(first + 5, count - 1))]
    pieces += [(at, at + 1) for at in range(pieces[-1][1], count)]
    for number, (start, end) in enumerate(pieces):
        if start >= end:
            continue
        part = tokens[:, start:end]
        if number == 0:
            part = torch.cat([part, torch.full((1, 2), pad)], 1)
        logits = run_step(step, part, start, end - start - 1, caches, more)
        error = compare_outputs({"logits": logits[0]}, {"logits": want[end - 1]})
        if isinstance(error, str) or not error <= TOLERANCE:
            text = (
                error if isinstance(error, str) else f"logits differ by {error:.2g} of their scale"
            )
            return f"{text} at token {end - 1}"
    return ""


def run_step(
    step: nn.Module,
    tokens: Tensor,
    position: int,
    last: int,
    caches: Sequence[Tensor],
    more: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Logits [1, vocabulary] behind one of ``tokens`` [1, length], which begin at ``position``."""
    inputs: Mapping[str, Tensor] = {
        INPUT: tokens,
        POSITION: torch.tensor([position]),
        LAST: torch.tensor([last]),
        **dict(zip(step.caches, caches, strict=True)),  # type: ignore[arg-type]
        **(more or {}),
    }
    found: Tensor = step(**inputs)["logits"]
    return found


@contextmanager
def _short_windows(model: Any) -> Iterator[None]:
    """Shortens every window meanwhile, in the configurations and where modules copied it."""
    modules = list(model.modules())
    configs = {id(config): config for m in modules if (config := getattr(m, "config", None))}
    changed = [
        (owner, name, value)
        for owner in (*configs.values(), *modules)
        for name in _WINDOWS
        if isinstance(value := getattr(owner, name, None), int) and value > _WINDOW
    ]
    for owner, name, _ in changed:
        setattr(owner, name, _WINDOW)
    try:
        yield
    finally:
        for owner, name, value in changed:
            setattr(owner, name, value)
