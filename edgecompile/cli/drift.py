"""``edgecompile drift``: whether a bundle still suits its traffic, with an exit code for cron."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import number_option
from edgecompile.cli.options.traffic_options import TrafficOptions, traffic_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.drift.report import DriftReport

_EPILOG = """\b
Examples:
  edgecompile drift minilm.ecb stats.json
  edgecompile drift minilm.ecb device-1.json device-2.json --tolerance 0.1 --json
"""

_SHARE = click.FloatRange(min=0.0, max=1.0)


@click.command("drift", cls=Command, epilog=_EPILOG, short_help="Tell whether a new plan pays.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("files", metavar="STATS...", type=click.Path(path_type=Path), nargs=-1)
@traffic_options
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=0.05,
    metavar="SHARE",
    help="Allow the bundle's plan to cost this share more than the best plan for the counted traffic.",
)
@click.option(
    "--max-refused",
    type=_SHARE,
    default=0.01,
    metavar="SHARE",
    help="Allow this share of the calls to be refused for their sizes, beyond what was planned.",
)
@click.option(
    "--distance",
    type=_SHARE,
    default=0.1,
    metavar="D",
    help="Report changed lengths from this Kolmogorov-Smirnov distance on.",
)
@number_option("--min-runs", default=1000, help="Judge only if there are N calls or more.")
@number_option(
    "--max-buckets",
    metavar="K",
    help="Plan at most K programs. Default: as many as the bundle's plan could have.",
)
@click.option(
    "--mode",
    type=click.Choice(["auto", "exact", "pad"]),
    default="auto",
    help="Plan with these modes; auto: those that the bundle's plan could choose from.",
)
@click.option(
    "--any-bundle",
    is_flag=True,
    help="Accept the stats of other bundles, such as earlier builds of the model.",
)
def command(
    session: Session,
    bundle: Path,
    files: tuple[Path, ...],
    traffic: TrafficOptions,
    tolerance: float,
    max_refused: float,
    distance: float,
    min_runs: int,
    max_buckets: int | None,
    mode: str,
    any_bundle: bool,
) -> None:
    """Compare the traffic that BUNDLE served with the traffic that it was planned for.

    STATS are the files that the runtime writes on devices; their counts are added up. The exit
    code is 46 if planning and building again pays: the buckets cost too much more than the best ones
    for this traffic, or too many calls are refused for their sizes. Also reports whether the
    lengths have changed. With too few calls to judge, the command warns and exits with 0.
    --lengths or --texts replace the lengths in the bundle that it was planned for.
    """
    if not (files or traffic.stats):
        raise click.UsageError("Missing argument 'STATS...': the files that devices wrote.")
    from edgecompile.buckets.costs.grid import MODES
    from edgecompile.buckets.shipped import read_shipped_plan, shipped_tokenizer
    from edgecompile.drift.drift import check_drift, judge_drift
    from edgecompile.drift.report import Thresholds
    from edgecompile.lengths.stats_files import read_stats

    planned = None
    planned_for = replace(traffic, stats=None)
    if planned_for:
        if traffic.texts is not None and traffic.tokenizer is None:
            planned_for = replace(planned_for, tokenizer=shipped_tokenizer(bundle))
        planned = planned_for.read().lengths
    shipped = read_shipped_plan(bundle, planned)
    report = judge_drift(
        shipped,
        read_stats((*files, *(traffic.stats or ())), any_bundle=any_bundle, max_length=shipped.hi),
        thresholds=Thresholds(tolerance, max_refused, distance, min_runs),
        any_bundle=any_bundle,
        modes=None if mode == "auto" else tuple(item for item in MODES if item == mode),
        max_buckets=max_buckets,
    )
    session.emit(report.to_json(), lambda: _table(report))
    if not report.enough:
        session.console.warn(report.verdict, "wait for more, or lower --min-runs")
    check_drift(report)


def _table(report: DriftReport) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.tables import facts, heading, stack, table
    from edgecompile.units import format_count, format_ms, format_share

    traffic = report.traffic
    files = len(traffic.sources)
    about = [
        ("bundle", report.name),
        ("traffic", f"{traffic.since} to {traffic.until}, {files} file{'s'[: files > 1]}"),
        ("calls", f"{format_count(traffic.calls)}, {format_count(traffic.runs)} of them served"),
        (
            "refused for sizes",
            f"{format_share(report.refused_share)}, planned "
            f"{format_share(report.planned_refused_share)}",
        ),
    ]
    if report.shift is not None:
        shift = report.shift
        old, new = shift.planned.summary(), shift.asked.summary()
        about += [
            ("lengths", f"mean {old.mean:.1f} planned, {new.mean:.1f} now"),
            ("", f"p50 {old.p50} planned, {new.p50} now; p99 {old.p99} planned, {new.p99} now"),
            ("distance", f"{shift.distance:.3f}, by chance up to {shift.chance:.3f}"),
        ]
    if report.cost is not None:
        cost = report.cost
        ends = ", ".join(bucket.axes[0][1].label for bucket in cost.optimum.buckets)
        about += [
            ("mean run", f"{format_ms(cost.current_ms)} ms by the plan's costs"),
            ("best plan", f"{format_ms(cost.optimum.expected_ms)} ms with {ends}"),
            ("excess", format_share(max(0.0, cost.excess))),
        ]
    rows = [
        (
            f"{i}",
            item.bucket.mode,
            item.bucket.axes[0][1].label,
            format_share(item.planned_share),
            format_share(item.served_share),
            format_ms(item.expected_ms),
            format_ms(item.observed_ms),
        )
        for i, item in enumerate(report.buckets)
    ]
    releases = [
        (
            "-" if item.release is None else str(item.release),
            item.manifest_sha256[:16],
            format_count(item.files),
            format_count(item.calls),
            format_share(item.refused_share),
            "-" if item.mean_length is None else f"{item.mean_length:.1f}",
            "-" if item.distance is None else f"{item.distance:.3f}",
            format_ms(item.mean_ms),
        )
        for item in report.releases
    ]
    heads = (
        "release",
        "manifest",
        "files",
        "calls",
        "refused",
        "mean length",
        "distance",
        "mean ms",
    )
    columns = ("bucket", "mode", "lengths", "planned", "now", "expected ms", "observed ms")
    return stack(
        facts(about),
        *(heading("Releases"), table(heads, releases, left=2)),
        *(heading("Buckets"), table(columns, rows, left=2)),
        Text(report.verdict),
    )
