"""A benchmark as Markdown, for the dated records in ``docs/benchmarks/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.markdown import bullets, listing, table
from edgecompile.bench.report import BaselineResult, BenchReport
from edgecompile.units import format_bytes, format_duration, format_ms, format_share

__all__ = ["best_alike", "best_by_precision", "render_record"]


def render_record(report: BenchReport, title: str, *, remarks: Sequence[str] = ()) -> str:
    """The record's text; README.md beside the records says how to read it.

    Args:
        report: what was measured.
        title: of the page.
        remarks: paragraphs by a person or a script, below the headline.
    """
    sections = [f"# {title}", _headline(report), *remarks]
    if report.warnings:
        sections.append("**Doubts:**\n\n" + bullets(report.warnings))
    sections += [
        "## Speed",
        _speed(report),
        "## Milliseconds by length",
        _by_length(report),
        "## Start, memory, sizes, agreement",
        _rest(report),
        bullets(_size_lines(report.results)),
        "## Ratios of mean times",
        "Row over column: under 1 the row is faster. Median over rounds (10th–90th percentile).",
        _ratios(report),
        "## How",
        bullets(_how(report)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def best_by_precision(report: BenchReport) -> dict[str, BaselineResult]:
    """The fastest beside the bundle of each class of precision, the bundle's own class first."""
    classes = {item.precision_class for item in report.results[1:]}
    own = report.subject.precision_class
    return {
        name: min(
            (item for item in report.results[1:] if item.precision_class == name),
            key=lambda item: item.times.mean_ms,
        )
        for name in sorted(classes, key=lambda name: (name != own, name))
    }


def best_alike(report: BenchReport) -> BaselineResult | None:
    """The fastest other of the bundle's own class of precision; None: there is none."""
    return best_by_precision(report).get(report.subject.precision_class)


def _headline(report: BenchReport) -> str:
    subject, best = report.subject, report.best_other
    mine = f"{subject.name} ({subject.precision}, {format_ms(subject.times.mean_ms)} ms)"
    if best is None:
        return f"{mine} was measured alone."
    parts = [
        f"**{report.ratios[subject.name][item.name].median:.2f}** of the best {precision}, "
        f"{item.name} ({format_ms(item.times.mean_ms)} ms)"
        for precision, item in best_by_precision(report).items()
    ]
    text = f"{mine} takes, of the time of the others: " + "; ".join(parts) + "."
    text += f" The best of all others is {best.name}."
    if best_alike(report) is None:
        text += f" None of them computes in {subject.precision_class}."
    return text + " Means over the lengths, ratios within each round."


def _speed(report: BenchReport) -> str:
    bests = best_by_precision(report)
    rows = []
    for item in report.results:
        times = item.times
        ratios = [
            "1" if item is best else f"{report.ratios[item.name][best.name].median:.2f}"
            for best in bests.values()
        ]
        values = [format_ms(x) for x in (times.mean_ms, times.p50, times.p90, times.p99)]
        rows.append([item.name, item.precision, *values, format_share(times.spread), *ratios])
    columns = ["", "precision", "mean ms", "p50", "p90", "p99", "spread"]
    return table([*columns, *(f"over the best {name}" for name in bests)], rows)


def _by_length(report: BenchReport, most: int = 10) -> str:
    lengths = sorted(next(iter(report.by_length.values())))
    count = min(most, len(lengths))
    places = {round(i * (len(lengths) - 1) / max(1, count - 1)) for i in range(count)}
    shown = [lengths[place] for place in sorted(places)]
    names = [item.name for item in report.results]
    mine = report.subject
    alike = [x.name for x in report.results[1:] if x.precision_class == mine.precision_class]
    rows = []
    for length in shown:
        times = {name: report.by_length[name][length] for name in names}
        row = [str(length), *map(format_ms, times.values())]
        if alike:
            row.append(f"{times[mine.name] / min(times[name] for name in alike):.2f}")
        rows.append(row)
    last = [f"of the best {mine.precision_class}"] if alike else []
    return table(["length", *names, *last], rows)


def _rest(report: BenchReport) -> str:
    rows = []
    for item in report.results:
        cold, memory = item.cold, item.memory
        rows.append(
            [
                item.name,
                "–" if cold is None else format_duration(cold.total_s),
                "–" if cold is None else format_duration(cold.open_s + cold.run_s),
                "–" if memory is None else f"{memory.resident:.0f}",
                "–" if memory is None else f"{memory.private:.0f}",
                "–" if memory is None else f"{memory.shared:.0f}",
                format_bytes(item.bytes),
                "–" if item.cosine is None else f"{item.cosine:.8f}",
                "–" if item.max_abs_error is None else f"{item.max_abs_error:.1e}",
            ]
        )
    columns = ["", "cold start", "of it loading and first run", "RSS MB", "of it private"]
    return table([*columns, "of it files", "on disk", "least cosine", "largest error"], rows)


def _size_lines(results: Iterable[BaselineResult]) -> list[str]:
    lines = []
    for item in results:
        parts = sorted(item.parts.items(), key=lambda pair: -pair[1])
        listed = [f"{name} {format_bytes(size)}" for name, size in parts[:4]]
        rest = sum(size for _, size in parts[4:])
        if rest:
            listed.append(f"{len(parts) - 4} more {format_bytes(rest)}")
        lines.append(f"{item.name} on disk: " + ", ".join(listed))
    return lines


def _ratios(report: BenchReport) -> str:
    names = [item.name for item in report.results]
    rows = []
    for name in names:
        cells = []
        for other in names:
            if other == name:
                cells.append("")
                continue
            ratio = report.ratios[name][other]
            cells.append(f"{ratio.median:.2f} ({ratio.p10:.2f}–{ratio.p90:.2f})")
        rows.append([name, *cells])
    return table(["", *names], rows)


def _how(report: BenchReport) -> list[str]:
    settings, figures = report.settings, report.lengths
    lines = [
        f"started {report.started}",
        f"bundle {report.bundle}, manifest.json sha256 {report.manifest_sha256[:16]}…",
        f"model {report.model or 'unknown'}"
        + "".join(f", {name} sha256 {h[:16]}…" for name, h in report.model_sha256.items()),
        f"{settings.rounds} rounds of {settings.runs} runs after {settings.warmup_rounds} to warm "
        f"up; {settings.pause_s:g} s pause and {settings.lead_in} dropped runs after each change; "
        f"{settings.cold_runs} cold starts; {settings.threads} threads; seed {settings.seed}",
        "lengths: " + listing(figures),
        "machine: " + listing(report.machine),
        "load: " + listing({k: round(v, 3) for k, v in report.load.items()}),
        "versions: " + listing(report.versions),
    ]
    lines += [
        f"{item.name}: {'; '.join([*item.notes, listing(item.facts)])}" for item in report.results
    ]
    lines += report.notes
    if report.command:
        lines.append("command: `" + " ".join(report.command) + "`")
    return lines
