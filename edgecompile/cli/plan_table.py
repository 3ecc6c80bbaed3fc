"""What ``edgecompile plan`` shows: a table for the terminal, a page for the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgecompile import __version__
from edgecompile.cli.console import heading, stack, table
from edgecompile.joint_view import bucket_table
from edgecompile.plan_view import policy_columns, policy_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.plan_view import PlanJudgement

__all__ = ["plan_page", "plan_table"]


def plan_table(judgement: PlanJudgement) -> RenderableType:
    """The buckets, the policies and what there is to know."""
    columns, rows = bucket_table(judgement)
    buckets = table(columns, rows, left=2)
    policies = table(policy_columns(judgement), policy_rows(judgement), strong=0)
    lines = table(("", ""), [("·", line) for line in judgement.sentences()], left=2)
    lines.show_header = False
    return stack(heading("Buckets"), buckets, heading("Policies"), policies, lines)


def plan_page(judgement: PlanJudgement, model: str | None) -> str:
    """The page of ``--report``."""
    from edgecompile.report import plan_section, render_page

    plan = judgement.plan
    section = plan_section(plan, judgement.served, judgement=judgement)
    facts = [("edgecompile", __version__), ("lengths", judgement.traffic.source)]
    if model is not None:
        facts.append(("model", model))
    if plan.cost_model is not None:
        facts += [(f"costs: {name}", text) for name, text in plan.cost_model.provenance.items()]
    return render_page("Bucket plan", [section], facts=facts)
