"""The pages that commands write and bundles carry, put together from their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from edgecompile.buckets.assessment import PlanAssessment
from edgecompile.buckets.figures import bucket_table
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket
from edgecompile.buckets.traffic import Sizes
from edgecompile.bundle.verdict import FAILED, VerifyReport
from edgecompile.hosts.identity import describe_machine
from edgecompile.precision import describe_label
from edgecompile.report import plots
from edgecompile.report.page import Drawing, Section, Table, render_page
from edgecompile.report.plan_section import plan_section
from edgecompile.units import format_count, format_share

if TYPE_CHECKING:
    from edgecompile.audit.judge import AuditVerdict
    from edgecompile.models.loaded import ModelSource
    from edgecompile.quantization.trials import PrecisionChoice
    from edgecompile.runtime.format.manifest.schema import Manifest


def build_header(
    manifest: Manifest, source: ModelSource, audit: Sequence[AuditVerdict], *, measured: bool
) -> tuple[tuple[str, str], ...]:
    """The facts of a bundle's page: (name, value) pairs.

    The date and the machine are given where costs were measured on it: otherwise equal inputs make
    equal pages.
    """
    model = source.details.get("architecture", "")
    rows = [
        ("model", f"{manifest.name}{f' ({model})' if model else ''}"),
        ("target", ", ".join(dict.fromkeys(verdict.target for verdict in audit)) or "–"),
        ("precision", describe_label(manifest.precision, manifest.plan)),
    ]
    if measured:
        machine = describe_machine()
        rows.append(("built", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")))
        rows.append(("machine", f"{machine['cpu']}, {machine['usable_cpus']} CPUs"))
    for kind, specs in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        named = [f"{s.name} {s.dtype} [{', '.join(map(str, s.shape))}]" for s in specs]
        rows.append((kind, "; ".join(named)))
    rows += [
        (name, text) for name, text in manifest.built_by.items() if name != "structure" and text
    ]
    return tuple(rows)


def build_page(
    name: str,
    plan: BucketPlan,
    sizes: Sizes,
    assessment: PlanAssessment | None,
    report: VerifyReport,
    choice: PrecisionChoice | None = None,
    *,
    header: Sequence[tuple[str, str]] = (),
) -> str:
    """The page that a bundle carries: its plan, and how it compared with eager.

    Args:
        name: the name of the bundle.
        plan: its buckets.
        sizes: the traffic.
        assessment: the plan and the usual rules; None for a plan without costs, of which only is
            shown what share of the traffic each bucket serves.
        report: the report of the verification.
        choice: the record of choosing the precision; None if it wasn't chosen.
        header: the header of the page; see :func:`build_header`.
    """
    if assessment is not None:
        first = plan_section(assessment)
    else:
        columns, rows = bucket_table(plan, sizes)
        table = Table("Buckets", columns[:-1], tuple(row[:-1] for row in rows), words=2)
        notes = ("Nothing was measured: the plan has no costs.",)
        first = Section("Plan", notes=notes, parts=(table,))
    chosen = [] if choice is None else [precision_section(choice)]
    sections = [first, *chosen, verify_section(report, plan.buckets)]
    return render_page(name, sections, lead=f"Lengths: {sizes.source}", header=header)


def precision_section(choice: PrecisionChoice) -> Section:
    """The precisions tried, and their costs."""
    strong = tuple(
        i for i, trial in enumerate(choice.trials) if trial.precision == choice.precision
    )
    caption = f"Tried on {choice.samples}. Allowed: {choice.allowed}"
    rows = choice.rows()
    parts = (Table("Trials", choice.columns, rows, strong=strong, caption=caption),) if rows else ()
    return Section("Precision", notes=choice.notes, parts=parts)


def verify_section(report: VerifyReport, buckets: Sequence[Bucket]) -> Section:
    """Every comparison with eager.

    Args:
        report: the report of :func:`edgecompile.bundle.verify.verify_bundle`.
        buckets: the buckets of the bundle; results name them by index.
    """
    columns, rows = report.table(buckets)
    failed = tuple(i for i, row in enumerate(rows) if row[-1] == FAILED)
    caption = f"Allowed: {report.rule()}"
    if report.reference:
        caption += f". Compared with {report.reference}"
    figures = [("checks", format_count(len(report.results))), ("failed", format_count(len(failed)))]
    if report.lengths is not None:
        figures.append(("run", str(report.lengths)))
    if report.worst is not None:
        figures.append(("worst, of what is allowed", format_share(report.used(report.worst))))
    if report.cosine is not None:
        figures.append(("least cosine", f"{report.cosine:.6f}"))
    return Section(
        "Verification",
        figures=tuple(figures),
        notes=(*report.not_run(), *report.notes),
        parts=(Table("Against eager", columns, rows, words=3, bad=failed, caption=caption),),
    )


def bench_section(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    figures: Sequence[tuple[str, str]] = (),
    table: Table | None = None,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Section:
    """Milliseconds per run as bars.

    Args:
        labels: the labels of the groups of bars: lengths, or baselines.
        series: name -> milliseconds, one for each label.
        figures: the figures to set large: cold start, sizes.
        table: the numbers behind the bars.
        notes: sentences on how it was measured.
        warnings: reasons to doubt the numbers.
    """
    drawing = Drawing("Time of one run", plots.bars(labels, series, unit="ms"))
    parts: tuple[Drawing | Table, ...] = (drawing,) if table is None else (drawing, table)
    return Section("Speed", tuple(figures), tuple(notes), parts, warnings=tuple(warnings))
