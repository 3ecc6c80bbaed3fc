"""``edgecompile lengths``: read lengths, say what they are, and keep them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import file_option, number_option
from edgecompile.cli.options.traffic_options import TrafficOptions, traffic_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.lengths.distribution import LengthDistribution

_EPILOG = """\b
Examples:
  edgecompile lengths lengths.txt
  edgecompile lengths counts.csv -o lengths.json
  edgecompile lengths --texts queries.txt --model ./minilm -o lengths.json
"""


@click.command(
    "lengths", cls=Command, epilog=_EPILOG, short_help="Read and summarise sequence lengths."
)
@click.argument("file", type=click.Path(allow_dash=True), required=False)
@traffic_options
@click.option(
    "--model", metavar="MODEL", help="Use the tokenizer of this model's folder for --texts."
)
@number_option("--max-length", help="Report the share of longer inputs, and count them as N.")
@file_option("--output", "-o", help="Write the histogram as JSON, which every --lengths reads.")
def command(
    session: Session,
    file: str | None,
    traffic: TrafficOptions,
    model: str | None,
    max_length: int | None,
    output: Path | None,
) -> None:
    """Read sequence lengths from FILE or from devices' stats, or count the tokens of texts.

    FILE is a file for --lengths: .txt, .csv (length or length,count), .jsonl, .json histogram,
    .npy, or - for standard input. Every bad row is named.
    """
    distribution = traffic.or_file(file).read(model).lengths
    over = 0.0
    if max_length is not None:
        distribution, over = distribution.clip(max_length)
    if output is not None:
        from edgecompile.files import write_document

        write_document(output, distribution.to_json())
        session.console.say(f"wrote {output}")
    summary = distribution.summary().to_json()
    document = {**distribution.to_json(), "summary": summary, "share_over": over}
    session.emit(document, lambda: _table(distribution, max_length, over))


def _table(distribution: LengthDistribution, max_length: int | None, over: float) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.tables import facts, stack
    from edgecompile.units import format_count, format_share

    summary = distribution.summary()
    rows = [
        ("source", distribution.source),
        ("inputs", f"{format_count(summary.n)}, of {format_count(summary.distinct)} lengths"),
        ("shortest", f"{summary.min}"),
        ("mean", f"{summary.mean:.1f}"),
        ("median", f"{summary.p50}"),
        ("p90", f"{summary.p90}"),
        ("p99", f"{summary.p99}"),
        ("longest", f"{summary.max}"),
    ]
    if max_length is not None:
        rows.append((f"over {max_length}", f"{format_share(over)}, counted as {max_length}"))
    bars = distribution.sparkline(60)
    low, high = str(summary.min), str(summary.max)
    gap = max(len(bars) - len(low) - len(high), 2)
    ends = low if low == high else f"{low}{' ' * gap}{high}"
    return stack(facts(rows), Text(f"  {bars}\n  {ends}"))
