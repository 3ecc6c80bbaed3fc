"""The sizes at which the eager model works at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import groupby

from edgecompile.errors import ModelError
from edgecompile.explanation.report import EagerFailure, EagerFindings
from edgecompile.export.checks import Range, choose_sizes
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.source_lines import lines_of_error

#: The largest multiple that is looked for.
_LARGEST_FACTOR = 256


def check_eager(
    loaded: LoadedModel, ranges: Mapping[str, Range], hint: Mapping[str, int]
) -> EagerFindings:
    """Runs the eager model at the sizes at which an exported one would be checked.

    Where it fails at an end of the length axis, the last size that works is looked for by halving,
    so that the rest can be explained for what remains.

    Returns:
        The failures, and the widest part of the ranges without one. Where only multiples work, that
        part begins and ends with one.
    """
    outcomes = [
        (sizes, _failure(loaded, sizes)) for sizes in choose_sizes(ranges, hint, loaded.length_axis)
    ]
    failures = tuple(failure for _, failure in outcomes if failure is not None)
    if not failures:
        return EagerFindings((), dict(ranges))
    axis = loaded.length_axis
    working = [sizes for sizes, failure in outcomes if failure is None]
    if axis is None or not working:
        return EagerFindings(failures)
    lo, hi = ranges[axis]
    bad = {failure.sizes[axis] for failure in failures}
    good = {sizes[axis] for sizes in working}

    def works(size: int) -> bool:
        return _failure(loaded, {**working[0], axis: size}) is None

    multiple = _multiple(good, bad, hi, works)
    if multiple > 1:
        whole = (-(-lo // multiple) * multiple, hi // multiple * multiple)
        return EagerFindings(failures, {**ranges, axis: whole}, multiple)
    stretches = [
        list(sizes) for works_all, sizes in groupby(sorted(good | bad), lambda s: s not in bad)
        if works_all
    ]  # fmt: skip
    if not stretches:
        return EagerFindings(failures)
    widest = max(stretches, key=lambda sizes: sizes[-1] - sizes[0])
    below = max((size for size in bad if size < widest[0]), default=None)
    above = min((size for size in bad if size > widest[-1]), default=None)
    low = lo if below is None else _halve(works, widest[0], below)
    high = hi if above is None else _halve(works, widest[-1], above)
    return EagerFindings(failures, {**ranges, axis: (low, high)})


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
        return EagerFailure(dict(sizes), error_text(error), lines_of_error(error))
    return None


def error_text(error: ModelError) -> str:
    """The error of the model's own code, without the sizes and the line, which stand beside it."""
    cause = error.__cause__
    lines = str(cause).strip().splitlines()
    if cause is None or not lines:
        return error.message
    return f"{type(cause).__name__}: {lines[0]}"
