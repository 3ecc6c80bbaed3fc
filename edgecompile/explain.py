"""``explain_model``: why a model is refused or slow, found out rather than guessed.

Nothing here stops at the first thing that fails: what can still be looked at is, and what can't is
said.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from edgecompile.backends.inductor_compat import GeneratedCpp, find_breaks
from edgecompile.errors import CompileError, EdgecompileError, ModelError
from edgecompile.explain_eager import check_eager, eager_operators, error_text
from edgecompile.explain_export import Climb, climb_ladder, export_static, trace_sizes
from edgecompile.explain_findings import find_causes, judge
from edgecompile.explain_kernels import (
    LoweredProgram,
    generate,
    kernel_uses,
    kept_nodes,
    lower_program,
    operator_uses,
)
from edgecompile.explain_work import (
    bucket_figures,
    limits_of,
    memory_points,
    module_uses,
    peak_tensors,
)
from edgecompile.explanation import BucketFigures, EagerFailure, Explanation, GraphBreak
from edgecompile.export_checks import Range, find_side_effects
from edgecompile.graph_difference import compare_programs
from edgecompile.graph_run import GraphRun
from edgecompile.guards import quiet_torch
from edgecompile.models import LoadedModel
from edgecompile.padding import check_padding
from edgecompile.places import place_of_text, places_of_error
from edgecompile.precision import FP32, Precision
from edgecompile.progress import NULL_PROGRESS, Progress
from edgecompile.targets import TargetProfile
from edgecompile.toolchain import find_toolchain

__all__ = ["ExplainRequest", "explain_load_failure", "explain_model"]

#: Longest length looked at where nobody names one: a run of each operator has to fit into memory.
_LONGEST = 512


@dataclass(frozen=True)
class ExplainRequest:
    """What to look at.

    Attributes:
        target: whose figures and variants count.
        precision: of the linears' weights.
        max_length: the longest length; None: the model's own limit, 512 at most.
        buckets: (lo, hi) lengths, ascending; None: powers of two up to the longest.
        compare: two lengths whose graphs are compared; None: chosen.
        code: generate code, to know all kernels that it calls.
        every: try every rung of the ladder and look for graph breaks, even if one was accepted.
    """

    target: TargetProfile
    precision: Precision = FP32
    max_length: int | None = None
    buckets: tuple[Range, ...] | None = None
    compare: tuple[int, int] | None = None
    code: bool = True
    every: bool = False


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
    found = replace(found, eager=eager.failures)
    if eager.spans is None:
        return replace(found, verdict="eager-fails", notes=tuple(notes))
    if eager.failures:
        spans = dict(eager.spans)
        shown = ", ".join(f"{axis} {lo}..{hi}" for axis, (lo, hi) in spans.items())
        notes.append(f"eager works within {shown}; the rest is about these sizes")
        traced = trace_sizes(loaded, spans)
        if eager.multiple > 1:
            axis = str(loaded.length_axis)
            notes.append(f"eager works where {axis} is a multiple of {eager.multiple} only")
            traced[axis] = max(traced[axis] // eager.multiple * eager.multiple, spans[axis][0])
    found = replace(found, ranges=spans)
    effect = find_side_effects(loaded, traced)

    climb = _climb(loaded, spans, traced, request, progress)
    found = replace(found, rungs=climb.results, specialisations=climb.specialisations)
    if climb.program is None or request.every:
        found = _add_breaks(found, loaded, traced, notes, progress)
    with progress.step("try padding"):
        found = _add_padding(found, loaded, spans, eager.multiple)
    found = _add_differences(found, loaded, spans, traced, request, progress)
    found = _look_at_graph(found, loaded, climb, spans, traced, request, notes, progress)
    verdict = "unfit" if effect is not None else judge(found)
    if effect is not None:
        notes.insert(0, f"the model {effect}")
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
            notes.append(f"{axis} is looked at up to {_LONGEST}; its limit is {limits.hi or 'none'}")
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
    found: Explanation, loaded: LoadedModel, spans: Mapping[str, Range], multiple: int
) -> Explanation:
    axis = loaded.length_axis
    if axis is None:
        return replace(found, padding="the model has no length axis")
    lo, hi = spans[axis]
    pairs = [(lo, hi), (max(lo, hi // 3), hi), (max(lo, hi // 2), min(hi, hi // 2 + 1))]
    pairs = [(a // multiple * multiple, b // multiple * multiple) for a, b in pairs]
    tried = [(a, b) for a, b in dict.fromkeys(pairs) if lo <= a < b <= hi]
    try:
        verdict = check_padding(loaded, tried)
    except EdgecompileError as error:
        return replace(found, padding=f"not known: {error.message}")
    if not verdict.safe:
        return replace(found, padding=verdict.reason, padding_safe=False)
    shown = ", ".join(f"{a} in {b}" for a, b in verdict.tried)
    return replace(found, padding=f"leaves the outputs as they are ({shown})", padding_safe=True)


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


def _look_at_graph(
    found: Explanation,
    loaded: LoadedModel,
    climb: Climb,
    spans: Mapping[str, Range],
    traced: Mapping[str, int],
    request: ExplainRequest,
    notes: list[str],
    progress: Progress,
) -> Explanation:
    if climb.program is None:
        notes.append("there is no graph: operators are those that the eager model calls")
        operators, modules = eager_operators(loaded, traced)
        return replace(found, operators=operators, modules=modules)
    fixed = all(lo == hi for lo, hi in climb.ranges.values()) and any(
        lo < hi for lo, hi in spans.values()
    )
    found = replace(
        found, graph="static" if fixed else "dynamic", graph_sizes=dict(traced) if fixed else {}
    )
    lowered = lower_program(climb.program, request.precision)
    with progress.step("run the graph") as step:
        figures, last = _all_figures(
            loaded, lowered, climb, spans, traced, request, fixed, notes
        )
        step.note(f"{len(figures)} sizes")
    flops: dict[str, int] = {}
    if last is not None:
        program, run = last
        flops = {cost.node.name: cost.flops for cost in run.costs}
        found = replace(
            found,
            buckets=figures,
            modules=module_uses(program, run, limits_of(request.target, request.precision.name)),
            memory=memory_points(program, run),
            peak_tensors=peak_tensors(program, run),
        )
        lowered = program
    generated = _generate(loaded, lowered, climb, traced, request, notes, progress)
    found = replace(
        found,
        operators=operator_uses(lowered),
        kernels=kernel_uses(lowered, generated, flops),
        kept=kept_nodes(lowered, flops),
    )
    if generated is not None:
        found = replace(found, generated=generated.kernels.count('extern "C"'))
    return found


def _all_figures(
    loaded: LoadedModel,
    lowered: LoweredProgram,
    climb: Climb,
    spans: Mapping[str, Range],
    traced: Mapping[str, int],
    request: ExplainRequest,
    fixed: bool,
    notes: list[str],
) -> tuple[tuple[BucketFigures, ...], tuple[LoweredProgram, GraphRun] | None]:
    """Figures of every bucket, and the last bucket's program and run."""
    axis = loaded.length_axis
    limits = limits_of(request.target, request.precision.name)
    if limits is None:
        notes.append(f"the profile {request.target.name} states no peak or bandwidth: no limit binds")
    if axis is None:
        wanted: Sequence[Range | None] = [None]
    else:
        lo, hi = (spans if fixed else climb.ranges)[axis]
        given = request.buckets or _powers(lo, hi)
        wanted = [(a, min(b, hi)) for a, b in given if lo <= min(b, hi)]
        left = [b for _, b in given if b > hi]
        if left:
            notes.append(f"lengths over {hi} have no program: no figures for {left[0]} and more")
    figures: list[BucketFigures] = []
    last: tuple[LoweredProgram, GraphRun] | None = None
    for span in dict.fromkeys(wanted):
        sizes = {**_least(climb.ranges, traced), **({} if span is None else {str(axis): span[1]})}
        program: LoweredProgram | None = lowered
        if fixed and dict(traced) != sizes:
            exported = export_static(loaded, sizes)
            program = None if exported is None else lower_program(exported, request.precision)
        if program is None:
            notes.append(f"no graph for {sizes}")
            continue
        try:
            result, run = bucket_figures(
                program, loaded.make_example(sizes, seed=7), sizes, span, limits
            )
        except Exception as error:  # whatever an operator raises
            notes.append(f"the graph fails at {sizes}: {type(error).__name__}: {error}")
            continue
        figures.append(result)
        last = program, run
    return tuple(figures), last


def _least(ranges: Mapping[str, Range], traced: Mapping[str, int]) -> dict[str, int]:
    """The least size of each axis, but for sizes that a program is fixed to."""
    return {axis: ranges[axis][0] if axis in ranges else size for axis, size in traced.items()}


def _powers(lo: int, hi: int) -> list[Range]:
    """Buckets that end at powers of two from 16 up, and at the longest length."""
    ends = [2**i for i in range(4, 31) if lo <= 2**i < hi]
    result = []
    for end in (*ends, hi):
        result.append((lo, end))
        lo = end + 1
    return result


def _generate(
    loaded: LoadedModel,
    lowered: LoweredProgram,
    climb: Climb,
    traced: Mapping[str, int],
    request: ExplainRequest,
    notes: list[str],
    progress: Progress,
) -> GeneratedCpp | None:
    if not request.code:
        notes.append("no code was generated: kernels that the lowering didn't put in aren't known")
        return None
    variant = request.target.variants[-1]
    sizes = dict(traced)
    for name, tensor in _static_sizes(loaded, lowered).items():
        sizes[name] = tensor
    with progress.step("generate code"), tempfile.TemporaryDirectory() as folder:
        try:
            cxx = find_toolchain(variant.arch).cxx
            with quiet_torch():
                return generate(
                    lowered, loaded.make_example(sizes, seed=7), variant, Path(folder), cxx
                )
        except EdgecompileError as error:
            notes.append(f"no code was generated: {error.message}")
    return None


def _static_sizes(loaded: LoadedModel, lowered: LoweredProgram) -> dict[str, int]:
    """Sizes that the graph's inputs are fixed to."""
    result: dict[str, int] = {}
    nodes = [node for node in lowered.gm.graph.nodes if node.op == "placeholder"]
    for spec, node in zip(loaded.inputs, nodes, strict=True):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for axis, size in zip(spec.shape, value.shape, strict=True):
            if isinstance(axis, str) and isinstance(size, int):
                result[axis] = size
    return result
