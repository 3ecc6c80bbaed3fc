"""What a model's graph consists of, costs and becomes; or what eager does, where there is none."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from edgecompile.backends.codegen_failures import CodegenFailure, read_failure
from edgecompile.backends.inductor_compat import GeneratedCpp
from edgecompile.errors import CompileError, EdgecompileError
from edgecompile.explanation.eager import eager_operators
from edgecompile.explanation.export import Climb, export_static
from edgecompile.explanation.graph_run import GraphRun
from edgecompile.explanation.kernels import (
    LoweredProgram,
    generate,
    kept_nodes,
    kernel_uses,
    lower_program,
    operator_uses,
)
from edgecompile.explanation.report import BucketFigures, Explanation
from edgecompile.explanation.request import ExplainRequest
from edgecompile.explanation.work import (
    bucket_figures,
    limits_of,
    memory_points,
    module_uses,
    peak_tensors,
)
from edgecompile.export.checks import Range
from edgecompile.export.guards import quiet_torch
from edgecompile.models.loaded import LoadedModel
from edgecompile.progress import Progress
from edgecompile.toolchain.compilers import find_toolchain

__all__ = ["look_at_program"]

_NO_CODE = "no code was generated: kernels that the lowering didn't put in aren't known"


def look_at_program(
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
        figures, last = _all_figures(loaded, lowered, climb, spans, traced, request, fixed, notes)
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
    generated, failure = _generate(loaded, lowered, traced, request, notes, progress)
    found = replace(
        found,
        code_failure=failure,
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
        notes.append(
            f"the profile {request.target.name} states no peak or bandwidth: no limit binds"
        )
    if axis is None:
        wanted: Sequence[Range | None] = [None]
    else:
        lo, hi = (spans if fixed else climb.ranges)[axis]
        given = request.buckets or _powers(*spans[axis])
        wanted = [(max(a, lo), min(b, hi)) for a, b in given if a <= hi and b >= lo]
        if given[-1][1] > hi:
            notes.append(f"lengths over {hi} have no program, and so no figures")
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
    traced: Mapping[str, int],
    request: ExplainRequest,
    notes: list[str],
    progress: Progress,
) -> tuple[GeneratedCpp | None, CodegenFailure | None]:
    """The generated code, or why a build would get none; neither where it can't be found out."""
    if not request.code:
        notes.append(_NO_CODE)
        return None, None
    variant = request.target.variants[-1]
    sizes = dict(traced)
    for name, tensor in _static_sizes(loaded, lowered).items():
        sizes[name] = tensor
    with progress.step("generate code"), tempfile.TemporaryDirectory() as folder:
        try:
            cxx = find_toolchain(variant.arch).cxx
            with quiet_torch():
                example = loaded.make_example(sizes, seed=7)
                return generate(lowered, example, variant, Path(folder), cxx), None
        except CompileError as error:
            notes.append(_NO_CODE)
            if error.__cause__ is not None:
                return None, read_failure(error.__cause__)
            return None, CodegenFailure(error.message, error.hint or "")
        except EdgecompileError as error:
            # Of this machine, such as a compiler that isn't installed: the model may be fine.
            notes.append(f"no code was generated: {error.message}")
    return None, None


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
