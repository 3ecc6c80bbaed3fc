"""One self-contained HTML page: no scripts, no fonts or images from elsewhere, nothing to fetch.

A page is a title and sections; a section holds key figures, notes, drawings and tables. The same
values give the same bytes, so that a report can be compared with the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from edgecompile import plots
from edgecompile.buckets import Bucket, BucketPlan
from edgecompile.lengths import LengthDistribution
from edgecompile.plan_view import (
    BUCKET_COLUMNS,
    PlanFigures,
    PlanJudgement,
    bucket_rows,
    plan_figures,
    policy_columns,
    policy_rows,
)
from edgecompile.policies import OPTIMUM
from edgecompile.units import format_count, format_ms, format_share

if TYPE_CHECKING:
    from edgecompile.verify import CaseResult, VerifyReport

__all__ = [
    "Drawing",
    "Section",
    "Table",
    "bench_section",
    "build_page",
    "plan_section",
    "render_page",
    "verify_section",
]


@dataclass(frozen=True)
class Drawing:
    """An inline SVG, from :mod:`edgecompile.plots`, which is trusted as markup."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes:
        title: above it.
        columns: headings, with units.
        rows: cells as text.
        words: how many columns, from the left, hold words and are set flush left.
        strong, bad: indices of rows to stress, and of rows that report a failure.
        caption: below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    strong: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own.

    Attributes:
        title: the heading.
        figures: (name, value) pairs set large.
        notes: sentences.
        parts: drawings and tables, in order.
    """

    title: str
    figures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[Drawing | Table, ...] = field(default=())


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    lead: str = "",
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """The page as text, to be written as UTF-8.

    Args:
        title: heading of the page.
        sections: in order.
        lead: a sentence below the title.
        facts: (name, value) pairs on what made the page: versions, machine, source of the data.
    """
    shown = [
        {
            "title": section.title,
            "figures": section.figures,
            "notes": section.notes,
            "parts": [
                {"title": part.title, "svg": Markup(part.svg), "caption": part.caption}
                if isinstance(part, Drawing)
                else part
                for part in section.parts
            ],
        }
        for section in sections
    ]
    return _template().render(title=title, lead=lead, sections=shown, facts=facts)


def build_page(
    name: str,
    judgement: PlanJudgement,
    report: VerifyReport,
    *,
    unit: str = "tokens",
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """The page that a bundle carries: its plan, and how it compared with eager.

    Args:
        name: of the bundle.
        judgement: the plan and its rivals.
        report: of the verification.
        unit: what a length counts.
        facts: versions and machine.
    """
    plan = judgement.plan
    sections = [
        plan_section(plan, judgement.served, judgement=judgement, unit=unit),
        verify_section(report, plan.buckets),
    ]
    return render_page(name, sections, lead=f"Lengths: {judgement.traffic.source}", facts=facts)


def plan_section(
    plan: BucketPlan,
    distribution: LengthDistribution,
    *,
    judgement: PlanJudgement | None = None,
    unit: str = "tokens",
) -> Section:
    """The plan: its buckets over the histogram, the cost curve, and what more buckets would save.

    Args:
        plan: what was chosen.
        distribution: the sample that it was chosen for.
        judgement: rivals and doubts, if the plan was judged.
        unit: what a length counts.
    """
    view = plan_figures(plan, distribution)
    drawings = [
        Drawing(
            "Lengths and buckets",
            plots.length_histogram(
                distribution.lengths,
                distribution.counts,
                [plots.Band(b.lo, b.hi, b.mode) for b in plan.buckets],
                unit=unit,
            ),
            "The numbers above the plot are the upper edges of the buckets.",
        )
    ]
    curve = plan.curve
    if curve is not None:
        drawings.append(
            Drawing(
                f"Cost of one run, {curve.kind}",
                plots.cost_curve(
                    curve.lengths,
                    [point.exact_ms for point in curve.points],
                    [point.pad_ms for point in curve.points],
                    edges=[bucket.hi for bucket in plan.buckets],
                    kind=curve.kind,
                    unit=unit,
                ),
                "Marks are the points of the cost model; between them it is interpolated.",
            )
        )
    if len(plan.expected_by_count) > 1:
        drawings.append(
            Drawing(
                "What more buckets would save",
                plots.cost_by_count(
                    range(1, len(plan.expected_by_count) + 1),
                    plan.expected_by_count,
                    len(plan.buckets),
                ),
            )
        )
    tables = [_bucket_table(view)]
    if judgement is not None:
        tables.append(_policy_table(judgement))
    return Section(
        "Plan",
        figures=_plan_figures(plan, view, distribution),
        notes=plan.notes if judgement is None else judgement.sentences(),
        parts=(drawings[0], tables[0], *drawings[1:], *tables[1:]),
    )


def verify_section(report: VerifyReport, buckets: Sequence[Bucket]) -> Section:
    """Every comparison with eager.

    Args:
        report: of :func:`edgecompile.verify.verify_bundle`.
        buckets: those of the bundle; results name them by index.
    """
    tolerance = report.tolerance

    def used(result: CaseResult) -> float:
        return result.max_abs_error / tolerance.limit(result.scale)

    rows = tuple(
        (
            result.variant,
            f"{result.bucket}: {buckets[result.bucket].lo}–{buckets[result.bucket].hi}",
            result.case,
            f"{result.max_abs_error:.1e}",
            format_share(used(result)),
            "ok" if result.ok else "FAILED",
        )
        for result in report.results
    )
    columns = ("variant", "bucket", "case", "largest difference", "of what is allowed", "")
    failed = tuple(i for i, result in enumerate(report.results) if not result.ok)
    caption = f"Allowed: |got − want| ≤ {tolerance.atol:g} + {tolerance.rtol:g} · max |want|"
    notes = [f"{name} was not run here: {why}" for name, why in report.not_executed.items()]
    figures = [("checks", format_count(len(rows))), ("failed", format_count(len(failed)))]
    if report.worst is not None:
        figures.append(("worst, of what is allowed", format_share(used(report.worst))))
    return Section(
        "Verification",
        figures=tuple(figures),
        notes=(*notes, *report.notes),
        parts=(Table("Against eager", columns, rows, words=3, bad=failed, caption=caption),),
    )


def bench_section(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    figures: Sequence[tuple[str, str]] = (),
    table: Table | None = None,
    notes: Sequence[str] = (),
) -> Section:
    """Milliseconds per run as bars.

    Args:
        labels: of the groups of bars: lengths, or contenders.
        series: name -> milliseconds, one for each label.
        figures: what to set large: cold start, sizes.
        table: the numbers behind the bars.
        notes: sentences on how it was measured.
    """
    drawing = Drawing("Time of one run", plots.bars(labels, series, unit="ms"))
    parts: tuple[Drawing | Table, ...] = (drawing,) if table is None else (drawing, table)
    return Section("Speed", tuple(figures), tuple(notes), parts)


def _plan_figures(
    plan: BucketPlan, view: PlanFigures, distribution: LengthDistribution
) -> tuple[tuple[str, str], ...]:
    figures = [
        ("programs", str(len(plan.buckets))),
        ("lengths served", f"{plan.min_length}–{plan.max_length}"),
        ("padding", format_share(view.padding_waste)),
    ]
    if view.expected_ms is not None:
        figures.insert(0, ("expected mean", f"{format_ms(view.expected_ms)} ms"))
    if view.covered < 1:
        figures.append(("inputs served", format_share(view.covered)))
    figures.append(("inputs in the sample", format_count(distribution.n)))
    return tuple(figures)


def _bucket_table(view: PlanFigures) -> Table:
    return Table("Buckets", BUCKET_COLUMNS, bucket_rows(view), words=2)


def _policy_table(judgement: PlanJudgement) -> Table:
    strong = tuple(i for i, name in enumerate(judgement.policies) if name == OPTIMUM)
    return Table(
        "Against other ways to choose",
        policy_columns(judgement),
        policy_rows(judgement),
        strong=strong,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("edgecompile", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
