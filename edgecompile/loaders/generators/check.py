"""Compares a model over its caches with the model alone, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from edgecompile.export.checks import TOLERANCE, compare_outputs
from edgecompile.loaders.generators.step import (
    INPUT,
    LAST,
    POSITION,
    GenerationStep,
    refuse_caches,
)
from edgecompile.models.modules import describe_error

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
    want: Tensor,
    *,
    pad: int,
    hint: str,
    more: Mapping[str, Tensor] | None = None,
) -> GenerationStep:
    """The first step that agrees with the model itself; its model is left attending that way.

    Tokens go in in pieces, one of them padded, over caches full of noise.

    Args:
        steps: one for each way of attention, in order of preference.
        own: the attention that the model came with.
        tokens: int64 [1, length].
        want: the model's own logits, float32 [length, vocabulary].
        pad: the token that fills a run up.
        hint: what to do where none agrees.
        more: further inputs of the steps.

    Raises:
        ModelError: none agrees; says what went wrong in each.
    """
    problems = []
    for step in steps:
        try:
            step.model.set_attn_implementation(step.way.attention or own)
            problem = _difference(step, tokens, want, pad, more or {})
        except Exception as exc:  # whatever a model raises that isn't made for this
            problem = describe_error(exc)
        if not problem:
            return step
        problems.append(problem)
    raise refuse_caches(step.model, "; ".join(dict.fromkeys(problems)), hint)


def _difference(
    step: GenerationStep, tokens: Tensor, want: Tensor, pad: int, more: Mapping[str, Tensor]
) -> str:
    """The difference of a step's logits from ``want``, or "" if there is none."""
    count = tokens.shape[1]
    noise = torch.Generator().manual_seed(11)
    sizes = [(count + 9, *part) for shape in step.shapes for part in shape]
    caches = [torch.randn(size, generator=noise) for size in sizes]
    inputs = {**dict(zip(step.caches, caches, strict=True)), **more}
    first = max(1, count * 2 // 5)
    pieces = [(0, first), (first, min(first + 5, count - 1))]
    pieces += [(at, at + 1) for at in range(pieces[-1][1], count)]
    for start, end in pieces:
        if start >= end:
            continue
        part = tokens[:, start:end]
        if start == 0:
            part = torch.cat([part, torch.full((1, 2), pad)], 1)
        place = {POSITION: torch.tensor([start]), LAST: torch.tensor([end - start - 1])}
        logits = step(**{INPUT: part, **place, **inputs})["logits"]
        error = compare_outputs({"logits": logits[0]}, {"logits": want[end - 1]})
        if isinstance(error, str):
            return f"{error} at token {end - 1}"
        if not error <= TOLERANCE:
            return f"logits differ by {error:.2g} of their scale at token {end - 1}"
    return ""


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
