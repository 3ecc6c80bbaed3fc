"""A comparison of plans as Markdown, for the dated records in docs/benchmarks/."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.markdown import bullets, listing, table
from benchmarks.plans.figures import (
    MARK,
    BatchFigures,
    PlansReport,
    ProgramFigures,
    percent,
    shortfalls,
    twins,
)
from edgecompile.units import format_ms

#: Rows of a table of programs, of each mode.
ROWS = 12


def render_record(report: PlansReport, title: str, remarks: Sequence[str] = ()) -> str:
    """The record's text; README.md beside the records says how to read it."""
    short = [
        f"batch {batch.batch}: {line}" for batch in report.batches for line in shortfalls(batch)
    ]
    sections = [f"# {title}", " ".join(_headline(batch) for batch in report.batches), *remarks]
    if short:
        sections.append("**What fell short, and doubts:**\n\n" + bullets(short))
    for batch in report.batches:
        sections += [f"## Batch {batch.batch}", _plan(batch), _policies(batch), _edges(batch)]
        sections += [f"### What the programs cost, batch {batch.batch}", _programs(batch)]
    sections += ["## How", bullets(_how(report))]
    return "\n\n".join(section for section in sections if section) + "\n"


def _headline(batch: BatchFigures) -> str:
    missed = [f"{item.name} ({item.ratio:.2f})" for item in batch.policies if item.missed]
    ratios = [item.ratio for item in batch.policies]
    count = len(batch.policies)
    text = f"Batch {batch.batch}: "
    if missed:
        text += (
            f"**{count - len(missed)} of {count}** policies run within {100 * MARK:g} % of what was "
            f"predicted; these don't, measured over predicted in brackets: {', '.join(missed)}."
        )
    else:
        text += (
            f"**all {count}** policies run within {100 * MARK:g} % of what was predicted (measured over "
            f"predicted {min(ratios):.2f} to {max(ratios):.2f})."
        )
    if batch.best is batch.optimum:
        return text + " The planner's choice is the fastest measured."
    return (
        f"{text} The fastest measured is {batch.best.name}; the planner's choice takes "
        f"{percent(batch.optimum.measured_regret.median - 1)} more."
    )


def _plan(batch: BatchFigures) -> str:
    lines = [*batch.notes]
    for one, other in twins(batch.policies):
        apart = abs(one.times.mean_ms / other.times.mean_ms - 1.0)
        lines.append(
            f"{one.name} and {other.name} are the same programs in two bundles, and measured "
            f"{percent(apart)} apart: less than that says nothing here"
        )
    return bullets(lines)


def _policies(batch: BatchFigures) -> str:
    columns = ["", "programs", "predicted ms, all traffic", "predicted ms", "measured ms"]
    columns += ["measured / predicted", "spread", "predicted regret", "measured regret"]
    rows = []
    for item in batch.policies:
        regret = item.measured_regret
        measured = percent(regret.median - 1)
        if item is not batch.best:
            measured += f" ({percent(regret.p10 - 1)} to {percent(regret.p90 - 1)})"
        rows.append(
            [
                item.name,
                str(len(item.buckets)),
                format_ms(item.predicted_traffic_ms),
                format_ms(item.predicted_ms),
                format_ms(item.times.mean_ms),
                f"**{item.ratio:.2f}**" if item.missed else f"{item.ratio:.2f}",
                f"{percent(item.times.spread)}",
                percent(item.predicted_regret),
                measured,
            ]
        )
    return table(columns, rows)


def _edges(batch: BatchFigures) -> str:
    return "Buckets:\n\n" + bullets(
        f"{item.name}: " + ", ".join(f"{b.mode} {b.lo}–{b.hi}" for b in item.buckets)
        for item in batch.policies
    )


def _programs(batch: BatchFigures) -> str:
    shown: list[ProgramFigures] = []
    for mode in ("exact", "pad"):
        items = [item for item in batch.programs if item.mode == mode]
        count = min(ROWS, len(items))
        places = {round(i * (len(items) - 1) / max(1, count - 1)) for i in range(count)}
        shown += [items[place] for place in sorted(places)]
    names = {"exact": "dynamic, at", "pad": "static, of"}
    rows = [
        [
            f"{names[item.mode]} {item.length}",
            format_ms(item.predicted_ms),
            format_ms(item.measured_ms),
            f"{item.measured_ms / item.predicted_ms:.2f}",
        ]
        for item in shown
    ]
    return table(["program", "predicted ms", "median ms", "ratio"], rows)


def _how(report: PlansReport) -> list[str]:
    lines = [
        f"started {report.started}",
        f"model {report.model}"
        + "".join(f", {name} sha256 {h[:16]}…" for name, h in report.model_sha256.items()),
        listing(report.settings),
    ]
    for batch in report.batches:
        figures = {"source": batch.traffic.source, **batch.traffic.summary().to_json()}
        lines += [
            f"batch {batch.batch}: {batch.rounds} rounds of {batch.lengths.n} lengths "
            f"(mean {batch.lengths.mean:.2f}), all inputs of a run of one length; "
            + listing({k: v for k, v in batch.facts.items() if k != "error_share"}),
            f"batch {batch.batch}: outputs of the policies differ by at most "
            f"{batch.facts['error_share']:.2f} of what a bundle's outputs may differ from eager's",
            f"batch {batch.batch}: planned for " + listing(figures),
            f"batch {batch.batch}: costs {batch.curve.kind} at {len(batch.curve.points)} lengths, "
            + listing(batch.curve.provenance),
            f"batch {batch.batch}: load "
            + listing({name: round(value, 3) for name, value in batch.load.items()}),
        ]
    lines += [
        "machine: " + listing(report.machine),
        "versions: " + listing(report.versions),
        *report.notes,
    ]
    if report.command:
        lines.append("command: `" + " ".join(report.command) + "`")
    return lines
