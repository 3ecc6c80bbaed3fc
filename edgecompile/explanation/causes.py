"""The causes, in sentences: why a model is refused or slow."""

from __future__ import annotations

from collections.abc import Iterator

from edgecompile.buckets.limits import DEFAULT_MAX_BUCKETS
from edgecompile.buckets.ranges import span_text
from edgecompile.explanation.report import Cause, Explanation
from edgecompile.units import format_bytes, format_share

#: FLOPs outside the runtime's own kernels that are worth a word, as a share of all.
_NOTABLE = 0.05
_NO_GUARD = "choose between results with torch.where instead of between lines of code"
_PADDED = "a build makes padded buckets of it, one fixed length each (mode pad)"
_EACH = (
    "padding changes its outputs: only buckets of one length each serve it, for lengths that occur"
)
_RANGES = "a build makes a program for each of these lengths: {}"
_PERHAPS = "nothing proves padding harmless: a build that is to assume it makes padded buckets all the same"
_WRAP = "handle other lengths in the model, or declare in a factory's limits what it takes"


def judge(explanation: Explanation) -> str:
    """The verdict, a key of ``VERDICTS``, whatever ``verdict`` holds now."""
    export, program = explanation.export, explanation.program
    if any(kernel.kind == "missing" for kernel in program.kernels):
        return "missing-kernels"
    if program.code_failure is not None:
        return "no-code"
    accepted = [attempt for attempt in export.attempts if attempt.outcome == "accepted"]
    one_size = not any(lo < hi for lo, hi in (explanation.eager.ranges or {}).values())
    if any(one_size or not attempt.strategy.startswith("static") for attempt in accepted):
        return "dynamic"
    few = len(export.sides) <= DEFAULT_MAX_BUCKETS
    if export.sides and (few or not export.padding_safe):
        return "ranges"
    if accepted and export.padding_safe:
        return "padded"
    return "static" if accepted else "refused"


def find_causes(explanation: Explanation) -> tuple[Cause, ...]:
    """The causes, the gravest first."""
    makers = (_missing, _refusals, _limits, _slow)
    return tuple(cause for maker in makers for cause in maker(explanation))


def _missing(explanation: Explanation) -> Iterator[Cause]:
    for kernel in explanation.program.kernels:
        if kernel.kind == "missing":
            where = ", ".join(name or "the model itself" for name in kernel.modules)
            yield Cause(
                "refused",
                f"the native runtime has no kernel '{kernel.kernel}', called {kernel.calls} "
                f"time(s){f' by {where}' if where else ''}",
                "rewrite it, move it outside the model, or build for the backend torch, on "
                "hosts that have it",
                next(iter(kernel.places), None),
            )
    failure = explanation.program.code_failure
    if failure is not None:
        text = f"torch's Inductor could not generate code: {failure.text}"
        yield Cause("refused", text, failure.cure, failure.place)


def _refusals(explanation: Explanation) -> Iterator[Cause]:
    export, verdict = explanation.export, explanation.verdict
    if verdict in ("dynamic", "missing-kernels", "no-code"):
        return
    kind = "refused" if verdict == "refused" else "limit"
    padding = {None: _PERHAPS, True: _PADDED, False: _EACH}[export.padding_safe]
    if verdict == "ranges":
        padding = _RANGES.format(", ".join(map(span_text, export.sides)))
    for item in export.fixed_axes:
        text = f"{item.axis} becomes the constant {item.size} when the model is traced"
        yield Cause(kind, text, padding, item.place)
    first = next((a for a in export.attempts if a.outcome in ("refused", "wrong")), None)
    if first is not None and not export.fixed_axes:
        data = "depend on values" in first.text or bool(export.breaks)
        others = dict.fromkeys(("padded", "static", "ranges"), padding)
        cure = _NO_GUARD if data else others.get(verdict, "")
        yield Cause(kind, f"torch.export ({first.strategy}): {first.text}", cure, first.place)
    for leaving in export.breaks:
        if first is None or leaving.place is None or leaving.place != first.place:
            text = f"tracing leaves the graph: {leaving.reason}"
            yield Cause("refused", text, _NO_GUARD, leaving.place)


def _limits(explanation: Explanation) -> Iterator[Cause]:
    eager, export, verdict = explanation.eager, explanation.export, explanation.verdict
    if eager.failures and verdict != "eager-fails":
        sizes = ", ".join(
            " ".join(f"{axis} {size}" for axis, size in item.sizes.items())
            for item in eager.failures[:4]
        )
        first = eager.failures[0]
        text, cure = f"fails at {sizes}: {first.text}", _WRAP
        if eager.multiple > 1:
            text = f"works at multiples of {eager.multiple} only; it {text}"
            cure = (
                f"fill inputs up to a multiple of {eager.multiple} within the model, or name their "
                f'size "{eager.multiple}*{explanation.length_axis}" in a factory\'s axes'
            )
        yield Cause("limit", f"eager {text}", cure, first.calls[-1] if first.calls else None)
    if export.padding_safe is None and export.padding and verdict == "static":
        yield Cause("limit", export.padding, _PERHAPS)
    if export.padding_safe is False and explanation.length_axis is not None:
        text = f"padding changes its outputs: {export.padding}"
        if verdict in ("static", "padded"):
            cure = "add a mask that keeps padding out of the outputs at real positions"
            yield Cause("limit", text, cure)
        else:
            yield Cause("note", text)


def _slow(explanation: Explanation) -> Iterator[Cause]:
    program, runs = explanation.program, explanation.time.runs
    if not runs:
        return
    top = runs[-1]
    left = sum(item.flops for item in program.unlowered)
    if top.flops and left / top.flops > _NOTABLE:
        first = program.unlowered[0]
        yield Cause(
            "slow",
            f"{format_share(left / top.flops)} of its FLOPs are in {len(program.unlowered)} "
            f"product(s) not given to our kernels; first: {first.operator}, {first.reason}",
            place=first.place,
        )
    own = sum(kernel.flops for kernel in program.kernels if kernel.kind == "own")
    if program.generated is not None and not left and top.flops - own > _NOTABLE * top.flops:
        names = [
            kernel.kernel for kernel in program.kernels if kernel.kind != "own" and kernel.flops
        ]
        more = f", in {', '.join(names)}" if names else " (fused by the code generator)"
        outside = format_share((top.flops - own) / top.flops)
        yield Cause("slow", f"{outside} of its FLOPs are outside the runtime's own kernels{more}")
    bound = [run for run in runs if run.limit == "memory"]
    if bound and bound[-1].flops:
        axis, last = explanation.length_axis, bound[-1]
        ends = ", ".join(str(run.sizes[axis]) for run in bound) if axis else ""
        share = last.weight_bytes / last.moved if last.moved else 0.0
        narrower = share > 0.5 and explanation.precision == "fp32"
        yield Cause(
            "note",
            f"memory binds{f' at length {ends}' if ends else ''}: {format_bytes(last.moved)} moved "
            f"for each run, {format_share(share)} of it weights",
            "narrower weights help: precision int8, or auto" if narrower else "",
        )
