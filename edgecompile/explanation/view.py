"""An explanation as sections of tables, for the terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgecompile.explanation.report import Explanation, ModuleTime
from edgecompile.models.source_lines import SourceLine
from edgecompile.report.page import Drawing, Section, Table, render_page
from edgecompile.report.plots import bars
from edgecompile.units import format_bytes, format_count, format_duration, format_share

_MOST_ROWS = 24
_MOST_CALLS = 8
_MOST_BARS = 14


def explain_page(explanation: Explanation, *, facts: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page; ``facts`` are (name, value) pairs: versions and machine."""
    ranges = ", ".join(f"{a} {lo}–{hi}" for a, (lo, hi) in (explanation.eager.ranges or {}).items())
    lead = f"looked at for {explanation.target} in {explanation.precision}"
    sections = [summary_section(explanation)]
    for title, tables in _tables(explanation).items():
        parts: list[Drawing | Table] = [table for table in tables if table.rows]
        notes: tuple[str, ...] = ()
        if title == "Export" and explanation.export.padding is not None:
            notes = (f"Padding: {explanation.export.padding}",)
        if title == "Time" and any(module.flops for module in explanation.time.modules):
            parts.insert(0, Drawing("FLOPs by module", _modules_plot(explanation.time.modules)))
        if parts:
            sections.append(Section(title, notes=notes, parts=tuple(parts)))
    lead = f"{lead}, {ranges}" if ranges else lead
    return render_page(explanation.model, sections, lead=lead, facts=facts)


def explanation_tables(explanation: Explanation) -> tuple[Table, ...]:
    """All tables that have rows, in the order in which people read them."""
    return tuple(table for part in _tables(explanation).values() for table in part if table.rows)


def format_flops(flops: float) -> str:
    """``1.23 GFLOP``."""
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops:.0f} FLOP"


def _tables(explanation: Explanation) -> dict[str, list[Table]]:
    makers = {
        "Export": (_eager, _attempts, _fixed_axes, _conditions, _breaks),
        "Kernels": (_code_failure, _kernels, _unlowered),
        "Time": (_runs, _modules),
    }
    return {title: [maker(explanation) for maker in part] for title, part in makers.items()}


def summary_section(explanation: Explanation) -> Section:
    """The verdict, the figures of the longest run, and the causes."""
    rows = [(c.kind, c.text, c.cure or "–", _short(c.place)) for c in explanation.causes]
    bad = [i for i, cause in enumerate(explanation.causes) if cause.kind == "refused"]
    figures = []
    if explanation.time.runs:
        top = explanation.time.runs[-1]
        figures.append((f"FLOPs, {_sizes(top.sizes)}", format_flops(top.flops)))
        if top.least_ms is not None:
            figures.append(("at best, by the profile", format_duration(top.least_ms / 1e3)))
    causes = _table("Causes", ("kind", "cause", "cure", "line"), rows, words=4, bad=bad)
    verdict, parts = f"It {explanation.summary}.", (causes,) if rows else ()
    return Section("Verdict", tuple(figures), explanation.notes, parts, verdict)


def _eager(explanation: Explanation) -> Table:
    rows: list[tuple[str, str]] = []
    failures = explanation.eager.failures
    for i, item in enumerate(failures):
        rows.append((_sizes(item.sizes) or "while loading", item.text))
        if i + 1 == len(failures) or item.calls != failures[i + 1].calls:
            rows += [("", str(place)) for place in item.calls[-_MOST_CALLS:]]
    caption = "below: the calls of the model's code that led there, the innermost last"
    return _table("Eager fails", ("at", "error"), rows, words=2, caption=caption)


def _attempts(explanation: Explanation) -> Table:
    attempts = explanation.export.attempts
    tried = [attempt for attempt in attempts if attempt.outcome != "not tried"]
    rows = []
    for attempt in tried:
        text = attempt.text
        if attempt.outcome == "accepted":
            error = attempt.max_error or 0
            text = f"agrees with eager at {len(attempt.right)} sizes, to {error:.1e}"
        rows.append((attempt.strategy, attempt.outcome, text, _short(attempt.place)))
    bad = [i for i, attempt in enumerate(tried) if attempt.outcome in ("refused", "wrong")]
    left = ", ".join(a.strategy for a in attempts if a.outcome == "not tried")
    caption = f"not tried, since an earlier one was accepted: {left}" if left else ""
    columns = ("strategy", "outcome", "details", "line")
    return _table("Export strategies", columns, rows, words=4, bad=bad, caption=caption)


def _conditions(explanation: Explanation) -> Table:
    lines: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for attempt in explanation.export.attempts:
        for item in attempt.conditions:  # strict tracing names no lines, the others do
            lines[item.text] = lines.get(item.text) or _short(item.place)
            names.setdefault(item.text, []).append(attempt.strategy)
    rows = [(text, lines[text], ", ".join(dict.fromkeys(names[text]))) for text in lines]
    return _table("Conditions on sizes", ("condition", "line", "strategies"), rows, words=3)


def _fixed_axes(explanation: Explanation) -> Table:
    rows = [
        (f"{item.axis} = {item.size}", str(item.place or "–"), ", ".join(item.strategies))
        for item in explanation.export.fixed_axes
    ]
    return _table("Axes that became constants", ("axis", "line", "strategies"), rows, words=3)


def _breaks(explanation: Explanation) -> Table:
    rows = [(item.reason, str(item.place or "–")) for item in explanation.export.breaks]
    return _table("Graph breaks", ("reason", "line"), rows, words=2)


def _kernels(explanation: Explanation) -> Table:
    kinds = {"own": "ours", "generic": "generic", "missing": "MISSING"}
    kernels = explanation.program.kernels
    rows = [
        (
            use.kernel,
            kinds[use.kind],
            _listed([name or "(model)" for name in use.modules]),
            _listed([place.short for place in use.places]),
            format_count(use.calls),
            format_flops(use.flops) if use.flops else "–",
        )
        for use in kernels
    ]
    bad = [i for i, use in enumerate(kernels) if use.kind == "missing"]
    generated = explanation.program.generated
    caption = (
        "" if generated is None else f"kernels that Inductor generates beside these: {generated}"
    )
    columns = ("kernel", "", "modules", "lines", "calls", "FLOPs")
    return _table("Kernels", columns, rows, words=4, bad=bad, caption=caption)


def _code_failure(explanation: Explanation) -> Table:
    failure = explanation.program.code_failure
    rows = [] if failure is None else [(failure.text, str(failure.place or "–"))]
    return _table("Code generation fails", ("error", "line"), rows, words=2, bad=range(len(rows)))


def _unlowered(explanation: Explanation) -> Table:
    rows = [
        (item.operator, item.reason, item.module or "(model)", _short(item.place))
        for item in explanation.program.unlowered
    ]
    return _table(
        "Not given to our kernels", ("operator", "reason", "module", "line"), rows, words=4
    )


def _runs(explanation: Explanation) -> Table:
    rows = [
        (
            _sizes(run.sizes) or "–",
            format_flops(run.flops),
            format_bytes(run.weight_bytes),
            format_bytes(run.moved),
            run.limit or "–",
            "–" if run.least_ms is None else format_duration(run.least_ms / 1e3),
        )
        for run in explanation.time.runs
    ]
    caption = (
        "Moved: bytes, if generated code fuses everything between two kernels. Least time: by the "
        "figures of the target's profile, at best."
    )
    columns = ("sizes", "FLOPs", "weights", "moved", "limit", "least time")
    return _table("One run", columns, rows, caption=caption)


def _modules(explanation: Explanation) -> Table:
    rows = [
        (
            item.module or "(model)",
            format_flops(item.flops) if item.flops else "–",
            format_bytes(item.moved) if item.moved else "–",
            format_share(item.share) if item.share else "–",
        )
        for item in explanation.time.modules
    ]
    columns = ("module", "FLOPs", "moved", "share of the least time")
    return _table("By module, at the largest sizes", columns, rows)


def _modules_plot(modules: Sequence[ModuleTime]) -> str:
    largest = sorted(modules, key=lambda item: -item.flops)
    shown = [item for item in largest[:_MOST_BARS] if item.flops]
    labels = [item.module or "(model)" for item in shown]
    rest = sum(item.flops for item in largest[_MOST_BARS:])
    values = [item.flops / 1e6 for item in shown] + ([rest / 1e6] if rest else [])
    return bars([*labels, *(["others"] if rest else [])], {"": values}, unit="MFLOP")


def _table(
    title: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    *,
    words: int = 1,
    bad: Sequence[int] = (),
    caption: str = "",
) -> Table:
    """A table of the first rows; the caption says how many more there are."""
    more = f"{len(rows) - _MOST_ROWS} more in the JSON document" if len(rows) > _MOST_ROWS else ""
    caption = ". ".join(part for part in (caption, more) if part)
    shown = tuple(rows[:_MOST_ROWS])
    return Table(title, columns, shown, words=words, bad=tuple(bad), caption=caption, wrap=True)


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def _short(place: SourceLine | None) -> str:
    return "" if place is None else place.short


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")
