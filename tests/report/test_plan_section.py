"""The section of a page about a plan: verdict, figures, and the measured points."""

from __future__ import annotations

from dataclasses import replace

from edgecompile.buckets.assessment import assess_plan
from edgecompile.buckets.costs.grid import CostGrid, CostPoint, Mode
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.planner import plan_buckets
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.report.page import Drawing, Section, Table
from edgecompile.report.plan_section import plan_section
from edgecompile.report.plots import was_measured
from edgecompile.units import format_share
from tests.buckets.costs.grids import two_axes
from tests.report.svg import count_uses, read_words

SAMPLE = LengthDistribution.from_samples([2 + i * i % 120 for i in range(400)], "access.log")
POINTS = [CostPoint(n, 2.1 + 0.07 * n, 1.7 + 0.065 * n, 0.2, 0.1) for n in (2, 16, 64, 121)]
CURVE = CostGrid(tuple(POINTS), "measured")
DYNAMIC = CostGrid((CostPoint(2, 1.0, 1.1), CostPoint(121, 9.0, 9.9)), "measured")


def section(curve: CostGrid = CURVE, cost: BucketCost | None = None, **options: object) -> Section:
    plan = plan_buckets(SAMPLE, curve, **options)  # type: ignore[arg-type]
    return plan_section(assess_plan(plan, SAMPLE, programs=4, cost=cost))


def part(found: Section, title: str) -> Drawing | Table:
    return next(item for item in found.parts if item.title.startswith(title))


def test_one_dynamic_range_is_said_at_a_glance() -> None:
    found = section(DYNAMIC, max_buckets=4)
    assert found.verdict.startswith("One dynamic range is best: it runs every input unpadded")
    assert found.verdict not in found.notes
    drawing = part(found, "Expected mean")
    assert isinstance(drawing, Drawing)
    assert {"one dynamic range (the same)", "chosen"} <= set(read_words(drawing.svg))


def test_one_bucket_that_was_forced_is_not_called_best() -> None:
    assert section(max_buckets=1).verdict.startswith("One dynamic range is all that is allowed: ")
    assert "but 1 is the most allowed" in " ".join(section(max_buckets=1).notes)
    padded = section(buckets=1, modes=("pad",))
    text = f"is all that is allowed: it pads every input to length {SAMPLE.lengths[-1]} and takes"
    assert text in padded.verdict


def test_one_static_program_may_be_best() -> None:
    sample = LengthDistribution((37,), (80,))
    judged = assess_plan(plan_buckets(sample, CURVE, max_buckets=3), sample, programs=3)
    text = "One static program is best: it pads every input to length 37 and takes"
    assert plan_section(judged).verdict.startswith(text)


def test_several_buckets_are_compared_with_the_best_single_one() -> None:
    found = section(max_buckets=4)
    assert found.verdict.startswith("4 buckets (") and " save " in found.verdict
    assert "against the best single bucket" in found.verdict


def test_a_plan_of_fewer_programs_says_what_they_cost_and_why() -> None:
    plan = plan_buckets(SAMPLE, CURVE, modes=("pad",), price_per_bucket=0.5, max_buckets=8)
    count = len(plan.buckets)
    judged = assess_plan(plan, SAMPLE, programs=8)
    found = plan_section(judged)
    others = list(judged.results.values())[1:]
    rival = min(others, key=lambda item: item.evaluation.expected_ms)
    assert rival.evaluation.programs == 8 > count
    own = judged.results["optimum"].evaluation.expected_ms
    less = format_share(1 - rival.evaluation.expected_ms / own)
    said = f"{count} programs instead of 8, which would take {less} less time ({rival.name}): "
    assert found.verdict == f"{said}each one must save 0.500 ms of the mean run."
    assert found.verdict in judged.sentences()
    assert not any("instead of" in note for note in found.notes)
    table, bars = part(found, "Against"), part(found, "Expected mean")
    assert isinstance(table, Table) and isinstance(bars, Drawing)
    assert table.columns[-2:] == ("time", "with price") and "must save" in table.caption
    assert table.rows[0][0] == "chosen" and table.rows[0][-2:] == ("–", "–")
    # One number for one thing: the plot says what the table's column says as well.
    words = " ".join(read_words(bars.svg))
    for row in table.rows[1:]:
        assert row[1] in words
    assert f"-{less}" in [row[-2] for row in table.rows]
    assert "optimum" not in words + str(table)


def test_measurements_that_spread_are_a_warning() -> None:
    busy = replace(CURVE, points=(*POINTS[:3], replace(POINTS[3], exact_spread_ms=6.0)))

    def spread(curve: CostGrid) -> list[str]:
        warnings = section(curve, max_buckets=2).warnings
        return [text for text in warnings if text.startswith("Measurements")]

    assert spread(busy) == [
        "Measurements spread: at length 121 (exact) the distance of the quartiles is 56.8 % "
        "of the median, 10.6 ms. Measure again on an idle machine."
    ]
    assert spread(replace(busy, kind="calibrated"))[0].endswith("Repeat it on an idle machine.")
    assert spread(CURVE) == spread(replace(busy, kind="modelled")) == []


def test_size_and_build_time_are_shown_where_they_are_known() -> None:
    names = [name for name, _ in section(max_buckets=2).figures]
    assert "size" not in names and "predicted build" not in names
    cost = BucketCost(base_size=90_000_000, bucket_size=500_000, bucket_build_s=30.0)
    found = section(cost=cost, max_buckets=2)
    assert (
        dict(found.figures)["size"] == "91.0 MB"
        and dict(found.figures)["predicted build"] == "60.0 s"
    )
    table = part(found, "Against")
    assert isinstance(table, Table) and {"size", "predicted build"} <= set(table.columns)


def measured(costs: CostGrid, mode: Mode) -> list[int]:
    return [point.length for point in costs.points if was_measured(costs, point, mode)]


FILLED = tuple(replace(p, pad_spread_ms=0.0) if p.length in (2, 64) else p for p in POINTS)
MERGED = CostGrid(
    FILLED, "measured", {"exact_measured_at": "2, 16, 64, 121", "pad_measured_at": "16, 121"}
)


def test_only_what_was_run_is_marked() -> None:
    assert measured(CURVE, "exact") == measured(CURVE, "pad") == list(CURVE.lengths)
    bare = replace(CURVE, points=FILLED)
    assert measured(bare, "pad") == list(CURVE.lengths)
    assert measured(MERGED, "exact") == list(CURVE.lengths) and measured(MERGED, "pad") == [16, 121]
    assert measured(replace(CURVE, kind="modelled"), "exact") == []
    uses = []
    for curve in (CURVE, MERGED, replace(CURVE, kind="modelled")):
        drawing = part(section(curve, max_buckets=2), "Cost of one run")
        assert isinstance(drawing, Drawing)
        assert ("follows the other by their ratio" in drawing.caption) == (curve is MERGED)
        uses.append(count_uses(drawing.svg))
    assert uses[0] > uses[1] > uses[2]
    assert (
        "modelled, not measured"
        in part(section(replace(CURVE, kind="modelled"), max_buckets=2), "Cost of one run").title
    )


def test_lines_that_were_filled_are_not_marked() -> None:
    grid = CostGrid.join(("length", "batch"), {1: CURVE, 4: MERGED}, {})
    assert measured(grid.lines()[4], "pad") == list(CURVE.lengths)
    merged = replace(grid, provenance=MERGED.provenance)
    assert measured(merged.lines()[4], "pad") == [16, 121]
    assert measured(merged.lines()[1], "pad") == list(CURVE.lengths)


def test_a_plan_over_two_axes() -> None:
    axes = ("frames", "batch")
    cells = {(2 + i * i % 61, 1 + i % 4): 1 + i % 3 for i in range(200)}
    sample = JointDistribution.from_counts(axes, cells, "joint.csv")
    points = [
        (batch, CostPoint(n, 2.1 + 0.07 * n * batch, 1.7 + 0.065 * n * batch))
        for batch in (1, 2, 4)
        for n in (2, 32, 64)
    ]
    surface = two_axes(axes, points, "measured")
    plan = plan_buckets(sample, surface, max_buckets=3)
    found = plan_section(assess_plan(plan, sample, programs=3))
    assert [item.title for item in found.parts] == [
        "Sizes and buckets",
        "Buckets",
        "Expected mean of each rule",
        "Against other ways to choose",
        "Cost of one run at each batch, measured",
    ]
    figures = dict(found.figures)
    assert figures["batch served"] == "1–4" and "frames served" in figures
    table = found.parts[1]
    assert isinstance(table, Table) and table.columns[2:4] == axes
    assert len(table.rows) == len(plan.buckets)
    costs = found.parts[4]
    assert isinstance(costs, Drawing)
    assert {"batch 1", "batch 2", "batch 4", "frames"} <= set(read_words(costs.svg))
