"""``explain_model``: why a model is refused or slow, found by trying rather than guessed.

No failure ends it: the rest is looked at all the same, and a note names each part that couldn't be.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from edgecompile.backends.inductor.compat.breaks import find_breaks
from edgecompile.buckets.limits import MOST_SIDES
from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import CompileError, EdgecompileError, ModelError
from edgecompile.explanation.causes import find_causes, judge
from edgecompile.explanation.eager import check_eager, error_text
from edgecompile.explanation.export import Climb, climb_ladder
from edgecompile.explanation.program import (
    LoweredProgram,
    generate_code,
    kernel_uses,
    lower_program,
    unlowered_nodes,
)
from edgecompile.explanation.report import (
    EagerFailure,
    EagerFindings,
    Explanation,
    ExportFindings,
    GraphBreak,
    ProgramFindings,
    TimeFindings,
)
from edgecompile.explanation.request import ExplainRequest
from edgecompile.explanation.work import (
    NodeWork,
    count_graph,
    limits_of,
    module_times,
    run_figures,
)
from edgecompile.export.checks import ExportScope, Range, choose_sizes, find_side_effects
from edgecompile.export.guards import quiet_torch
from edgecompile.export.ladder import trace_sizes
from edgecompile.export.operators.boxes import describe_boxes
from edgecompile.export.padding.check import check_padding
from edgecompile.export.refusal import refusal
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.source_lines import line_of_text, lines_of_error
from edgecompile.planning.scope import PlanScope
from edgecompile.planning.sides import find_sides
from edgecompile.progress import NULL_PROGRESS, Progress

#: Longest length looked at where nobody names one: a run of each operator has to fit into memory.
_LONGEST = 512


def explain_load_failure(spec: str, request: ExplainRequest, error: ModelError) -> Explanation:
    """An explanation of a model whose own code fails while it is loaded.

    Raises:
        ModelError: the same error, if no code of the model took part in it.
    """
    calls = lines_of_error(error)
    if error.__cause__ is None or not calls:
        raise error
    failure = EagerFailure({}, error_text(error), calls)
    notes = ("the model couldn't be loaded: nothing else was looked at",)
    eager = EagerFindings((failure,))
    return replace(_start(spec, request), verdict="eager-fails", eager=eager, notes=notes)


def explain_model(
    loaded: LoadedModel, request: ExplainRequest, progress: Progress = NULL_PROGRESS
) -> Explanation:
    """Runs, exports and lowers a model, and collects what each step gives.

    Raises:
        ModelError: the range asked for is outside the model's.
    """
    notes: list[str] = list(loaded.notes)
    ranges = _ranges(loaded, request, notes)
    traced = trace_sizes(loaded, ranges)
    with progress.step("run eager") as step:
        eager = check_eager(loaded, ranges, traced)
        if eager.ranges is None:
            step.note("it fails")
    start = replace(_start(loaded.name, request), length_axis=loaded.length_axis, eager=eager)
    if eager.ranges is None:
        return replace(start, verdict="eager-fails", notes=tuple(notes))
    if eager.failures:
        traced = trace_sizes(loaded, eager.ranges)
        axis = loaded.length_axis
        if eager.multiple > 1 and axis is not None:
            whole = traced[axis] // eager.multiple * eager.multiple
            traced[axis] = max(whole, eager.ranges[axis][0])
        else:
            shown = ", ".join(f"{axis} {lo}..{hi}" for axis, (lo, hi) in eager.ranges.items())
            notes.append(f"eager works within {shown}; the rest is about these sizes")
    subject = ExportScope(loaded, eager.ranges, traced)
    effects = find_side_effects(loaded, traced, {axis: hi for axis, (_, hi) in ranges.items()})

    climb = _climb(subject, request, progress)
    sides: tuple[tuple[int, ...], ...] = ()
    if not climb.whole and subject.varies and eager.multiple == 1 and not effects.problem:
        with progress.step("divide the lengths") as step:
            sides = _sides(subject, climb, notes)
            step.note(f"{len(sides)} ranges" if sides else "no ranges serve all of them")
    breaks: tuple[GraphBreak, ...] = ()
    if climb.program is None or request.every:
        with progress.step("look for graph breaks"):
            breaks = _breaks(subject, notes)
    with progress.step("try padding"):
        padding, safe = _try_padding(subject, eager.multiple)
    explanation = replace(
        start, export=ExportFindings(climb.attempts, climb.fixed_axes, breaks, padding, safe, sides)
    )
    if climb.program is not None:
        lowered = lower_program(climb.program, request.precision)
        static = subject.varies and all(lo == hi for lo, hi in climb.ranges.values())
        with progress.step("run the graph") as step:
            times, flops = _count_work(subject, climb, lowered, request, notes)
            step.note(f"{len(times.runs)} sizes")
        with progress.step("generate code"):
            code, failure = generate_code(subject, lowered, request, notes)
        program = ProgramFindings(
            graph="static" if static else "dynamic",
            sizes=dict(traced) if static else {},
            kernels=kernel_uses(lowered, code, flops),
            unlowered=unlowered_nodes(lowered, flops),
            generated=None if code is None else code.kernels.count('extern "C"'),
            code_failure=failure,
        )
        explanation = replace(explanation, program=program, time=times)
        boxes = describe_boxes(climb.program.graph)
        if boxes and request.target.gpu is not None:
            notes.append(f"TensorRT takes no {boxes}: build with the backend triton")
    if effects.problem:
        notes.insert(0, f"the model {effects.problem}")
    notes += effects.notes
    verdict = "unfit" if effects.problem else judge(explanation)
    explanation = replace(explanation, verdict=verdict, notes=tuple(dict.fromkeys(notes)))
    return replace(explanation, causes=find_causes(explanation))


def _start(name: str, request: ExplainRequest) -> Explanation:
    return Explanation(name, request.target.name, str(request.precision.name), "refused")


def _ranges(loaded: LoadedModel, request: ExplainRequest, notes: list[str]) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for axis, limits in loaded.axes.items():
        hi = limits.hi
        if axis == loaded.length_axis and request.max_length is not None:
            hi = min(request.max_length, hi or request.max_length)
        elif hi is None or hi > _LONGEST:
            limit = limits.hi or "none"
            notes.append(f"{axis} is looked at up to {_LONGEST}; its limit is {limit}")
            hi = _LONGEST
        if hi < limits.lo:
            raise ModelError(f"{axis} up to {hi} isn't within what the model allows, {limits}")
        ranges[axis] = (limits.lo, hi)
    return ranges


def _climb(subject: ExportScope, request: ExplainRequest, progress: Progress) -> Climb:
    """The ladder; where no strategy serves all sizes, also that of a single size."""
    with progress.step("export") as step:
        climb = climb_ladder(subject, every=request.every, step=step)
        if climb.whole or not subject.varies:
            return climb
        fixed = {axis: (size, size) for axis, size in subject.traced.items()}
        static = climb_ladder(replace(subject, ranges=fixed), step=step)
    climb = replace(climb, attempts=(*climb.attempts, *static.attempts))
    if climb.program is not None and all(
        lo < hi or subject.ranges[axis][0] == subject.ranges[axis][1]
        for axis, (lo, hi) in climb.ranges.items()
    ):
        return climb
    return replace(climb, program=static.program, ranges=static.ranges)


def _sides(subject: ExportScope, climb: Climb, notes: list[str]) -> tuple[tuple[int, ...], ...]:
    """The lengths that a build would make a program each for, if they serve all lengths.

    Each is the smallest and the largest length, and the step between neighbours if it isn't 1.
    """
    axis = subject.loaded.length_axis
    if axis is None or subject.ranges[axis][0] == subject.ranges[axis][1]:
        return ()
    lo, hi = subject.ranges[axis]
    names = [axis, *(name for name in subject.ranges if name != axis)]
    axes = tuple((name, AxisRange(*subject.ranges[name], subject.traced[name])) for name in names)
    lengths = LengthDistribution.from_counts(dict.fromkeys(range(lo, hi + 1), 1))
    try:
        with tempfile.TemporaryDirectory(prefix="edgecompile-explain-") as folder:
            exports = ExportStore(subject.loaded, Path(folder))
            error = refusal(subject, climb.tried)
            sides = find_sides(exports, PlanScope(lengths, axes), error, MOST_SIDES, notes)
    except EdgecompileError as failure:
        notes.append(f"ranges of lengths with a program each weren't found: {failure.message}")
        return ()
    if not sides or (sides[0][0], max(side[1] for side in sides)) != (lo, hi):
        return ()
    return tuple(side if side[2] > 1 else side[:2] for side in sides)


def _breaks(subject: ExportScope, notes: list[str]) -> tuple[GraphBreak, ...]:
    loaded = subject.loaded
    try:
        with quiet_torch():
            breaks = find_breaks(loaded.module, loaded.make_example(subject.traced, seed=1))
    except CompileError as error:
        notes.append(f"graph breaks weren't found: {error.message}")
        return ()
    return tuple(dict.fromkeys(GraphBreak(b.reason, line_of_text(b.place)) for b in breaks))


def _try_padding(subject: ExportScope, multiple: int) -> tuple[str, bool | None]:
    """The effect of padding on the outputs, and whether it leaves them; None where unknown."""
    axis, traced = subject.loaded.length_axis, subject.traced
    if axis is None or subject.loaded.axes[axis].lo == subject.loaded.axes[axis].hi:
        return "the model has one size, so nothing is padded", None
    hi = subject.ranges[axis][1]
    # Where a model's formula depends on the length, only some lengths show it: those of the checks.
    lengths = sorted({sizes[axis] for sizes in choose_sizes(subject.ranges, traced, axis)})
    lengths = [length for length in lengths if length % multiple == 0]
    pairs = [(a, b) for b in (hi, traced[axis]) for a in lengths if a < b]
    if traced[axis] < hi:
        pairs.append((traced[axis], min(hi, 2 * traced[axis])))
    try:
        verdict = check_padding(subject.loaded, tuple(dict.fromkeys(pairs)))
    except EdgecompileError as error:
        return f"not known: {error.message}", None
    if not verdict.safe:
        return verdict.reason, False if verdict.harmful else None
    trials = len(verdict.tried)
    return (
        f"is proven to leave the outputs as they are, and did in {trials} trials at lengths up "
        f"to {hi}",
        True,
    )


def _count_work(
    subject: ExportScope,
    climb: Climb,
    lowered: LoweredProgram,
    request: ExplainRequest,
    notes: list[str],
) -> tuple[TimeFindings, dict[str, int]]:
    """The work at powers of two and the longest length, and FLOPs by node at the last."""
    limits = limits_of(request.target, request.precision.name)
    if limits is None:
        notes.append(f"the profile {request.target.name} states no peak or bandwidth")
    sizes = {axis: climb.ranges[axis][0] for axis in subject.traced}
    axis = subject.loaded.length_axis
    lengths = [0]
    if axis is not None:
        lo, hi = climb.ranges[axis]
        lengths = [*(2**i for i in range(4, 31) if lo <= 2**i < hi), hi]
        if lo < hi < subject.ranges[axis][1]:
            notes.append(
                f"lengths over {hi} aren't served by this program: there are no figures of them"
            )
    runs = []
    last: tuple[NodeWork, ...] = ()
    for length in lengths:
        if axis is not None:
            sizes[axis] = length
        try:
            last = count_graph(lowered.gm, subject.loaded.make_example(sizes, seed=7))
        except Exception as error:  # whatever an operator raises
            notes.append(f"the graph fails at {sizes}: {type(error).__name__}: {error}")
            continue
        runs.append(run_figures(last, sizes, limits))
    modules = module_times(lowered, last, limits)
    return TimeFindings(tuple(runs), modules), {item.node.name: item.flops for item in last}
