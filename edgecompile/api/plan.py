"""plan(): the buckets that cost the traffic least, and the usual rules beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile import checks
from edgecompile.api.models import read_model_argument
from edgecompile.api.notebook import NotebookResult, count_notes
from edgecompile.api.options import BuildOptions, LoadOptions, PlanOptions
from edgecompile.api.progress import listen
from edgecompile.api.traffic_sources import find_sources
from edgecompile.files import write_document, write_text
from edgecompile.units import format_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgecompile.api.arguments import Callback, Lengths, Model, PathLike, Texts
    from edgecompile.buckets.assessment import PlanAssessment
    from edgecompile.buckets.plan import BucketPlan
    from edgecompile.buckets.ranges import Bucket
    from edgecompile.report.page import Section


@dataclass(frozen=True)
class Plan(NotebookResult):
    """The programs to build.

    Attributes:
        details: the buckets with their costs, and what the plan was made for.
        judgement: the usual rules by the same costs, and how far to trust the plan; None for the
            plan of a bundle.
    """

    details: BucketPlan
    judgement: PlanAssessment | None = None

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """One for each program, by ascending length: ``lo``, ``hi``, ``hint``, ``mode``, ``axes``."""
        return self.details.buckets

    @property
    def expected_ms(self) -> float | None:
        """Milliseconds of the mean run by the plan's costs; None: nothing was measured."""
        return self.details.expected_ms

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on how the plan came about."""
        return self.details.notes if self.judgement is None else self.judgement.sentences()

    def __repr__(self) -> str:
        ranges = ", ".join(f"{b.axes[0][1].label} {b.mode}" for b in self.buckets[:4])
        more = f", and {len(self.buckets) - 4} more" if len(self.buckets) > 4 else ""
        mean = "" if self.expected_ms is None else f"; mean run {format_ms(self.expected_ms)} ms"
        notes = count_notes(self.notes)
        return f"<Plan of {self.details.length_axis} {ranges}{more}{mean}{notes}>"

    def to_json(self) -> dict[str, Any]:
        """The document that ``edgecompile plan --json`` prints."""
        return (self.judgement or self.details).to_json()

    def save(self, path: PathLike) -> Path:
        """Writes the plan as JSON, for ``build(plan=...)`` and ``build --plan``; gives its path.

        Raises:
            OSError: it can't be written.
        """
        return write_document(path, self.to_json())

    def write_report(self, path: PathLike) -> Path:
        """Writes an HTML page with the histogram, the costs and the comparison; gives its path.

        Raises:
            OSError: it can't be written.
        """
        from edgecompile.report.page import render_page

        facts = [("lengths", self.details.source)]
        return write_text(path, render_page("Bucket plan", [self._section()], facts=facts))

    def _section(self) -> Section:
        if self.judgement is not None:
            from edgecompile.report.plan_section import plan_section

            return plan_section(self.judgement)
        from edgecompile.report.page import Section, Table

        rows = tuple((b.mode, b.axes[0][1].label, f"{b.hint}") for b in self.buckets)
        parts = (Table("Buckets", ("mode", "lengths", "tuned for"), rows),)
        return Section("Plan", notes=self.notes, parts=parts)


def read_plan(plan: Any) -> BucketPlan | None:
    """The plan argument of a build: a plan, or the file of one; None stays.

    Raises:
        UsageError: it is of another type.
        PlanError: the file can't be read, or holds something else.
    """
    from edgecompile.buckets.plan import BucketPlan

    if plan is None or isinstance(plan, BucketPlan):
        return plan
    if isinstance(plan, Plan):
        return plan.details
    path = checks.given_path("plan", plan, "what edgecompile.plan made, or its file")
    from edgecompile.pipeline.work_files import read_plan as read

    return read(path)


def plan(
    model: Model,
    *,
    lengths: Lengths | None = None,
    texts: Texts | None = None,
    tokenizer: PathLike | None = None,
    stats: PathLike | Iterable[PathLike] | None = None,
    target: PathLike = "cpu-x86-64",
    batch: int | tuple[int, int] = 1,
    max_length: int | None = None,
    precision: str | None = None,
    example_inputs: Any = None,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    load_options: LoadOptions | None = None,
    plan_options: PlanOptions | None = None,
    build_options: BuildOptions | None = None,
    work_dir: PathLike | None = None,
    progress: Callback | None = None,
) -> Plan:
    """Chooses the buckets of least expected cost for the lengths of the traffic.

    The costs are measured on the model here or by the device; where this machine
    can't run the target's code, they are modelled. The plan compares itself with the usual rules, by
    the same costs on the same lengths.

    Args:
        model, lengths, texts, tokenizer, stats, target, batch, max_length, precision,
        example_inputs, axes, load_options, plan_options, build_options, work_dir, progress: see
            :func:`edgecompile.build`.

    Raises:
        UsageError: an argument has the wrong type, contradicts another, or is missing.
        LengthsError: the lengths can't be read, or don't fit the model.
        CostError: the costs can't be read, or are of another model or machine.
        PlanError: the constraints can't be met.
        TargetError, ModelError, ExportError, CompileError: see docs/errors.md.

    Example:
        >>> plan = edgecompile.plan("./minilm", lengths="lengths.csv", max_length=256)
        >>> plan
        <Plan of length 1–256 exact; mean run 7.31 ms>
        >>> plan.save("plan.json")
    """
    from edgecompile.api.request import plan_request, requested
    from edgecompile.pipeline.plan import plan as run_plan

    sources = find_sources(model, lengths, texts, tokenizer, stats)
    subject = read_model_argument(model, example_inputs, axes, load_options, batch=batch)
    options = plan_request(max_length, precision, plan_options, build_options)
    listener = listen(progress)
    with requested(
        subject, sources, options, progress=listener, target=target, work_dir=work_dir
    ) as request:
        result = run_plan(request, listener)
    return Plan(result.plan, result.assessment)
