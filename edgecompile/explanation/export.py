"""Climbs the export ladder and keeps what each rung gave, also of those that failed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from edgecompile.errors import ModelError
from edgecompile.explanation.eager import error_text
from edgecompile.explanation.report import Condition, RungResult, Specialisation
from edgecompile.export.checks import CheckResult, Range, Sizes, check_program
from edgecompile.export.guards import (
    GuardWatch,
    axis_texts,
    explain_failure,
    fixed_size,
    readable_guard,
    watch_guards,
)
from edgecompile.export.ladder import LADDER, STATIC_LADDER, Rung, program_ranges
from edgecompile.export.operators.recurrence import has_recurrences
from edgecompile.export.unguarded import export_rung
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.source_lines import Place, place_of_text
from edgecompile.progress import NULL_STEP, StepHandle

__all__ = ["Climb", "climb_ladder", "export_static"]

#: Conditions kept of one rung: a chunked model has hundreds.
_MOST_CONDITIONS = 12
_ASSERTION = re.compile(r"Runtime assertion failed for expression (.+?) on node '\w+'")
#: Sizes kept of those at which a program is wrong.
_MOST_WRONG = 6


@dataclass(frozen=True)
class Climb:
    """What the ladder gave.

    Attributes:
        results: of the rungs, in their order.
        program: the first that is right for all sizes; else the one that is right for most of
            them; else None.
        ranges: the sizes for which it is right.
        whole: whether these are all that were wanted.
        specialisations: axes that became constants.
    """

    results: tuple[RungResult, ...]
    program: torch.export.ExportedProgram | None
    ranges: Mapping[str, Range]
    whole: bool
    specialisations: tuple[Specialisation, ...]


def climb_ladder(
    loaded: LoadedModel,
    spans: Mapping[str, Range],
    traced: Mapping[str, int],
    *,
    every: bool = False,
    ladder: Sequence[Rung] | None = None,
    step: StepHandle = NULL_STEP,
) -> Climb:
    """Tries the rungs in their order.

    Args:
        loaded: the model; eager works within ``spans``.
        spans: the sizes wanted.
        traced: those to trace with.
        every: go on after a rung was accepted.
        ladder: the rungs; None: those of the export, for fixed sizes where all spans are.
        step: told what is being tried.
    """
    wanted = {axis: (int(lo), int(hi)) for axis, (lo, hi) in spans.items()}
    dynamic = any(lo < hi for lo, hi in wanted.values())
    callers = {(frame.filename, frame.lineno or 0) for frame in traceback.extract_stack()}
    results: list[RungResult] = []
    fixed: list[Specialisation] = []
    best: tuple[int, torch.export.ExportedProgram, dict[str, Range]] | None = None
    done = partly = False
    for rung in ladder or (LADDER if dynamic else STATIC_LADDER):
        if rung.recurrences and not has_recurrences(loaded.module):
            continue
        if rung.unguarded and not (done or partly):
            continue  # no program came of the same way with its conditions
        if done and not every:
            results.append(RungResult(rung.name, "not tried", "an earlier one was accepted"))
            continue
        step.update(text=rung.name)
        result, program = _try(loaded, wanted, traced, rung, callers, fixed)
        results.append(result)
        partly = partly or (rung.deferred and program is not None)
        if program is None or result.outcome not in ("accepted", "specialised", "narrower"):
            continue
        width = sum(hi - lo for lo, hi in result.ranges.values())
        if result.outcome == "accepted":
            best = best if done else (width, program, dict(result.ranges))
            done = True
        elif not done and not result.wrong and (best is None or width > best[0]):
            best = (width, program, dict(result.ranges))
    merged = _merge(fixed)
    if best is None:
        return Climb(tuple(results), None, {}, False, merged)
    return Climb(tuple(results), best[1], best[2], done, merged)


def export_static(
    loaded: LoadedModel, sizes: Mapping[str, int]
) -> torch.export.ExportedProgram | None:
    """A program for these sizes alone, unchecked; None if torch refuses that, too."""
    spans = {axis: (size, size) for axis, size in sizes.items()}
    for rung in STATIC_LADDER:
        try:
            return export_rung(loaded, spans, sizes, rung)[0]
        except Exception:  # torch raises whatever the model or the tracer raises
            continue
    return None


def _try(
    loaded: LoadedModel,
    spans: dict[str, Range],
    traced: Mapping[str, int],
    rung: Rung,
    callers: set[tuple[str, int]],
    fixed: list[Specialisation],
) -> tuple[RungResult, torch.export.ExportedProgram | None]:
    with watch_guards() as watch:
        try:
            program, also, compared = export_rung(loaded, spans, traced, rung)
        except Exception as exc:  # torch raises whatever the model or the tracer raises
            error: Exception | None = exc
        else:
            error = None
    conditions = _conditions(watch, loaded, callers)
    fixed += _specialisations(watch, loaded, rung, callers)
    if error is not None:
        return _refused(loaded, rung, error, conditions, watch, callers, fixed), None
    real = program_ranges(program, loaded.inputs, spans)
    known = {item.axis for item in fixed if rung.name in item.rungs}
    for axis, (lo, hi) in real.items():
        if lo == hi and spans[axis][0] < spans[axis][1] and axis not in known:
            fixed.append(Specialisation(axis, lo, (rung.name,)))
    result = RungResult(rung.name, "accepted", "", conditions, ranges=real)
    if real != spans:
        kind = "narrower"
        if any(lo == hi and spans[axis][0] < spans[axis][1] for axis, (lo, hi) in real.items()):
            kind = "specialised"
        shown = ", ".join(
            f"{axis} {_span(span)}" for axis, span in real.items() if span != spans[axis]
        )
        places = [item.place for item in conditions if item.place is not None]
        result = replace(
            result, outcome=kind, text=f"only for {shown}", place=places[0] if places else None
        )
    if rung.unguarded:
        dropped = "its conditions are dropped, as it agrees with eager at sizes of every kind"
        result = replace(result, text=dropped, conditions=())
    done = compared if real == spans else None
    checked = _checked(result, program, loaded, traced, also, done)
    names = _names(watch, loaded)

    def readable(text: str) -> str:
        return _ASSERTION.sub(lambda match: f"needs {readable_guard(match[1], names)}", text)

    wrong = tuple((sizes, readable(text)) for sizes, text in checked.wrong)
    return replace(checked, text=readable(checked.text), wrong=wrong), program


def _refused(
    loaded: LoadedModel,
    rung: Rung,
    error: Exception,
    conditions: tuple[Condition, ...],
    watch: GuardWatch,
    callers: set[tuple[str, int]],
    fixed: list[Specialisation],
) -> RungResult:
    reason = explain_failure(error, loaded.inputs, watch.place_of(loaded.inputs))
    place = _place(reason.text, callers)
    text = re.sub(r" ?\(at [^()]*:\d+ in .*$", "", reason.text, flags=re.DOTALL)
    if place is None:
        place = next((item.place for item in conditions if item.place is not None), None)
    if reason.kind == "specialised":
        axis, _, size = reason.guards[0].partition(" == ")
        if not any(i.axis == axis and rung.name in i.rungs for i in fixed) and size.isdigit():
            fixed.append(Specialisation(axis, int(size), (rung.name,), place))
    known = tuple(Condition(guard, place) for guard in reason.guards if reason.kind == "guard")
    return RungResult(rung.name, "refused", text, conditions or known, place)


def _checked(
    result: RungResult,
    program: torch.export.ExportedProgram,
    loaded: LoadedModel,
    traced: Mapping[str, int],
    also: Sequence[Sizes],
    done: CheckResult | None,
) -> RungResult:
    """The result after the program was run against eager over the sizes that it takes.

    ``done`` is what came of that, where it was done.
    """
    if any(not lo <= traced[axis] <= hi for axis, (lo, hi) in result.ranges.items()):
        return result
    try:
        check = done or check_program(program, loaded, result.ranges, traced, also=also)
    except ModelError as error:
        text = f"not compared: eager itself fails, {error_text(error)}"
        return replace(result, outcome="unchecked", text=text)
    right = tuple({tuple(sizes.items()): sizes for sizes in check.passed}.values())
    result = replace(result, right=right, max_error=check.max_error)
    if not check.failed:
        return result
    known = "" if also else result.text
    text = "; ".join(filter(None, (known, f"wrong {check.describe()}")))
    wrong = tuple(check.failed[:_MOST_WRONG])
    outcome = "wrong" if result.outcome == "accepted" else result.outcome
    return replace(result, outcome=outcome, text=text, wrong=wrong)


def _names(watch: GuardWatch, loaded: LoadedModel) -> dict[str, str]:
    """What torch's symbols stand for."""
    return {s: axis_texts(source, loaded.inputs) for s, source in watch.symbols.items()}


def _place(text: str, callers: set[tuple[str, int]]) -> Place | None:
    place = place_of_text(text)
    return None if place is None or (place.file, place.line) in callers else place


def _conditions(
    watch: GuardWatch, loaded: LoadedModel, callers: set[tuple[str, int]]
) -> tuple[Condition, ...]:
    names = _names(watch, loaded)
    made = [
        Condition(readable_guard(text, names), _place(place, callers))
        for text, place in watch.found
    ]
    telling = [item for item in made if not _says_nothing(item.text)]
    return tuple(dict.fromkeys(telling))[:_MOST_CONDITIONS]


def _says_nothing(text: str) -> bool:
    """Whether a condition is that an axis is as long as itself: two symbols may stand for one."""
    left, operator, right = text.partition(" == ")
    return bool(operator) and left == right


def _specialisations(
    watch: GuardWatch, loaded: LoadedModel, rung: Rung, callers: set[tuple[str, int]]
) -> list[Specialisation]:
    names = _names(watch, loaded)
    found = []
    for text, place in watch.found:
        pair = fixed_size(text, names)
        if pair is not None:
            found.append(Specialisation(*pair, (rung.name,), _place(place, callers)))
    return found


def _merge(found: Sequence[Specialisation]) -> tuple[Specialisation, ...]:
    """One for each axis and size, with the line where any rung showed it."""
    result: dict[tuple[str, int], Specialisation] = {}
    for item in found:
        old = result.get((item.axis, item.size), item)
        rungs = tuple(dict.fromkeys((*old.rungs, *item.rungs)))
        result[item.axis, item.size] = replace(old, rungs=rungs, place=old.place or item.place)
    return tuple(result.values())


def _span(span: Range) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}..{span[1]}"
