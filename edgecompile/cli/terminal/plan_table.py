"""The output of ``edgecompile plan``: a table for the terminal, a page for the browser."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from edgecompile import __version__
from edgecompile.buckets.assessment import COST_WORDS
from edgecompile.buckets.figures import bucket_table
from edgecompile.cli.terminal.tables import heading, stack, table
from edgecompile.units import sentence

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.buckets.assessment import PlanAssessment
    from edgecompile.buckets.plan import BucketPlan
    from edgecompile.buckets.traffic import Sizes
    from edgecompile.quantization.trials import PrecisionChoice

_HEADING_WIDTH = 10  # "tuned for" stays on one line


def buckets_table(plan: BucketPlan, sizes: Sizes) -> RenderableType:
    """The buckets alone, as of a plan without costs."""
    columns, rows = bucket_table(plan, sizes)
    buckets = table([_fold(column) for column in columns], rows, left=2)
    return stack(heading("Buckets"), buckets)


def plan_table(assessment: PlanAssessment) -> RenderableType:
    """The buckets, the other rules and the remarks."""
    buckets = buckets_table(assessment.plan, assessment.served)
    columns, rows = assessment.baseline_table()
    baselines = table([_fold(column) for column in columns], rows, strong=0)
    warned = [("!", f"Warning: {line}") for line in assessment.warnings]
    said = [sentence(line) for line in (assessment.baseline_caption(), *assessment.sentences())]
    lines = table(("", ""), [*warned, *(("·", line) for line in said)], left=2)
    return stack(buckets, heading("Baselines"), baselines, lines)


def _fold(heading: str) -> str:
    """A heading over several lines: names of axes may be long, and the modes need room as well."""
    lines = textwrap.wrap(heading.replace("_", "_ "), _HEADING_WIDTH)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def precision_table(choice: PrecisionChoice) -> RenderableType:
    """The trials of ``--precision auto``."""
    chosen = [i for i, t in enumerate(choice.trials) if t.precision == choice.precision]
    strong = chosen[0] if chosen else None
    return stack(heading("Precision"), table(choice.columns, choice.rows(), left=1, strong=strong))


def plan_page(assessment: PlanAssessment, model: str | None) -> str:
    """The page of ``--report``."""
    from edgecompile.report.page import render_page
    from edgecompile.report.plan_section import plan_section

    facts = [("edgecompile", __version__), ("lengths", assessment.traffic.source)]
    if model is not None:
        facts.append(("model", model))
    costs = assessment.costs
    facts.append(("costs", COST_WORDS[costs.kind]))
    facts += [(f"costs: {name.replace('_', ' ')}", text) for name, text in costs.provenance.items()]
    return render_page("Bucket plan", [plan_section(assessment)], facts=facts)
