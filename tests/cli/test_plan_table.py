"""The plan on a terminal: every column can be read at 80 columns, whatever the axes are called."""

from __future__ import annotations

import rich.console

from edgecompile.buckets.costs.sources import CostPoint
from edgecompile.buckets.costs.surfaces import CostSurface
from edgecompile.buckets.joint.judgement import judge_joint
from edgecompile.buckets.joint.plan import plan_joint
from edgecompile.cli.terminal.plan_table import plan_table
from edgecompile.lengths.joint import JointDistribution


def test_long_names_of_axes_leave_room_for_the_modes() -> None:
    axes = ("tokens_of_the_encoder", "an_axis_that_has_averylongname")
    sample = JointDistribution.from_counts(axes, {(8, 1): 3, (64, 4): 2}, "joint.csv")
    points = [
        (b, CostPoint(n, 1.0 + 0.1 * n * b, 0.5 + 0.1 * n * b)) for b in (1, 4) for n in (8, 64)
    ]
    surface = CostSurface.from_points(axes, points, "measured")
    plan = plan_joint(sample, surface, max_buckets=2)
    console = rich.console.Console(width=80)
    with console.capture() as capture:
        console.print(plan_table(judge_joint(plan, sample, programs=2)))
    text = capture.get()
    assert "…" not in text and "bucket" in text and "mean ms" in text
    assert {bucket.mode for bucket in plan.buckets} <= set(text.split())
