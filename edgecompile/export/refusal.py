"""The reason why a model can't be exported, and the lengths for which it may be."""

from __future__ import annotations

from collections.abc import Sequence

from edgecompile.buckets.ranges import span_text
from edgecompile.errors import ExportError
from edgecompile.export.attempts import Attempt, attempt_name, best_part
from edgecompile.export.checks import ExportScope
from edgecompile.export.sides import find_parts, find_period
from edgecompile.models.specs import tied_sizes


def refusal(scope: ExportScope, attempts: Sequence[Attempt]) -> ExportError:
    """The error that says why nothing worked; the first strategy's reason tells the most."""
    part = best_part(scope, attempts)
    first = next((a for a in attempts if a.reason is not None), None)
    text = (first or attempts[0]).problem
    kind = "" if first is None or first.reason is None else first.reason.kind
    spans, steps = scope.ranges, {}
    if scope.residue is not None:
        steps[scope.residue.axis] = scope.residue.step
    ranges = ", ".join(
        f"{axis} {span_text((*span, steps.get(axis, 1)))}" for axis, span in spans.items()
    )
    details = "\n\n".join(
        f"[{attempt_name(a, scope)}] {a.problem}\n{a.raw}".rstrip() for a in attempts
    )
    hints = []
    if kind == "data":
        hints.append("choose between results with torch.where instead of between lines of code")
    elif kind == "operator":
        hints.append("write the operator with torch's own, or leave it outside the model")
    elif scope.varies and not tied_sizes(scope.loaded.inputs, (scope.loaded.length_axis or "",)):
        hints.append('padded buckets have one fixed length each and may still work: `mode="pad"`')
    if part is not None:
        less = [f"{a} {span_text(s)}" for a, s in part.ranges.items() if s != spans[a]]
        hints.append(f"it can be exported for {', '.join(less)}")
    hints.append("`details` shows what torch said")
    return ExportError(
        f"the model '{scope.loaded.name}' can't be exported for {ranges or 'fixed sizes'}: {text}",
        hint="; ".join(hints),
        details=details,
        served=None if part is None else part.ranges,
        parts=find_parts(scope, attempts, part, every=False),
        period=find_period(scope, attempts),
        near=find_parts(scope, attempts, part, every=True),
    )
