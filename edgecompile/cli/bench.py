"""``edgecompile bench``: measures a bundle on this machine, alone or beside others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from edgecompile.cli.options import add_options
from edgecompile.cli.options.common import (
    file_option,
    number_option,
    seed_option,
    untested_torch_option,
)
from edgecompile.cli.options.traffic_options import TrafficOptions, lengths_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.bench.report import BenchReport, BenchSettings

_EPILOG = """\b
Examples:
  edgecompile bench minilm.ecb
  edgecompile bench minilm.ecb --model ./minilm --against eager
  edgecompile bench minilm.ecb --against "mine=python3 worker.py"
  edgecompile bench minilm.ecb --lengths lengths.txt --threads 2 --report bench.html
  edgecompile bench new.ecb --against old.ecb --json
"""


def _complete_baselines(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    eager = "eager".startswith(incomplete)
    return [CompletionItem("eager") if eager else CompletionItem(incomplete, type="file")]


def _settings(**values: Any) -> BenchSettings:
    from edgecompile.bench.report import BenchSettings

    return BenchSettings(**{name: value for name, value in values.items() if value is not None})


@click.command("bench", cls=Command, epilog=_EPILOG, short_help="Measure a bundle on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@lengths_options
@click.option(
    "--against",
    "-a",
    multiple=True,
    metavar="BASELINE",
    shell_complete=_complete_baselines,
    help="Measure this as well: eager, another bundle, or NAME=COMMAND for a process that answers "
    "requests as edgecompile.bench.worker says. May be given several times.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Compare outputs with those of this model, which the bundle was built from; eager needs it.",
)
@add_options(
    "settings",
    _settings,
    number_option(
        "--threads",
        help="Run each process with N threads. Default: every CPU that the process may use.",
    ),
    click.option("--variant", metavar="NAME", help="Run this variant, not the best one."),
    number_option("--rounds", default=12, help="Measure this number of rounds."),
    number_option("--runs", default=100, help="Run each process this often in a round."),
    number_option(
        "--cold-runs",
        least=0,
        default=7,
        help="Measure the cold start in this number of fresh processes.",
    ),
    seed_option,
)
@file_option("--report", help="Write the results as an HTML page.")
@untested_torch_option
def command(
    session: Session,
    bundle: Path,
    traffic: TrafficOptions,
    against: tuple[str, ...],
    model: str | None,
    settings: BenchSettings,
    report: Path | None,
) -> None:
    """Measure BUNDLE through its own runtime: milliseconds, cold start, memory, size.

    The bundle and each baseline run in a process of their own, the bundle without torch. The processes
    take turns in rounds, so that a machine that slows down slows all of them. Without --lengths every
    bucket is run at the length that it is tuned for.
    """
    lengths = traffic.read(model).lengths if traffic else None

    from edgecompile.bench.bench import bench_bundle

    result = bench_bundle(
        bundle,
        settings,
        against=against,
        model_spec=model,
        lengths=lengths,
        command=_command_line(),
        progress=session.console,
    )
    for warning in result.warnings:
        session.console.warn(warning)
    if report is not None:
        from edgecompile.files import write_text

        write_text(report, _page(result))
        session.console.say(f"wrote {report}")
    session.emit(result.to_json(), lambda: _table(result))


def _command_line() -> list[str]:
    """The command line of this process; records are published, so folders are left out."""
    return ["edgecompile", *(Path(part).name if os.sep in part else part for part in sys.argv[1:])]


_COLUMNS = ("", "mean ms", "p50 ms", "p99 ms", "× mean", "cold start", "memory", "size", "cosine")


def _cells(result: BenchReport) -> list[tuple[str, ...]]:
    from edgecompile.units import format_bytes, format_duration, format_ms

    mine = result.subject.times.mean_ms
    return [
        (
            item.name,
            format_ms(item.times.mean_ms),
            format_ms(item.times.p50),
            format_ms(item.times.p99),
            f"{item.times.mean_ms / mine:.2f}",
            "–" if item.cold is None else format_duration(item.cold.total_s),
            "–" if item.memory is None else format_bytes(item.memory.resident * 1e6),
            format_bytes(item.bytes) if item.parts else "–",
            "–" if item.cosine is None else f"{item.cosine:.6f}",
        )
        for item in result.results
    ]


def _about(result: BenchReport) -> list[tuple[str, str]]:
    settings, machine, load = result.settings, result.machine, result.load
    busy = [f"average {load['average_1min']:.2f} at the start"] if "average_1min" in load else []
    if "foreign_cpus" in load:
        busy.append(f"other processes kept {load['foreign_cpus']:.2f} CPUs busy")
    return [
        ("CPU", f"{machine.get('cpu', '–')}, {machine.get('usable_cpus', '?')} CPUs usable"),
        ("load", ", ".join(busy) or "–"),
        ("bundle", f"{result.bundle}, {result.subject.precision}"),
        ("lengths", str(result.lengths.get("source", "–"))),
        ("threads", f"{settings.threads}"),
        ("rounds", f"{settings.rounds}, {settings.runs} runs each"),
        *((name, text) for name, text in result.versions.items() if text),
    ]


def _table(result: BenchReport) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts, stack, table
    from edgecompile.units import sentence

    drawn = table(_COLUMNS, _cells(result), strong=0)
    notes = table(("", ""), [("·", sentence(note)) for note in result.notes], left=2)
    parts: list[RenderableType] = [drawn, facts(_about(result))]
    return stack(*parts, notes) if result.notes else stack(*parts)


def _page(result: BenchReport) -> str:
    from edgecompile.report.page import Table, render_page
    from edgecompile.report.pages import bench_section
    from edgecompile.units import format_bytes, format_duration

    subject = result.subject
    figures = [("mean", f"{subject.times.mean_ms:.3g} ms"), ("p99", f"{subject.times.p99:.3g} ms")]
    if subject.cold is not None:
        figures.append(("cold start", format_duration(subject.cold.total_s)))
    figures.append(("bundle size", format_bytes(subject.bytes)))
    if result.best_other is not None:
        best = result.best_other.name
        share = result.ratios[subject.name][best].median
        figures.append((f"of {best}'s time", f"{100 * share:.0f} %"))
    section = bench_section(
        [item.name for item in result.results],
        {
            "median": [item.times.p50 for item in result.results],
            "p99": [item.times.p99 for item in result.results],
        },
        figures=figures,
        table=Table("Baselines", _COLUMNS, tuple(_cells(result)), strong=(0,)),
        notes=result.notes,
        warnings=result.warnings,
    )
    return render_page(result.bundle, [section], lead=result.started, facts=_about(result))
