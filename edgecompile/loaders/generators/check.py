"""Compares a model over its caches with the model alone, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from edgecompile.export.checks import TOLERANCE, compare_outputs
from edgecompile.loaders.generators.attention import attending
from edgecompile.loaders.generators.step import (
    INPUT,
    LAST,
    POSITION,
    GenerationStep,
    refuse_caches,
)
from edgecompile.loaders.generators.storage import rounds_caches
from edgecompile.models.double import unchanged
from edgecompile.models.modules import describe_error
from edgecompile.models.rounding import find_margins

_TOKENS = 24
# A window that a model of any size outgrows within these tokens.
_WINDOW = 6
# Names in configurations; a window of chunks begins again at each (Llama 4).
_WINDOWS = ("sliding_window", "attention_chunk_size")


def trial_tokens(vocabulary: int, max_context: int) -> Tensor:
    """Random tokens that a step is tried on, int64 [1, length]."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, vocabulary, (1, min(_TOKENS, max_context)), generator=generator)


def find_step(
    steps: Iterable[GenerationStep],
    own: str,
    tokens: Tensor,
    logits_of: Callable[..., Tensor],
    *,
    pad: int,
    hint: str,
    more: Mapping[str, Tensor] | None = None,
    generated: Callable[..., Tensor] | None = None,
) -> GenerationStep:
    """The first step that agrees with the model itself; its model is left attending that way.

    Tokens go in in pieces, one of them padded, over caches full of noise.

    Args:
        steps: one for each way of attention, in order of preference.
        own: the attention that the model came with.
        tokens: int64 [1, length].
        logits_of: the model itself: tokens, int64 [1, length], to logits, float32 [length, vocabulary].
        pad: the token that fills a run up.
        hint: the advice where none agrees.
        more: further inputs of the steps.
        generated: the model over its own cache, as ``logits_of``. It counts as well where it differs: some
            models compute single tokens otherwise than whole texts.

    Raises:
        ModelError: none agrees; says what went wrong in each.
    """
    problems = []
    answers = [_Answers(item, tokens) for item in (logits_of, generated) if item is not None]
    for step in steps:
        try:
            step.model.set_attn_implementation(step.way.attention or own)
            problem = ""
            for answer in answers:
                problem = _difference(step, tokens, answer, pad, more or {})
                if not problem:
                    return step
        except Exception as exc:  # whatever a model raises that isn't made for this
            problem = describe_error(exc)
        problems.append(problem)
    raise refuse_caches(step.model, "; ".join(dict.fromkeys(problems)), hint)


def whole_model(
    model: Any, attention: str, name: str, more: Mapping[str, Tensor] | None = None
) -> Callable[[Tensor], Tensor]:
    """A function from tokens, int64 [1, length], to the model's own logits, [length, vocabulary].

    Args:
        model: the model of transformers, which keeps nothing of a run.
        attention: Attention that it came with.
        name: Name of the input that takes tokens.
        more: Further inputs.
    """

    def run(tokens: Tensor) -> Tensor:
        with unchanged(model), attending(model, attention):
            # Without a cache nothing would be rounded.
            inputs, cached = {name: tokens, **(more or {})}, rounds_caches()
            logits: Tensor = model(**inputs, use_cache=cached).logits
            return logits[0]

    return run


def generating_model(model: Any, attention: str, past: str) -> Callable[[Tensor], Tensor]:
    """The same function, of a run of the first tokens and of each further token over the model's own cache.

    Args:
        model: the model of transformers.
        attention: Attention that it came with.
        past: Name of the argument that takes a cache.
    """

    def run(tokens: Tensor) -> Tensor:
        begun = _pieces(tokens.shape[1])[1][1]
        parts = [tokens[:, :begun], *(tokens[:, n : n + 1] for n in range(begun, tokens.shape[1]))]
        cache: dict[str, Any] = {}
        logits = []
        with unchanged(model), attending(model, attention):
            for part in parts:
                outputs = model(input_ids=part, use_cache=True, return_dict=True, **cache)
                cache = {past: outputs[past]}
                logits.append(outputs.logits[0])
        return torch.cat(logits)

    return run


class _Answers:
    """A model's own logits, and the errors that float32 leaves in them; each is found when asked for."""

    def __init__(self, logits_of: Callable[..., Tensor], tokens: Tensor) -> None:
        self._tokens = tokens
        self._logits_of = logits_of
        self._logits: Mapping[str, Tensor] = {}
        self._margins: Mapping[str, float] | None = None

    def error(self, logits: Tensor, at: int) -> float | str:
        """The difference of other logits for a token, beyond what eager's own error allows."""
        name = str(at)
        self._logits = self._logits or self._run(self._tokens)
        want = {name: self._logits[name]}
        error = compare_outputs({name: logits}, want)
        if isinstance(error, str) or error <= TOLERANCE:
            return error
        if self._margins is None:
            self._margins = find_margins(self._run, {"tokens": self._tokens}, self._logits)
        return compare_outputs({name: logits}, want, self._margins)

    def _run(self, tokens: Tensor) -> dict[str, Tensor]:
        return {str(at): row for at, row in enumerate(self._logits_of(tokens))}


def _difference(
    step: GenerationStep, tokens: Tensor, answers: _Answers, pad: int, more: Mapping[str, Tensor]
) -> str:
    """The difference of a step's logits from the model's own, or "" if there is none."""
    count = tokens.shape[1]
    noise = torch.Generator().manual_seed(11)
    sizes = [((count + 9,) if item.grows else ()) + item.shape for item in step.kept]
    caches = [torch.randn(size, generator=noise) for size in sizes]
    inputs = {**dict(zip(step.caches, caches, strict=True)), **more}
    for start, end in _pieces(count):
        if start >= end:
            continue
        part = tokens[:, start:end]
        if start == 0:
            part = torch.cat([part, torch.full((1, 2), pad)], 1)
        place = {POSITION: torch.tensor([start]), LAST: torch.tensor([end - start - 1])}
        logits = step(**{INPUT: part, **place, **inputs})["logits"]
        error = answers.error(logits[0], end - 1)
        if isinstance(error, str):
            return f"{error} at token {end - 1}"
        if not error <= TOLERANCE:
            return f"logits differ by {error:.2g} of their scale at token {end - 1}"
    return ""


def _pieces(count: int) -> list[tuple[int, int]]:
    """The runs that so many tokens go in by: two of several tokens, then single ones."""
    first = max(1, count * 2 // 5)
    pieces = [(0, first), (first, min(first + 5, count - 1))]
    return pieces + [(at, at + 1) for at in range(pieces[-1][1], count)]


@contextmanager
def short_windows(model: Any) -> Iterator[None]:
    """Shortens every window meanwhile, in the configurations and where modules copied it.

    The windows of sliding layers are so short then that they matter to a few tokens.
    """
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
