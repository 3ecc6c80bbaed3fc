"""The plan on a terminal: every column can be read at 80 columns, whatever the axes are called."""

from __future__ import annotations

import rich.console

from edgecompile.buckets.assessment import assess_plan
from edgecompile.buckets.costs.grid import CostPoint
from edgecompile.buckets.planner import plan_buckets
from edgecompile.cli.terminal.plan_table import plan_table
from edgecompile.lengths.joint import JointDistribution
from tests.buckets.costs.grids import two_axes


def test_long_names_of_axes_leave_room_for_the_modes() -> None:
    axes = ("tokens_of_the_encoder", "an_axis_that_has_averylongname")
    sample = JointDistribution.from_counts(axes, {(8, 1): 3, (64, 4): 2}, "joint.csv")
    points = [
        (b, CostPoint(n, 1.0 + 0.1 * n * b, 0.5 + 0.1 * n * b)) for b in (1, 4) for n in (8, 64)
    ]
    surface = two_axes(axes, points, "measured")
    plan = plan_buckets(sample, surface, max_buckets=2)
    console = rich.console.Console(width=80)
    with console.capture() as capture:
        console.print(plan_table(assess_plan(plan, sample, programs=2)))
    text = capture.get()
    assert "…" not in text and "bucket" in text and "mean ms" in text
    assert {bucket.mode for bucket in plan.buckets} <= set(text.split())
