"""Where the eager model works at all, and what it does where no graph of it can be had."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from edgecompile.errors import ModelError
from edgecompile.explanation.report import EagerFailure, ModuleUse, OperatorUse
from edgecompile.export.checks import Range, choose_sizes
from edgecompile.export.guards import quiet_torch
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import run_module
from edgecompile.models.source_lines import places_of_error

__all__ = ["EagerCheck", "check_eager", "eager_operators", "error_text", "module_kind"]

#: Models work on blocks of so many positions at most.
_LARGEST_FACTOR = 256


@dataclass(frozen=True)
class EagerCheck:
    """Where eager works.

    Attributes:
        failures: sizes at which it fails.
        spans: the widest part of the range without a failure that was seen; None: it fails at
            every size that was tried.
        multiple: the length axis must be a multiple of this, and ``spans`` begins and ends with one.
    """

    failures: tuple[EagerFailure, ...]
    spans: Mapping[str, Range] | None
    multiple: int = 1


def check_eager(
    loaded: LoadedModel, spans: Mapping[str, Range], hint: Mapping[str, int]
) -> EagerCheck:
    """Runs the eager model at the sizes at which an exported one would be checked.

    Where it fails at an end of the length axis, the last size that works is looked for by halving,
    so that the rest can be explained for what remains.
    """
    sizes = choose_sizes(spans, hint, loaded.length_axis)
    seen = [(one, _failure(loaded, one)) for one in sizes]
    failures = tuple(failure for _, failure in seen if failure is not None)
    if not failures:
        return EagerCheck((), dict(spans))
    axis = loaded.length_axis
    good = [one for one, failure in seen if failure is None]
    if axis is None or not good:
        return EagerCheck(failures, None)
    bad = {failure.sizes[axis] for failure in failures}
    lo, hi = spans[axis]
    others = {name: size for name, size in good[0].items() if name != axis}

    def works(size: int) -> bool:
        return _failure(loaded, {**others, axis: size}) is None

    multiple = _multiple({one[axis] for one in good}, bad, hi, works)
    if multiple > 1:
        whole = {**spans, axis: (-(-lo // multiple) * multiple, hi // multiple * multiple)}
        return EagerCheck(failures, whole, multiple)
    runs = _runs_between(sorted({one[axis] for one in good} - bad), sorted(bad))
    if not runs:
        return EagerCheck(failures, None)
    low, high = max(runs, key=lambda run: run[1] - run[0])
    below = [size for size in bad if size < low]
    above = [size for size in bad if size > high]
    if below:
        low = _halve(works, low, max(below))
    if above:
        high = _halve(works, high, min(above))
    usable = {**spans, axis: (low if below else lo, high if above else hi)}
    return EagerCheck(failures, usable)


def _multiple(
    good: Collection[int], bad: Collection[int], hi: int, works: Callable[[int], bool]
) -> int:
    """The number that all sizes that work are multiples of, if multiples alone work; else 1."""
    for factor in range(2, _LARGEST_FACTOR + 1):
        if any(size % factor for size in good) or not all(size % factor for size in bad):
            continue
        others = [k * factor for k in (1, 2, 3, 5, 7) if k * factor <= hi]
        if all(works(size) for size in others) and not any(works(size - 1) for size in others):
            return factor
    return 1


def _runs_between(good: Sequence[int], bad: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches of sizes that work, without one between them that doesn't."""
    result: list[tuple[int, int]] = []
    for size in good:
        if result and not any(result[-1][1] < other < size for other in bad):
            result[-1] = (result[-1][0], size)
        else:
            result.append((size, size))
    return result


def _halve(works: Callable[[int], bool], good: int, bad: int) -> int:
    """The size next to ``bad`` that works, if all between it and ``good`` do."""
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if works(middle) else (good, middle)
    return good


def _failure(loaded: LoadedModel, sizes: Mapping[str, int]) -> EagerFailure | None:
    try:
        loaded.run(loaded.make_example(sizes, seed=3))
    except ModelError as error:
        return EagerFailure(dict(sizes), error_text(error), places_of_error(error))
    return None


def error_text(error: ModelError) -> str:
    """What the model's own code raised, without the sizes and the line, which stand beside it."""
    cause = error.__cause__
    lines = str(cause).strip().splitlines()
    if cause is None or not lines:
        return error.message
    return f"{type(cause).__name__}: {lines[0]}"


def module_kind(path: str) -> str:
    """``encoder.layer.3.output`` as ``encoder.layer.*.output``: like modules are of one kind."""
    path = re.sub(r"^model\.?", "", path)
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\g<1>*", path)


def eager_operators(
    loaded: LoadedModel, sizes: Mapping[str, int]
) -> tuple[tuple[OperatorUse, ...], tuple[ModuleUse, ...]]:
    """What the eager model's code calls in one run: torch's functions, and products by module.

    For models of which there is no graph. Bytes aren't counted.

    Raises:
        ModelError: it fails.
    """
    inputs = loaded.make_example(sizes)
    stack: list[str] = [""]
    watch = _Functions(stack)
    counter = FlopCounterMode(display=False)
    with quiet_torch(), _stacked(loaded.module, stack), counter, watch:
        run_module(loaded.module, inputs, loaded.name)
    operators = tuple(
        OperatorUse(name, count, tuple(sorted(watch.modules[name])), ())
        for name, count in watch.counts.most_common()
    )
    flops: Counter[str] = Counter()
    for path, module in loaded.module.named_modules():
        if next(module.children(), None) is None:
            named = counter.get_flop_counts().get(f"{type(loaded.module).__name__}.{path}", {})
            flops[module_kind(path)] += sum(int(value) for value in named.values())
    total = int(counter.get_total_flops())
    flops[""] += total - sum(flops.values())
    modules = tuple(
        ModuleUse(kind, watch.by_module[kind], flops[kind], 0, None)
        for kind in sorted({*watch.by_module, *flops}, key=lambda kind: (-flops[kind], kind))
        if watch.by_module[kind] or flops[kind]
    )
    return operators, modules


class _Functions(TorchFunctionMode):
    """Counts torch's functions as the model's code calls them."""

    def __init__(self, stack: Sequence[str]) -> None:
        super().__init__()
        self.stack = stack
        self.counts: Counter[str] = Counter()
        self.by_module: Counter[str] = Counter()
        self.modules: dict[str, set[str]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name and name not in ("__get__", "__set__") and isinstance(result, torch.Tensor):
            kind = module_kind(self.stack[-1])
            self.counts[name] += 1
            self.by_module[kind] += 1
            self.modules.setdefault(name, set()).add(kind)
        return result


@contextmanager
def _stacked(module: torch.nn.Module, stack: list[str]) -> Iterator[None]:
    """Keeps the path of the module that is running at the end of ``stack``."""
    hooks = []
    for path, part in module.named_modules():

        def enter(_part: Any, _args: Any, path: str = path) -> None:
            stack.append(path)

        def leave(_part: Any, _args: Any, _result: Any) -> None:
            stack.pop()

        hooks += [
            part.register_forward_pre_hook(enter),
            part.register_forward_hook(leave, always_call=True),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
