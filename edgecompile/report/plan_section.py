"""The part of a page that shows a plan: its buckets over the traffic, the costs, and its rivals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgecompile.buckets.assessment import (
    COST_WORDS,
    SAME,
    PlanAssessment,
    baseline_label,
    excess_text,
)
from edgecompile.buckets.baselines import ONE_RANGE, OPTIMUM
from edgecompile.buckets.costs.grid import CostGrid, CostPoint, Mode
from edgecompile.buckets.figures import PlanFigures, plan_figures
from edgecompile.buckets.plan import BucketPlan
from edgecompile.report import plots, size_plots
from edgecompile.report.canvas import is_skewed, left_end
from edgecompile.report.cost_plots import CostLine, cost_plot
from edgecompile.report.page import Drawing, Section, Table
from edgecompile.units import format_bytes, format_count, format_duration, format_ms, format_share

__all__ = ["plan_section"]

_SHORT_NAME = 9  # letters


def plan_section(assessment: PlanAssessment, *, unit: str = "tokens") -> Section:
    """The plan: its buckets over the traffic, what runs cost, what more buckets and other rules would.

    Args:
        assessment: the plan, other rules and doubts; over one axis or over two.
        unit: what a length counts where there is one axis.
    """
    plan = assessment.plan
    view = plan_figures(plan, assessment.served)
    traffic = _size_map(assessment) if len(view.axes) > 1 else _histogram(assessment, unit)
    fewer = assessment.fewer_programs()  # the verdict says so
    columns, rows = assessment.baseline_table()
    own = tuple(i for i, name in enumerate(assessment.results) if name == OPTIMUM)
    caption = assessment.baseline_caption()
    return Section(
        "Plan",
        verdict=_verdict(assessment),
        figures=_figures(assessment, view),
        warnings=assessment.warnings,
        notes=tuple(note for note in assessment.sentences() if note != f"{fewer}."),
        parts=(
            traffic,
            Table("Buckets", *view.table(), words=2),
            _baseline_bars(assessment),
            Table("Against other ways to choose", columns, rows, strong=own, caption=caption),
            _costs(assessment, unit),
            *_cost_by_count(plan),
        ),
    )


def _verdict(assessment: PlanAssessment) -> str:
    """What the plan comes to, in one sentence."""
    plan = assessment.plan
    count = len(plan.buckets)
    if count == 1:
        return _verdict_on_one(plan)
    padded = sum(bucket.mode == "pad" for bucket in plan.buckets)
    kinds = {0: "all dynamic ranges", count: "all padded"}.get(
        padded, f"{count - padded} dynamic, {padded} padded"
    )
    best = assessment.best_baseline()
    if best is None:
        return f"{count} programs, {kinds}."
    fewer = assessment.fewer_programs()
    if fewer:
        return f"{fewer} ({kinds})."
    own = assessment.results[OPTIMUM].evaluation.expected_ms
    share = own / best.evaluation.expected_ms - 1
    text = f"{count} programs, {kinds}: the mean run is"
    if abs(share) <= SAME:
        return f"{text} that of {baseline_label(best.name)}."
    word = "below" if share < 0 else "above"
    return (
        f"{text} {format_share(abs(share))} {word} that of the best other rule, "
        f"{baseline_label(best.name)}."
    )


def _verdict_on_one(plan: BucketPlan) -> str:
    bucket = plan.buckets[0]
    if bucket.mode == "pad":
        sizes = " × ".join(str(bucket.range(axis).hi) for axis in bucket.pad_axes)
        text, best = f"One static program, padded to {sizes}", ", is best."
    else:
        text, best = "One dynamic range", " is best: no buckets are needed."
    if _is_best_count(plan):
        return text + best
    return f"{text}: more programs would pay, but weren't allowed."


def _is_best_count(plan: BucketPlan) -> bool:
    """Whether one bucket costs least of all numbers of buckets that were looked at."""
    costs = [ms + plan.price_per_bucket * k for k, ms in enumerate(plan.expected_by_count)]
    return not costs or costs[0] <= min(costs) * (1 + SAME)


def _figures(assessment: PlanAssessment, view: PlanFigures) -> tuple[tuple[str, str], ...]:
    plan = assessment.plan
    figures = [("expected mean", f"{format_ms(view.expected_ms)} ms")]
    figures.append(("programs", str(len(plan.buckets))))
    for axis in view.axes:
        name = axis if len(view.axes) > 1 else "lengths"
        low, high = plan.extent(axis)
        figures.append((f"{name} served", f"{low}–{high}"))
    figures.append(("padding", format_share(view.padding_waste)))
    if view.covered < 1:
        figures.append(("inputs served", format_share(view.covered)))
    cost = assessment.cost
    if cost is not None and cost.base_size:
        figures.append(("size", format_bytes(cost.size(len(plan.buckets)))))
    if cost is not None and cost.bucket_build_s:
        figures.append(("predicted build", format_duration(cost.build_s(len(plan.buckets)))))
    figures.append(("inputs in the sample", format_count(assessment.traffic.n)))
    return tuple(figures)


def _histogram(assessment: PlanAssessment, unit: str) -> Drawing:
    served = assessment.served.lengths
    bands = [plots.Band(b.lo, b.hi, b.mode) for b in assessment.plan.buckets]
    return Drawing(
        "Lengths and buckets",
        plots.length_histogram(served.lengths, served.counts, bands, unit=unit),
        "The numbers above the plot are the upper edges of the buckets.",
    )


def _size_map(assessment: PlanAssessment) -> Drawing:
    served = assessment.served
    first, second = served.axes
    boxes = []
    for index, bucket in enumerate(assessment.plan.buckets):
        x, y = bucket.range(first), bucket.range(second)
        boxes.append(size_plots.Box((x.lo, y.lo), (x.hi, y.hi), bucket.mode, str(index)))
    return Drawing(
        "Sizes and buckets",
        size_plots.size_map(
            served.sizes.tolist(), served.counts.tolist(), boxes, axes=(first, second)
        ),
        "Shades tell how often sizes come. The numbers in the boxes are those of the table, where "
        "there is room.",
    )


def _costs(assessment: PlanAssessment, unit: str) -> Drawing:
    plan, costs, served = assessment.plan, assessment.costs, assessment.served.lengths
    low, high = plan.extent(costs.axes[0])
    log = is_skewed(served.lengths, served.counts, high)
    extent = (left_end(served.lengths, high, low, log=log), high)
    title = f"Cost of one run, {COST_WORDS[costs.kind]}"
    if len(costs.axes) == 1:
        measured = [_measured_lengths(costs, costs)]
        lines = {0: costs}
        axis = f"length ({unit})"
        panels = [[("", _cost_line(costs, m, measured[0][m], extent)) for m in costs.modes]]
    else:
        axis, other = costs.axes
        title = f"Cost of one run at each {other}, {COST_WORDS[costs.kind]}"
        lines = costs.lines()
        measured = [_measured_lengths(costs, line) for line in lines.values()]
        # The title names the axis as well; a long name has no room beside the lines.
        prefix = f"{other} " if len(other) <= _SHORT_NAME else ""
        panels = [
            [
                (f"{prefix}{size}", _cost_line(line, mode, known[mode], extent))
                for (size, line), known in zip(lines.items(), measured, strict=True)
            ]
            for mode in costs.modes
        ]
    edges = sorted({bucket.hi for bucket in plan.buckets})
    svg = cost_plot(panels, axis=axis, kind=costs.kind, edges=edges, log=log)
    return Drawing(title, svg, _cost_caption(list(lines.values()), measured))


def _cost_line(
    curve: CostGrid, mode: Mode, measured: frozenset[int], extent: tuple[int, int]
) -> CostLine:
    """A mode's costs over the sizes that the plan serves."""
    low, high = extent
    inside = [length for length in curve.lengths if low < length < high]
    lengths = tuple(sorted({low, *inside, high}))
    marks = []
    for point in curve.points:
        ms = point.value(mode)
        if point.length in measured and low <= point.length <= high and ms is not None:
            marks.append((point.length, ms, point.spread(mode)))
    return CostLine(
        mode,
        lengths,
        tuple(curve.cost(length, mode) for length in lengths),
        tuple(marks),
        (max(low, curve.lengths[0]), min(high, curve.lengths[-1])),
    )


def _measured_lengths(costs: CostGrid, line: CostGrid) -> dict[Mode, frozenset[int]]:
    """The lengths at which each mode was really run; the other costs were filled.

    The provenance of costs over one axis lists them where modes were merged. Over two axes each
    size of the other axis has lengths of its own: there the costs without a spread were filled.
    Without such a list all points count, but none of modelled costs.
    """
    if costs.kind == "modelled":
        return {mode: frozenset() for mode in costs.modes}
    listed = {
        mode: set(map(int, re.findall("[0-9]+", costs.provenance.get(f"{mode}_measured_at", ""))))
        for mode in costs.modes
    }
    merged = any(listed.values())

    def was_run(point: CostPoint, mode: Mode) -> bool:
        if len(costs.axes) > 1:
            return point.spread(mode) > 0
        return point.length in listed[mode]

    return {
        mode: frozenset(p.length for p in line.points if not merged or was_run(p, mode))
        for mode in costs.modes
    }


def _cost_caption(lines: Sequence[CostGrid], measured: Sequence[dict[Mode, frozenset[int]]]) -> str:
    if lines[0].kind == "modelled":
        return "No point was measured: the costs follow from what the target's profile can do."
    points = [point for line in lines for point in line.points]
    text = "Marks are what was run"
    if any(point.exact_spread_ms or point.pad_spread_ms for point in points):
        text += ", their bars as long as the distance of the quartiles"
    filled = any(
        not known >= set(line.lengths)
        for line, modes in zip(lines, measured, strict=True)
        for known in modes.values()
    )
    between = "; between them costs are interpolated"
    if filled:
        between += ", and where one mode wasn't run, it follows the other by their ratio"
    return f"{text}{between}. Dotted parts lie beyond the points."


def _cost_by_count(plan: BucketPlan) -> list[Drawing]:
    costs = plan.expected_by_count
    if len(costs) < 2:
        return []
    svg = plots.cost_by_count(
        range(1, len(costs) + 1), costs, len(plan.buckets), price=plan.price_per_bucket
    )
    caption = "If little changes, the axis doesn't start at zero."
    return [Drawing("What more buckets would save", svg, caption)]


def _baseline_bars(assessment: PlanAssessment) -> Drawing:
    own = assessment.plan.buckets
    is_range = len(own) == 1 and own[0].mode == "exact"
    same = {OPTIMUM, ONE_RANGE} if is_range else {OPTIMUM}
    names = list(assessment.results)
    labels = [
        baseline_label(name) + (" (the same)" if is_range and name == ONE_RANGE else "")
        for name in names
    ]
    ms = [item.evaluation.expected_ms for item in assessment.results.values()]
    best = ms[names.index(OPTIMUM)]
    remarks = [
        "" if name == OPTIMUM else f"({excess_text(x / best - 1)})"
        for name, x in zip(names, ms, strict=True)
    ]
    limit = 5 * best
    return Drawing(
        "Expected mean of each rule",
        plots.bars(
            labels,
            {"expected mean": ms},
            unit="expected ms per run",
            strong=[i for i, name in enumerate(names) if name in same],
            remarks=remarks,
            limit=limit,
        ),
        "A bar with a gap is longer than drawn." if max(ms) > limit else "",
    )
