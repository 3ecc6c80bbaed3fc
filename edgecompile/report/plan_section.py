"""The part of a page that shows a plan: its buckets over the traffic, the costs, and its rivals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgecompile.buckets.costs.curves import CostCurve, Mode
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.joint.judgement import JointJudgement, bucket_table, joint_figures
from edgecompile.buckets.judgement import (
    COST_WORDS,
    SAME,
    PlanFigures,
    PlanJudgement,
    excess_text,
    plan_figures,
    policy_caption,
    policy_columns,
    policy_label,
    policy_rows,
)
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.policies import ONE_RANGE, OPTIMUM
from edgecompile.report import cost_plots, plots, size_plots
from edgecompile.report.canvas import is_skewed, left_end
from edgecompile.report.cost_plots import CostLine
from edgecompile.report.page import Drawing, Section, Table
from edgecompile.units import format_bytes, format_count, format_duration, format_ms, format_share

__all__ = ["plan_section"]

_SHORT_NAME = 9  # letters


def plan_section(judgement: PlanJudgement, *, unit: str = "tokens") -> Section:
    """The plan: its buckets over the traffic, what runs cost, what more buckets and rivals would.

    Args:
        judgement: the plan, its rivals and doubts; over one axis or over two.
        unit: what a length counts where there is one axis.
    """
    plan = judgement.plan
    if isinstance(judgement, JointJudgement):
        view = joint_figures(plan, judgement.served_sizes)
        traffic, costs = _size_map(judgement), _cost_family(judgement)
    else:
        view = plan_figures(plan, judgement.served)
        traffic, costs = _histogram(judgement, unit), _cost_curve(judgement, unit)
    fewer = judgement.fewer_programs()  # the verdict says so
    return Section(
        "Plan",
        verdict=_verdict(judgement),
        figures=_figures(judgement, view),
        warnings=judgement.warnings,
        notes=tuple(note for note in judgement.sentences() if note != f"{fewer}."),
        parts=(
            traffic,
            Table("Buckets", *bucket_table(judgement), words=2),
            _policy_bars(judgement),
            _policy_table(judgement),
            *costs,
            *_cost_by_count(plan),
        ),
    )


def _verdict(judgement: PlanJudgement) -> str:
    """What the plan comes to, in one sentence."""
    plan = judgement.plan
    count = len(plan.buckets)
    if count == 1:
        return _verdict_on_one(plan)
    padded = sum(bucket.mode == "pad" for bucket in plan.buckets)
    kinds = {0: "all dynamic ranges", count: "all padded"}.get(
        padded, f"{count - padded} dynamic, {padded} padded"
    )
    best = judgement.best_rival()
    if best is None:
        return f"{count} programs, {kinds}."
    fewer = judgement.fewer_programs()
    if fewer:
        return f"{fewer} ({kinds})."
    own = judgement.policies[OPTIMUM].evaluation.expected_ms
    share = own / best.evaluation.expected_ms - 1
    text = f"{count} programs, {kinds}: the mean run is"
    if abs(share) <= SAME:
        return f"{text} that of {policy_label(best.name)}."
    word = "below" if share < 0 else "above"
    return (
        f"{text} {format_share(abs(share))} {word} that of the best other rule, "
        f"{policy_label(best.name)}."
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


def _figures(judgement: PlanJudgement, view: PlanFigures) -> tuple[tuple[str, str], ...]:
    plan = judgement.plan
    figures = [("programs", str(len(plan.buckets)))]
    if view.expected_ms is not None:
        figures.insert(0, ("expected mean", f"{format_ms(view.expected_ms)} ms"))
    if isinstance(judgement, JointJudgement):
        n = judgement.sizes.n
        for axis in judgement.sizes.axes:
            ranges = [bucket.range(axis) for bucket in plan.buckets]
            served = f"{min(own.lo for own in ranges)}–{max(own.hi for own in ranges)}"
            figures.append((f"{axis} served", served))
    else:
        n = judgement.traffic.n
        figures.append(("lengths served", f"{plan.min_length}–{plan.max_length}"))
    figures.append(("padding", format_share(view.padding_waste)))
    if view.covered < 1:
        figures.append(("inputs served", format_share(view.covered)))
    cost = judgement.cost
    if cost is not None and cost.base_size:
        figures.append(("size", format_bytes(cost.size(len(plan.buckets)))))
    if cost is not None and cost.bucket_build_s:
        figures.append(("predicted build", format_duration(cost.build_s(len(plan.buckets)))))
    figures.append(("inputs in the sample", format_count(n)))
    return tuple(figures)


def _histogram(judgement: PlanJudgement, unit: str) -> Drawing:
    served = judgement.served
    bands = [plots.Band(b.lo, b.hi, b.mode) for b in judgement.plan.buckets]
    return Drawing(
        "Lengths and buckets",
        plots.length_histogram(served.lengths, served.counts, bands, unit=unit),
        "The numbers above the plot are the upper edges of the buckets.",
    )


def _size_map(judgement: JointJudgement) -> Drawing:
    sizes = judgement.served_sizes
    first, second = sizes.axes
    boxes = []
    for index, bucket in enumerate(judgement.plan.buckets):
        x, y = bucket.range(first), bucket.range(second)
        boxes.append(size_plots.Box((x.lo, y.lo), (x.hi, y.hi), bucket.mode, str(index)))
    return Drawing(
        "Sizes and buckets",
        size_plots.size_map(sizes.sizes, sizes.counts, boxes, axes=(first, second)),
        "Shades tell how often sizes come. The numbers in the boxes are those of the table, where "
        "there is room.",
    )


def _cost_curve(judgement: PlanJudgement, unit: str) -> list[Drawing]:
    plan, served = judgement.plan, judgement.served
    curve = plan.curve
    if curve is None:
        return []
    measured = _measured_lengths(curve)
    log = is_skewed(served.lengths, served.counts, plan.max_length)
    low = left_end(served.lengths, plan.max_length, plan.min_length, log=log)
    extent = (low, plan.max_length)
    svg = cost_plots.cost_curve(
        [_cost_line(curve, mode, measured[mode], extent) for mode in curve.modes],
        edges=[bucket.hi for bucket in plan.buckets],
        kind=curve.kind,
        unit=unit,
        log=log,
    )
    title = f"Cost of one run, {COST_WORDS[curve.kind]}"
    return [Drawing(title, svg, _cost_caption([curve], [measured]))]


def _cost_family(judgement: JointJudgement) -> list[Drawing]:
    plan = judgement.plan
    surface = plan.surface
    if surface is None:
        return []
    axis, other = surface.axes
    found = [_measured_sizes(surface, curve) for _, curve in surface.slices]
    ranges = [bucket.range(axis) for bucket in plan.buckets]
    extent = (min(own.lo for own in ranges), max(own.hi for own in ranges))
    # The title names the axis as well; a long name has no room beside the lines.
    prefix = f"{other} " if len(other) <= _SHORT_NAME else ""
    families = [
        [
            (f"{prefix}{size}", _cost_line(curve, mode, measured[mode], extent))
            for (size, curve), measured in zip(surface.slices, found, strict=True)
        ]
        for mode in surface.modes
    ]
    lengths = judgement.served_sizes.marginal(axis)
    svg = cost_plots.cost_family(
        families,
        axis=axis,
        kind=surface.kind,
        edges=sorted({own.hi for own in ranges}),
        log=is_skewed(lengths.lengths, lengths.counts, extent[1]),
    )
    title = f"Cost of one run at each {other}, {COST_WORDS[surface.kind]}"
    return [Drawing(title, svg, _cost_caption([c for _, c in surface.slices], found))]


def _cost_line(
    curve: CostCurve, mode: Mode, measured: frozenset[int], extent: tuple[int, int]
) -> CostLine:
    """A mode's costs over the sizes that the plan serves."""
    low, high = extent
    inside = [length for length in curve.lengths if low < length < high]
    lengths = tuple(sorted({low, *inside, high}))
    marks = []
    for point in curve.points:
        ms = point.value(mode)
        spread = point.exact_spread_ms if mode == "exact" else point.pad_spread_ms
        if point.length in measured and low <= point.length <= high and ms is not None:
            marks.append((point.length, ms, spread))
    return CostLine(
        mode,
        lengths,
        tuple(curve.cost(length, mode) for length in lengths),
        tuple(marks),
        (max(low, curve.lengths[0]), min(high, curve.lengths[-1])),
    )


def _measured_lengths(curve: CostCurve) -> dict[Mode, frozenset[int]]:
    """The lengths at which each mode was really run; the other costs were filled.

    The provenance says so where modes were merged; without it all points count, but none of a
    modelled curve.
    """
    if curve.kind == "modelled":
        return {mode: frozenset() for mode in curve.modes}
    told = {
        mode: frozenset(map(int, re.findall("[0-9]+", curve.provenance[f"{mode}_measured_at"])))
        for mode in curve.modes
        if f"{mode}_measured_at" in curve.provenance
    }
    rest: frozenset[int] = frozenset() if told else frozenset(curve.lengths)
    return {mode: told.get(mode, rest) for mode in curve.modes}


def _measured_sizes(surface: CostSurface, curve: CostCurve) -> dict[Mode, frozenset[int]]:
    """As :func:`_measured_lengths`, of a slice of a surface.

    A surface that was read from a file doesn't say where each slice was measured; if its
    provenance says that modes were merged, the costs without a spread were filled.
    """
    if curve.provenance or surface.kind == "modelled":
        return _measured_lengths(curve)
    merged = any(name.endswith("_measured_at") for name in surface.provenance)
    found: dict[Mode, frozenset[int]] = {}
    for mode in curve.modes:
        name = f"{mode}_spread_ms"
        found[mode] = frozenset(
            point.length for point in curve.points if not merged or getattr(point, name) > 0
        )
    return found


def _cost_caption(
    curves: Sequence[CostCurve], measured: Sequence[dict[Mode, frozenset[int]]]
) -> str:
    if curves[0].kind == "modelled":
        return "No point was measured: the costs follow from what the target's profile can do."
    points = [point for curve in curves for point in curve.points]
    text = "Marks are what was run"
    if any(point.exact_spread_ms or point.pad_spread_ms for point in points):
        text += ", their bars as long as the distance of the quartiles"
    filled = any(
        not known >= set(curve.lengths)
        for curve, modes in zip(curves, measured, strict=True)
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


def _policy_bars(judgement: PlanJudgement) -> Drawing:
    own = judgement.plan.buckets
    is_range = len(own) == 1 and own[0].mode == "exact"
    same = {OPTIMUM, ONE_RANGE} if is_range else {OPTIMUM}
    names = list(judgement.policies)
    labels = [
        policy_label(name) + (" (the same)" if is_range and name == ONE_RANGE else "")
        for name in names
    ]
    ms = [item.evaluation.expected_ms for item in judgement.policies.values()]
    best = ms[names.index(OPTIMUM)]
    remarks = [
        "" if name == OPTIMUM else f"({excess_text(x / best - 1)})"
        for name, x in zip(names, ms, strict=True)
    ]
    limit = 5 * best
    return Drawing(
        "Expected mean of each policy",
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


def _policy_table(judgement: PlanJudgement) -> Table:
    strong = tuple(i for i, name in enumerate(judgement.policies) if name == OPTIMUM)
    columns, rows = policy_columns(judgement), policy_rows(judgement)
    caption = policy_caption(judgement)
    return Table("Against other ways to choose", columns, rows, strong=strong, caption=caption)
