"""Compares a model over its caches with the model alone, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.export.checks import TOLERANCE, compare_outputs
from edgecompile.loaders.generators.attention import PLACED, attending
from edgecompile.loaders.generators.step import (
    INPUT,
    LAST,
    POSITION,
    GenerationStep,
    refuse_caches,
)
from edgecompile.loaders.generators.storage import rounds_caches
from edgecompile.models.double import Footprint, Kept, lacks_room, run_in_float64
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
    logits_of: Callable[..., Tensor],
    *,
    pad: int,
    hint: str,
    notes: list[str],
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
        notes: remarks for the user; says where the model attends by masks because its logits differ without.
        more: further inputs of the steps.
        generated: the model over its own cache, as ``logits_of``. It counts as well where it differs: some
            models compute single tokens otherwise than whole texts.

    Raises:
        ModelError: none agrees; says what went wrong in each.
    """
    problems: list[str] = []
    differing = ""
    answers = [
        _Logits(partial(_run_whole, item), {"tokens": tokens})
        for item in (logits_of, generated)
        if item is not None
    ]
    for step in steps:
        try:
            step.model.set_attn_implementation(step.way.attention or own)
            problem = ""
            inputs = {**_noise(step, tokens.shape[1]), **(more or {})}
            logits = _Logits(partial(_run_pieces, step, tokens, pad), inputs, step)
            for answer in answers:
                problem = _compare(logits, answer)
                if not problem:
                    if differing and step.way.attention != PLACED:
                        kind = type(step.model).__name__
                        notes.append(f"{kind} attends by masks, which takes longer: {differing}")
                    return step
            if step.way.attention == PLACED:
                differing = f"without them {problem}"
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
        with Kept(model).unchanged(), attending(model, attention):
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
        with Kept(model).unchanged(), attending(model, attention):
            for part in parts:
                outputs = model(input_ids=part, use_cache=True, return_dict=True, **cache)
                cache = {past: outputs[past]}
                logits.append(outputs.logits[0])
        return torch.cat(logits)

    return run


class _Logits:
    """Logits behind each piece of some tokens, by the piece's last token.

    Args:
        run: Function from the inputs, which it may change, to the logits.
        inputs: Inputs by name.
        module: Module that keeps nothing of the run in float64; None: the function sees to that.
    """

    def __init__(
        self,
        run: Callable[..., Mapping[str, Tensor]],
        inputs: Mapping[str, Tensor],
        module: nn.Module | None = None,
    ) -> None:
        self._run, self._inputs, self._module = run, inputs, module

    @cached_property
    def narrow(self) -> Mapping[str, Tensor]:
        """The logits in float32."""
        return self._run(**{name: tensor.clone() for name, tensor in self._inputs.items()})

    @cached_property
    def footprint(self) -> Footprint:
        """The footprint of one more run in float32."""
        footprint = Footprint()
        with footprint:
            self._run(**{name: tensor.clone() for name, tensor in self._inputs.items()})
        return footprint

    @cached_property
    def exact(self) -> Mapping[str, Tensor] | None:
        """The logits in float64; None where it has no room, or only float32 will do."""
        try:
            numbers = self.footprint.most + sum(item.numel() for item in self._inputs.values())
            if lacks_room(numbers):
                return None
            with nullcontext() if self._module is None else Kept(self._module).unchanged():
                return run_in_float64(self._run, self._inputs)
        except Exception:  # whatever an operator without float64 raises
            return None


def _compare(logits: _Logits, own: _Logits) -> str:
    """The difference of a step's logits from the model's own, or "" if there is none.

    Where they differ in float32, float64 decides. A model that chooses experts by nearly equal scores chooses
    others once sums are rounded otherwise, and the CPU would decide how its bundle attends.
    """
    problem, finite = _difference(logits.narrow, own.narrow)
    # Float64 would hide what only float32 does to a step: it overflows, or it rounds to half precision.
    if not problem or not finite or (logits.footprint.halves and not own.footprint.halves):
        return problem
    if own.exact is None or logits.exact is None:
        return problem
    return _difference(logits.exact, own.exact)[0]


def _difference(logits: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> tuple[str, bool]:
    """The first difference of logits by their token, or "" if there is none; and whether all can be compared.

    Those of another shape can't, nor can NaN or infinity where others have a number.
    """
    problem = ""
    for at, row in logits.items():
        error = compare_outputs({at: row}, {at: want[at]})
        if isinstance(error, str):
            return f"{error} at token {at}", False
        if not error <= TOLERANCE:
            problem = problem or f"logits differ by {error:.2g} of their scale at token {at}"
    return problem, True


def _run_whole(logits_of: Callable[..., Tensor], tokens: Tensor) -> dict[str, Tensor]:
    """A model's own logits behind each piece, by its last token."""
    logits = logits_of(tokens)
    return {str(end - 1): logits[end - 1] for start, end in _pieces(tokens.shape[1]) if start < end}


def _run_pieces(
    step: GenerationStep, tokens: Tensor, pad: int, **inputs: Tensor
) -> dict[str, Tensor]:
    """Logits of a step behind each piece, by its last token; the first piece is padded."""
    logits = {}
    for start, end in _pieces(tokens.shape[1]):
        if start >= end:
            continue
        part = tokens[:, start:end]
        if start == 0:
            part = torch.cat([part, torch.full((1, 2), pad)], 1)
        place = {POSITION: torch.tensor([start]), LAST: torch.tensor([end - start - 1])}
        logits[str(end - 1)] = step(**{INPUT: part, **place, **inputs})["logits"][0]
    return logits


def _noise(step: GenerationStep, count: int) -> dict[str, Tensor]:
    """Caches for so many tokens, full of what nobody may see."""
    noise = torch.Generator().manual_seed(11)
    sizes = [((count + 9,) if item.grows else ()) + item.shape for item in step.kept]
    caches = [torch.randn(size, generator=noise) for size in sizes]
    return dict(zip(step.caches, caches, strict=True))


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
