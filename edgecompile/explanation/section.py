"""The page of ``edgecompile explain``."""

from __future__ import annotations

from collections.abc import Sequence

from edgecompile.explanation import plots as explain_plots
from edgecompile.explanation.report import Explanation
from edgecompile.explanation.view import TableRows, explanation_tables, format_flops
from edgecompile.explanation.work import Limits
from edgecompile.report.page import Drawing, Section, Table, render_page
from edgecompile.units import format_bytes, format_count, format_duration

__all__ = ["explain_page"]

_EXPORT = (
    *("Eager fails", "Ways to export", "Axes that became constants", "Graph breaks"),
    *("What tracing demanded of the sizes", "What depends on the length"),
)
_KERNELS = ("Code generation fails", "Kernels", "Not given to our kernels")
_MEMORY = ("What lives when memory is highest",)


def explain_page(
    found: Explanation, limits: Limits | None, *, facts: Sequence[tuple[str, str]] = ()
) -> str:
    """The whole page.

    Args:
        found: the explanation.
        limits: the target's figures; None: its profile has none.
        facts: versions and machine.
    """
    tables = explanation_tables(found)
    sections = [_summary(found), *_export(found, tables), *_work(found, tables, limits)]
    sections += _kernels(tables)
    return render_page(found.model, sections, lead=_lead(found), facts=facts)


def _lead(found: Explanation) -> str:
    ranges = ", ".join(f"{axis} {lo}–{hi}" for axis, (lo, hi) in found.ranges.items())
    parts = [f"looked at for {found.target} in {found.precision}", ranges]
    return ", ".join(part for part in parts if part)


def _summary(found: Explanation) -> Section:
    rows = tuple(
        (item.kind, item.text, item.cure or "–", "" if item.place is None else item.place.short)
        for item in found.findings
    )
    bad = tuple(i for i, item in enumerate(found.findings) if item.kind == "refused")
    figures: list[tuple[str, str]] = []
    if found.operators:
        figures.append(("operators", format_count(sum(use.count for use in found.operators))))
    if found.buckets:
        top = found.buckets[-1]
        at = "" if top.hi is None else f" at {top.hi}"
        figures.append((f"work{at}", format_flops(top.flops)))
        figures.append((f"activations{at}", format_bytes(top.peak)))
        if top.least_ms is not None:
            figures.append((f"at best{at}, by the profile", format_duration(top.least_ms / 1e3)))
    columns = ("kind", "cause", "cure", "line")
    parts = (Table("Causes", columns, rows, words=4, bad=bad, wrap=True),) if rows else ()
    verdict = f"It {found.summary}."
    return Section("Verdict", tuple(figures), found.notes, parts, verdict)


def _export(found: Explanation, tables: Sequence[TableRows]) -> list[Section]:
    parts = _pick(tables, _EXPORT)
    notes = [] if found.padding is None else [f"Padding: {found.padding}"]
    return [Section("Export", notes=tuple(notes), parts=tuple(parts))] if parts else []


def _work(found: Explanation, tables: Sequence[TableRows], limits: Limits | None) -> list[Section]:
    parts: list[Drawing | Table] = []
    least = found.buckets[-1].least_ms if found.buckets else None
    if any(use.share or use.flops for use in found.modules):
        title = "Least time by module" if least is not None else "Work by module"
        parts.append(Drawing(title, explain_plots.modules_plot(found.modules, least)))
    parts += _pick(tables, ("Figures of one run",))
    if limits is not None and any(b.intensity for b in found.buckets):
        parts.append(
            Drawing("What binds", explain_plots.roofline_plot(found.buckets, limits), _ROOF)
        )
    if found.memory and any(point.live for point in found.memory):
        parts.append(Drawing("Memory over the program", explain_plots.memory_plot(found.memory)))
    parts += _pick(tables, _MEMORY) + _pick(tables, ("By module", "Operators"))
    return [Section("Work and memory", parts=tuple(parts))] if parts else []


_ROOF = (
    "The line is what the target's profile allows; a bucket's mark stands where its work for each "
    "byte moved puts it, labelled with its longest length. Real runs lie below."
)


def _kernels(tables: Sequence[TableRows]) -> list[Section]:
    parts = _pick(tables, _KERNELS)
    return [Section("Kernels", parts=tuple(parts))] if parts else []


def _pick(tables: Sequence[TableRows], titles: Sequence[str]) -> list[Drawing | Table]:
    """The tables whose titles begin so, in that order."""
    return [
        Table(t.title, t.columns, t.rows, words=t.words, bad=t.bad, caption=t.caption, wrap=True)
        for title in titles
        for t in tables
        if t.title.startswith(title)
    ]
