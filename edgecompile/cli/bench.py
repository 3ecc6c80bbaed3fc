"""``edgecompile bench``: how fast a bundle runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options import lengths_options, read_traffic, threads_option
from edgecompile.cli.session import Command, Session, output_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.report import Section

__all__ = ["command"]

_EPILOG = """\b
Examples:
  edgecompile bench minilm.ecb
  edgecompile bench minilm.ecb --lengths lengths.txt --threads 2 --report bench.html
"""


@click.command("bench", cls=Command, epilog=_EPILOG, short_help="Measure a bundle on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@lengths_options
@click.option("--variant", metavar="NAME", help="Run this variant, not the best one.")
@threads_option
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="Write bars as a page."
)
@output_options
@click.pass_obj
def command(
    session: Session,
    bundle: Path,
    lengths: str | None,
    texts: str | None,
    tokenizer: Path | None,
    variant: str | None,
    threads: int | None,
    report: Path | None,
) -> None:
    """Measure BUNDLE through its own runtime, in processes without torch: milliseconds by length,
    cold start, memory.

    Without --lengths every bucket is measured at the length that it is tuned for.
    """
    from edgecompile.measure import run_bench
    from edgecompile.runtime.files import BundleFolder

    folder = BundleFolder(str(bundle))  # says what is wrong with it in this process
    folder.close()
    manifest = folder.manifest
    if lengths is None and texts is None:
        axis = manifest.length_axis
        spans = [spec.axes[axis] for spec in manifest.buckets] if axis is not None else []
        chosen = sorted({span.hint or span.hi for span in spans})
    else:
        chosen = list(read_traffic(lengths, texts, tokenizer, None).lengths)
    with session.console.step("measure") as step:
        document = run_bench(bundle, chosen, threads=threads, variant=variant)
        step.note(f"{len(document['lengths'])} lengths, {document['threads']} threads")
    if report is not None:
        from edgecompile.cli.output import write_text
        from edgecompile.report import render_page

        facts = [("variant", str(document["variant"])), ("threads", str(document["threads"]))]
        write_text(report, render_page(manifest.name, [_section(document)], facts=facts))
        session.console.say(f"wrote {report}")
    session.emit(document, lambda: _table(document))


def _cells(document: dict[str, Any]) -> list[tuple[str, ...]]:
    from edgecompile.units import format_count, format_ms

    rows = [*document["lengths"], {**document["overall"], "length": "all"}]
    return [
        (
            "–" if row["length"] is None else f"{row['length']}",
            format_count(row["samples"]),
            *(format_ms(row[key]) for key in ("p50_ms", "p90_ms", "p99_ms", "mean_ms")),
        )
        for row in rows
    ]


_COLUMNS = ("length", "runs", "p50 ms", "p90 ms", "p99 ms", "mean ms")


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    from edgecompile.units import format_bytes, format_duration

    rows = []
    cold = document.get("cold_start")
    if cold:
        rows += [
            ("cold start", format_duration(cold["total_ms"] / 1e3)),
            ("of it the bundle", format_duration((cold["open_ms"] + cold["run_ms"]) / 1e3)),
        ]
    memory = document.get("memory") or {}
    if "peak" in memory:
        rows.append(("memory, peak", format_bytes(memory["peak"])))
    return rows


def _table(document: dict[str, Any]) -> RenderableType:
    from edgecompile.cli.console import facts, stack, table

    cells = _cells(document)
    drawn = table(_COLUMNS, cells, strong=len(cells) - 1)
    drawn.columns[0].justify = "right"
    about = [("variant", str(document["variant"])), ("threads", str(document["threads"]))]
    return stack(drawn, facts([*about, *_facts(document)]))


def _section(document: dict[str, Any]) -> Section:
    from edgecompile.report import Table, bench_section

    cells = _cells(document)
    rows = document["lengths"]
    labels = [f"length {row['length']}" for row in rows]
    series = {"p50": [row["p50_ms"] for row in rows], "p99": [row["p99_ms"] for row in rows]}
    table = Table("By length", _COLUMNS, tuple(cells), words=0, strong=(len(cells) - 1,))
    return bench_section(labels, series, figures=_facts(document), table=table)
