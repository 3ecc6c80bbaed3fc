"""``explain_model``: why a model is refused or slow, found out rather than guessed.

Nothing here stops at the first thing that fails: what can still be looked at is, and what can't is
said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgecompile.backends.inductor_compat import find_breaks
from edgecompile.errors import CompileError, EdgecompileError, ModelError
from edgecompile.explanation.difference import compare_programs
from edgecompile.explanation.eager import check_eager, error_text
from edgecompile.explanation.export import Climb, climb_ladder, export_static
from edgecompile.explanation.findings import find_causes, judge
from edgecompile.explanation.program import look_at_program
from edgecompile.explanation.report import EagerFailure, Explanation, GraphBreak
from edgecompile.explanation.request import ExplainRequest
from edgecompile.export.checks import Range, choose_sizes, find_side_effects
from edgecompile.export.guards import quiet_torch
from edgecompile.export.ladder import trace_sizes
from edgecompile.export.padding.check import check_padding
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.source_lines import place_of_text, places_of_error
from edgecompile.progress import NULL_PROGRESS, Progress

__all__ = ["ExplainRequest", "explain_load_failure", "explain_model"]

#: Longest length looked at where nobody names one: a run of each operator has to fit into memory.
_LONGEST = 512


def explain_load_failure(spec: str, request: ExplainRequest, error: ModelError) -> Explanation:
    """An explanation of a model whose own code fails while it is loaded.

    Raises:
        ModelError: the same error, if no code of the model took part in it.
    """
    calls = places_of_error(error)
    if error.__cause__ is None or not calls:
        raise error
    failure = EagerFailure({}, error_text(error), calls)
    found = _start(spec, request, "eager-fails", eager=(failure,))
    return replace(found, notes=("the model couldn't be loaded: nothing else was looked at",))


def explain_model(
    loaded: LoadedModel, request: ExplainRequest, progress: Progress = NULL_PROGRESS
) -> Explanation:
    """Looks at a model from all sides.

    Raises:
        ModelError: a range makes no sense for the model.
    """
    notes: list[str] = list(loaded.notes)
    spans = _spans(loaded, request, notes)
    found = _start(loaded.name, request, "refused", length_axis=loaded.length_axis, ranges=spans)
    with progress.step("run eager") as step:
        traced = trace_sizes(loaded, spans)
        eager = check_eager(loaded, spans, traced)
        if eager.spans is None:
            step.note("it fails")
    found = replace(found, eager=eager.failures, multiple=eager.multiple)
    if eager.spans is None:
        return replace(found, verdict="eager-fails", notes=tuple(notes))
    if eager.failures:
        spans = dict(eager.spans)
        traced = trace_sizes(loaded, spans)
    if eager.multiple > 1:
        axis = str(loaded.length_axis)
        traced[axis] = max(traced[axis] // eager.multiple * eager.multiple, spans[axis][0])
    elif eager.failures:
        shown = ", ".join(f"{axis} {lo}..{hi}" for axis, (lo, hi) in spans.items())
        notes.append(f"eager works within {shown}; the rest is about these sizes")
    found = replace(found, ranges=spans)
    effects = find_side_effects(loaded, traced, {axis: hi for axis, (_, hi) in spans.items()})

    climb = _climb(loaded, spans, traced, request, progress)
    found = replace(found, rungs=climb.results, specialisations=climb.specialisations)
    if climb.program is None or request.every:
        found = _add_breaks(found, loaded, traced, notes, progress)
    with progress.step("try padding"):
        found = _add_padding(found, loaded, spans, traced)
    found = _add_differences(found, loaded, spans, traced, request, progress)
    found = look_at_program(found, loaded, climb, spans, traced, request, notes, progress)
    verdict = "unfit" if effects.problem else judge(found)
    if effects.problem:
        notes.insert(0, f"the model {effects.problem}")
    notes += effects.notes
    found = replace(found, verdict=verdict, notes=tuple(dict.fromkeys(notes)))
    return replace(found, findings=find_causes(found))


def _start(name: str, request: ExplainRequest, verdict: str, **more: object) -> Explanation:
    precision = str(request.precision.name)
    return Explanation(name, request.target.name, precision, verdict, **more)  # type: ignore[arg-type]


def _spans(loaded: LoadedModel, request: ExplainRequest, notes: list[str]) -> dict[str, Range]:
    spans: dict[str, Range] = {}
    for axis, limits in loaded.axes.items():
        hi = limits.hi
        if axis == loaded.length_axis and request.max_length is not None:
            hi = min(request.max_length, hi or request.max_length)
        elif hi is None or hi > _LONGEST:
            notes.append(
                f"{axis} is looked at up to {_LONGEST}; its limit is {limits.hi or 'none'}"
            )
            hi = _LONGEST
        if hi < limits.lo:
            raise ModelError(f"{axis} up to {hi} isn't within what the model allows, {limits}")
        spans[axis] = (limits.lo, hi)
    return spans


def _climb(
    loaded: LoadedModel,
    spans: Mapping[str, Range],
    traced: Mapping[str, int],
    request: ExplainRequest,
    progress: Progress,
) -> Climb:
    """The ladder; where no rung serves all sizes, also that of a single size."""
    with progress.step("export") as step:
        climb = climb_ladder(loaded, spans, traced, every=request.every, step=step)
        if climb.whole or all(lo == hi for lo, hi in spans.values()):
            return climb
        fixed = {axis: (size, size) for axis, size in traced.items()}
        static = climb_ladder(loaded, fixed, traced, step=step)
    results = (*climb.results, *static.results)
    merged = replace(climb, results=results)
    if climb.program is not None and all(
        lo < hi or spans[axis][0] == spans[axis][1] for axis, (lo, hi) in climb.ranges.items()
    ):
        return merged
    return replace(merged, program=static.program, ranges=static.ranges)


def _add_breaks(
    found: Explanation,
    loaded: LoadedModel,
    traced: Mapping[str, int],
    notes: list[str],
    progress: Progress,
) -> Explanation:
    with progress.step("look for graph breaks"):
        try:
            with quiet_torch():
                breaks = find_breaks(loaded.module, loaded.make_example(traced, seed=1))
        except CompileError as error:
            notes.append(f"graph breaks weren't found: {error.message}")
            return found
    made = [GraphBreak(item.reason, place_of_text(item.place)) for item in breaks]
    return replace(found, breaks=tuple(dict.fromkeys(made)))


def _add_padding(
    found: Explanation,
    loaded: LoadedModel,
    spans: Mapping[str, Range],
    traced: Mapping[str, int],
) -> Explanation:
    axis = loaded.length_axis
    if axis is None or loaded.axes[axis].lo == loaded.axes[axis].hi:
        return replace(found, padding="the model has one size, so nothing is padded")
    hi = spans[axis][1]
    # Where a model's formula depends on the length, only some lengths show it: those of the checks.
    lengths = sorted({sizes[axis] for sizes in choose_sizes(spans, traced, axis)})
    lengths = [length for length in lengths if length % found.multiple == 0]
    pairs = [(a, b) for b in (hi, traced[axis]) for a in lengths if a < b]
    if traced[axis] < hi:
        pairs.append((traced[axis], min(hi, 2 * traced[axis])))
    tried = tuple(dict.fromkeys(pairs))
    try:
        verdict = check_padding(loaded, tried)
    except EdgecompileError as error:
        return replace(found, padding=f"not known: {error.message}")
    if not verdict.safe:
        return replace(
            found, padding=verdict.reason, padding_safe=False if verdict.harmful else None
        )
    text = (
        f"is proven to leave the outputs as they are, and did in {len(verdict.tried)} trials at "
        f"lengths up to {hi}"
    )
    return replace(found, padding=text, padding_safe=True)


def _add_differences(
    found: Explanation,
    loaded: LoadedModel,
    spans: Mapping[str, Range],
    traced: Mapping[str, int],
    request: ExplainRequest,
    progress: Progress,
) -> Explanation:
    axis = loaded.length_axis
    if axis is None:
        return found
    pair = request.compare or _pair(found, axis, spans[axis], traced[axis])
    if pair is None:
        return found
    with progress.step("compare two lengths"):
        programs = [export_static(loaded, {**traced, axis: length}) for length in pair]
        if programs[0] is None or programs[1] is None:
            return found
        difference = compare_programs(programs[0], programs[1], pair)
    return replace(
        found, compared=pair, differences=difference.differences, follow=difference.follow
    )


def _pair(found: Explanation, axis: str, span: Range, traced: int) -> tuple[int, int] | None:
    """The traced length, and one at which a program was wrong, or else its double."""
    wrong = [sizes[axis] for rung in found.rungs for sizes, _ in rung.wrong]
    other = next((size for size in wrong if size != traced), None)
    if other is None:
        other = 2 * traced if 2 * traced <= span[1] else span[1]
    if other == traced:
        other = max(span[0], traced // 2)
    return None if other == traced else (min(traced, other), max(traced, other))
