"""The part of a page that shows a plan: its buckets over the traffic, the costs, and the other rules."""

from __future__ import annotations

from edgecompile.buckets.assessment import COST_WORDS, PlanAssessment, baseline_label
from edgecompile.buckets.baselines import ONE_RANGE, OPTIMUM
from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.buckets.figures import bucket_table
from edgecompile.report import plots
from edgecompile.report.page import Drawing, Section, Table
from edgecompile.units import format_bytes, format_count, format_duration, format_ms, format_share


def plan_section(assessment: PlanAssessment) -> Section:
    """The plan: its buckets over the traffic, the costs of runs, and those of other rules.

    Args:
        assessment: the plan, other rules and doubts; over one axis or over two.
    """
    plan, served, verdict = assessment.plan, assessment.served, assessment.verdict()
    if len(served.axes) > 1:
        traffic = Drawing(
            "Sizes and buckets",
            plots.size_map(served, plan.buckets),
            "Shades show how often sizes come. The numbers in the boxes are those of the table, "
            "where there is room.",
        )
    else:
        traffic = Drawing(
            "Lengths and buckets",
            plots.length_histogram(served, plan.buckets),
            "The numbers above the plot are the upper edges of the buckets.",
        )
    own = tuple(i for i, name in enumerate(assessment.results) if name == OPTIMUM)
    return Section(
        "Plan",
        verdict=verdict,
        figures=_figures(assessment),
        warnings=assessment.warnings,
        notes=tuple(note for note in assessment.sentences() if note != verdict),
        parts=(
            traffic,
            Table("Buckets", *bucket_table(plan, served), words=2),
            _baseline_bars(assessment),
            Table(
                "Against other ways to choose",
                *assessment.baseline_table(),
                strong=own,
                caption=assessment.baseline_caption(),
            ),
            _costs(assessment),
        ),
    )


def _figures(assessment: PlanAssessment) -> tuple[tuple[str, str], ...]:
    plan, cost, axes = assessment.plan, assessment.cost, assessment.traffic.axes
    count = len(plan.buckets)
    figures = [("expected mean", f"{format_ms(plan.expected_ms)} ms"), ("programs", str(count))]
    for axis in axes:
        low, high = plan.extent(axis)
        figures.append((f"{axis if len(axes) > 1 else 'lengths'} served", f"{low}–{high}"))
    waste = assessment.results[OPTIMUM].evaluation.padding_waste
    figures.append(("padding", format_share(waste)))
    if cost is not None and cost.base_size:
        figures.append(("size", format_bytes(cost.size(count))))
    if cost is not None and cost.bucket_build_s:
        figures.append(("predicted build", format_duration(cost.build_s(count))))
    figures.append(("inputs in the sample", format_count(assessment.traffic.n)))
    return tuple(figures)


def _baseline_bars(assessment: PlanAssessment) -> Drawing:
    buckets, names = assessment.plan.buckets, list(assessment.results)
    is_range = len(buckets) == 1 and buckets[0].mode == "exact"
    same = {OPTIMUM, ONE_RANGE} if is_range else {OPTIMUM}
    labels = [
        baseline_label(name) + (" (the same)" if is_range and name == ONE_RANGE else "")
        for name in names
    ]
    ms = [item.evaluation.expected_ms for item in assessment.results.values()]
    strong = [i for i, name in enumerate(names) if name in same]
    svg = plots.bars(labels, {"expected mean": ms}, unit="expected ms per run", strong=strong)
    return Drawing("Expected mean of each rule", svg)


def _costs(assessment: PlanAssessment) -> Drawing:
    costs = assessment.costs
    axis, at = "length (tokens)", ""
    if len(costs.axes) > 1:
        axis, at = costs.axes[0], f" at each {costs.axes[1]}"
    title = f"Cost of one run{at}, {COST_WORDS[costs.kind]}"
    svg = plots.cost_lines(assessment.plan, costs, assessment.served, axis)
    return Drawing(title, svg, _cost_caption(costs))


def _cost_caption(costs: CostGrid) -> str:
    if costs.kind == "modelled":
        return "No point was measured: the costs follow from what the target's profile can do."
    text = "Marks are what was run"
    if any(point.exact_spread_ms or point.pad_spread_ms for point in costs.points):
        text += ", their bars as long as the distance of the quartiles"
    text += "; between them costs are interpolated"
    if not all(plots.was_measured(costs, p, mode) for p in costs.points for mode in costs.modes):
        text += ", and where one mode wasn't run, it follows the other by their ratio"
    return f"{text}. Dotted parts lie beyond the points."
