"""The causes, in sentences: why a model is refused, and what makes it slow."""

from __future__ import annotations

from collections.abc import Iterator

from edgecompile.explanation.report import Explanation, Finding
from edgecompile.models.source_lines import place_of_text
from edgecompile.units import format_bytes, format_share

__all__ = ["find_causes", "judge"]

#: Work outside the runtime's own kernels that is worth a word, as a share of all.
_NOTABLE = 0.05
_NO_GUARD = "choose between results with torch.where instead of between lines of code"
_PADDED = "a build makes padded buckets of it, one fixed length each: --mode pad"
_EACH = (
    "padding changes its outputs: only buckets of one length each serve it, for lengths that occur"
)
_PERHAPS = "nothing proves padding harmless: --assume-paddable makes padded buckets all the same"
_WRAP = "handle other lengths in the model, or declare in a factory's limits what it takes"


def judge(found: Explanation) -> str:
    """The verdict, a key of ``VERDICTS``, from what was found; whatever stands in ``verdict`` now."""
    if any(kernel.kind == "missing" for kernel in found.kernels):
        return "missing-kernels"
    if found.code_failure is not None:
        return "no-code"
    accepted = [rung for rung in found.rungs if rung.outcome == "accepted"]
    if any(not rung.rung.startswith("static") for rung in accepted):
        return "dynamic"
    if accepted and not any(lo < hi for lo, hi in found.ranges.values()):
        return "dynamic"
    if accepted and found.padding_safe:
        return "padded"
    if any(rung.outcome == "narrower" and rung.right and not rung.wrong for rung in found.rungs):
        return "narrower"
    return "static" if accepted else "refused"


def find_causes(found: Explanation) -> tuple[Finding, ...]:
    """The findings, the gravest first."""
    return tuple((*_refusals(found), *_limits(found), *_slow(found)))


def _refusals(found: Explanation) -> Iterator[Finding]:
    for kernel in found.kernels:
        if kernel.kind == "missing":
            where = ", ".join(name or "the model itself" for name in kernel.modules)
            yield Finding(
                "refused",
                f"the native runtime has no kernel '{kernel.kernel}', called {kernel.calls} "
                f"time(s){f' by {where}' if where else ''}",
                "rewrite it, move it outside the model, or build with --runtime torch for hosts "
                "that have torch",
                place_of_text(next(iter(kernel.places), None)),
            )
    failure = found.code_failure
    if failure is not None:
        text = f"torch's Inductor could not generate code: {failure.text}"
        yield Finding("refused", text, failure.cure, failure.place)
    if found.verdict in ("dynamic", "missing-kernels", "no-code"):
        return
    for item in found.specialisations:
        yield Finding(
            "refused" if found.verdict == "refused" else "limit",
            f"{item.axis} becomes the constant {item.size} when the model is traced",
            _padding_cure(found),
            item.place,
        )
    fixed = {item.axis for item in found.specialisations}
    first = next((rung for rung in found.rungs if rung.outcome in ("refused", "wrong")), None)
    if first is not None and not fixed:
        data = "depend on values" in first.text or bool(found.breaks)
        static = found.verdict in ("padded", "static")
        cure = _NO_GUARD if data else _padding_cure(found) if static else ""
        text = f"torch.export ({first.rung}): {first.text}"
        yield Finding("refused" if found.verdict == "refused" else "limit", text, cure, first.place)
    for leaving in found.breaks:
        if first is None or leaving.place is None or leaving.place != first.place:
            text = f"tracing leaves the graph: {leaving.reason}"
            yield Finding("refused", text, _NO_GUARD, leaving.place)


def _padding_cure(found: Explanation) -> str:
    if found.padding_safe is None:
        return _PERHAPS
    return _PADDED if found.padding_safe else _EACH


def _limits(found: Explanation) -> Iterator[Finding]:
    if found.eager and found.verdict != "eager-fails":
        sizes = ", ".join(
            " ".join(f"{axis} {size}" for axis, size in item.sizes.items())
            for item in found.eager[:4]
        )
        calls = found.eager[0].calls
        text = f"eager fails at {sizes}: {found.eager[0].text}"
        cure = _WRAP
        if found.multiple > 1:
            text = f"eager works at multiples of {found.multiple} only; it {text[6:]}"
            cure = f"fill inputs up to a multiple of {found.multiple} within the model"
        yield Finding("limit", text, cure, calls[-1] if calls else None)
    if found.padding_safe is None and found.padding and found.verdict == "static":
        yield Finding("limit", found.padding, _PERHAPS)
    if found.padding_safe is False and found.length_axis is not None:
        needed = found.verdict in ("static", "padded")
        yield Finding(
            "limit" if needed else "note",
            f"padding changes its outputs: {found.padding}",
            "a mask, of which its outputs at real positions don't depend, would mend it"
            if needed
            else "",
        )
    for item in found.differences:
        if item.kind == "only" and found.compared is not None:
            one, other = found.compared
            first, second = item.counts or (0, 0)
            text = f"{_counted(first, 'operator')} at length {one}, {second} at {other}"
            if first == second:
                text = f"other operators at length {other} than at {one}"
            text += ": the program itself depends on the length"
            yield Finding("note", text, "", item.place)
            break


def _slow(found: Explanation) -> Iterator[Finding]:
    if not found.buckets:
        return
    top = found.buckets[-1]
    kept = sum(item.flops for item in found.kept)
    if top.flops and kept / top.flops > _NOTABLE:
        first = found.kept[0]
        products = _counted(len(found.kept), "product")
        yield Finding(
            "slow",
            f"{format_share(kept / top.flops)} of its work is in {products} not given to our "
            f"kernels; first: {first.operator}, {first.reason}",
            "",
            first.place,
        )
    own = sum(kernel.flops for kernel in found.kernels if kernel.kind == "own")
    known = sum(kernel.flops for kernel in found.kernels)
    if found.generated is not None and top.flops and (top.flops - own) / top.flops > _NOTABLE:
        names = [k.kernel for k in found.kernels if k.kind != "own" and k.flops]
        more = f", in {', '.join(names)}" if names else " (fused by the code generator)"
        if known >= own and not kept:
            yield Finding(
                "slow",
                f"{format_share((top.flops - own) / top.flops)} of its work is outside the "
                f"runtime's own kernels{more}",
            )
    wide = [u for u in found.operators if u.operator in ("aten.to", "aten._to_copy", "aten.clone")]
    copies = sum(use.count for use in wide)
    total = sum(use.count for use in found.operators)
    if total and copies / total > 0.2:
        yield Finding(
            "slow", f"{copies} of its {total} operators copy or convert tensors", "", None
        )
    memory = [b for b in found.buckets if b.limit == "memory"]
    if memory and memory[-1].flops:
        ends = ", ".join(str(b.hi) for b in memory if b.hi is not None)
        share = memory[-1].weight_bytes / memory[-1].moved if memory[-1].moved else 0.0
        narrower = share > 0.5 and found.precision == "fp32"
        yield Finding(
            "note",
            f"memory binds{f' at length {ends}' if ends else ''}: "
            f"{format_bytes(memory[-1].moved)} moved for each run, {format_share(share)} of it weights",
            "narrower weights help: --precision int8, or auto" if narrower else "",
        )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
