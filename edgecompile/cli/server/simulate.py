"""``edgecompile simulate``: what a server would answer, by the costs of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import file_option, number_option, seed_option
from edgecompile.cli.options.traffic_options import TrafficOptions, traffic_options
from edgecompile.cli.terminal.session import Command, Session
from edgecompile.server.schedule.simulate import POLICIES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.planning.costs.serving import TextServing
    from edgecompile.server.schedule.simulate_texts import TextsReplay
    from edgecompile.server.schedule.sweep import Replay, Workload

_EPILOG = """\b
Examples:
  edgecompile simulate minilm.ecb --slo 100
  edgecompile simulate minilm.ecb --lengths queries.txt --cpus 8 --policy by-cost --policy tei
  edgecompile simulate minilm.ecb --trace requests.csv --slo 50 --plot load.html --json
"""


@click.command("simulate", cls=Command, epilog=_EPILOG, short_help="Replay traffic on a server.")
@click.argument("bundle", type=click.Path(path_type=Path))
@traffic_options
@file_option(
    "--trace",
    help="Replay these requests: CSV rows of seconds,length; for a language model seconds,length,new.",
)
@file_option("--costs", help="Use these costs: bench --serving FILE. Default: those in the bundle.")
@number_option(
    "--cpus", help="Give the server N CPUs.  [default: those that the costs were measured on]"
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(tuple(POLICIES)),
    multiple=True,
    help="Replay with this rule; may be given several times. Default: all of them.",
)
@click.option(
    "--rate",
    "rates",
    type=click.FloatRange(min=0.0, min_open=True),
    multiple=True,
    metavar="R",
    help="Simulate R requests per second, at random times; may be given several times. Default: "
    "0.25 to 1.5 times the rate that the server can answer.",
)
@click.option(
    "--slo",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="MS",
    help="Count answers within MS milliseconds as in time; our rule refuses requests that would be late.",
)
@number_option("--requests", default=2000, help="Replay N requests at each rate.")
@number_option(
    "--new-tokens",
    help="Generate N tokens after each prompt of a language model.  [default: 128]",
)
@click.option(
    "--noise",
    type=click.FloatRange(min=0.0, max=2.0),
    default=0.05,
    metavar="SIGMA",
    help="Multiply the cost of each run by a lognormal factor of this sigma.",
)
@seed_option
@file_option("--plot", help="Write drawings of latency and goodput over the load: an HTML page.")
def command(
    session: Session,
    /,
    bundle: Path,
    traffic: TrafficOptions,
    trace: Path | None,
    costs: Path | None,
    cpus: int | None,
    policies: Sequence[str],
    rates: Sequence[float],
    slo: float | None,
    requests: int,
    new_tokens: int | None,
    noise: float,
    seed: int,
    plot: Path | None,
) -> None:
    """Simulate a server of BUNDLE under load, with our scheduling rule and those of other servers.

    Nothing is run: the costs of batches, measured for the bundle or on the server, determine how
    long each run takes. For each rule and rate, the table has the answers per second, those within
    --slo, the latencies and the refused requests. For a language model, whose --costs come from
    bench --serving, it has the texts and tokens per second, and the times between tokens.
    """
    from edgecompile.lengths.traces import read_trace
    from edgecompile.planning.costs.serving import read_serving, read_text_serving
    from edgecompile.server.schedule.simulate import Arrival
    from edgecompile.server.schedule.simulate_texts import TEXT_POLICIES
    from edgecompile.server.schedule.sweep import Workload, count_lengths, replay

    if trace is not None and (traffic or rates):
        raise click.UsageError(
            "--trace says when requests come and how long they are; leave --rate and the lengths out."
        )
    texts = read_text_serving(bundle, costs)
    if texts is not None:
        given = {"--slo": slo, "--plot": plot, "--cpus": cpus}
        others = [f"--policy {name}" for name in policies if name not in TEXT_POLICIES]
        _refuse([name for name, value in given.items() if value is not None] + others)
        workload = Workload({}, (), tuple(rates), requests, seed)
        replayed = _replay_texts(
            session, texts, workload, traffic, trace, policies, new_tokens, noise
        )
        session.emit({"bundle": str(bundle), **replayed.to_json()}, lambda: _text_tables(replayed))
        return
    if new_tokens is not None:
        raise click.UsageError("--new-tokens is for language models")
    serving = read_serving(bundle, costs)
    longest = serving.costs.longest
    lengths, recorded = serving.lengths, tuple[Arrival, ...]()
    if trace is not None:
        recorded = tuple(Arrival(at, length) for at, length in read_trace(trace))
        lengths = count_lengths(recorded)
    elif traffic:
        read = traffic.read(max_length=longest).lengths
        lengths = dict(zip(map(int, read.lengths), map(int, read.counts), strict=True))
    workload = Workload(lengths, recorded, tuple(rates), requests, seed)
    over = workload.longer_than(longest)
    if over:
        total = sum(lengths.values())
        session.console.say(
            f"{over} of {total} requests are longer than {longest}: they count as {longest}"
        )
    with session.console.step("replay") as step:
        result = replay(
            serving.costs,
            cpus or serving.cpus,
            workload,
            policies,
            slo_ms=slo,
            noise=noise,
            mixes=serving.mixes,
            progress=step.update,
        )
    if plot is not None:
        from edgecompile.files import write_text
        from edgecompile.report.load_plot import load_page

        write_text(plot, load_page(result.outcomes, slo))
        session.console.say(f"wrote {plot}")
    session.emit({"bundle": str(bundle), **result.to_json()}, lambda: _tables(result))


def _refuse(names: Sequence[str]) -> None:
    """Refuses options that say nothing of a language model."""
    if names:
        raise click.UsageError(
            f"{' and '.join(names)}: that is for models that answer in one run, and this one generates texts"
        )


def _replay_texts(
    session: Session,
    serving: TextServing,
    workload: Workload,
    traffic: TrafficOptions,
    trace: Path | None,
    policies: Sequence[str],
    new: int | None,
    noise: float,
) -> TextsReplay:
    from edgecompile.lengths.traces import read_text_trace
    from edgecompile.server.schedule.simulate_texts import TextArrival, replay_texts

    most, recorded = serving.max_context, list[TextArrival]()
    if trace is not None:
        if new is not None:
            raise click.UsageError("--trace says how many tokens are new; leave --new-tokens out.")
        rows = read_text_trace(trace)
        recorded = [
            TextArrival(at, tokens, more) for at, tokens, more in rows if tokens + more <= most
        ]
        over, total = len(rows) - len(recorded), len(rows)
    elif traffic:
        new = new or 128
        read = traffic.read(max_length=most).lengths
        lengths = dict(zip(map(int, read.lengths), map(int, read.counts), strict=True))
        workload = replace(
            workload, lengths={n: count for n, count in lengths.items() if n + new <= most}
        )
        total = sum(lengths.values())
        over = total - sum(workload.lengths.values())
    else:
        raise click.UsageError("Texts of a language model need --trace, or lengths of prompts.")
    if over == total:
        raise click.UsageError(f"No text fits into the context of {most} tokens.")
    if over:
        session.console.say(
            f"{over} of {total} texts don't fit into the context of {most} tokens: the server refuses them"
        )
    with session.console.step("replay") as step:
        return replay_texts(
            serving.costs,
            serving.cpus,
            workload,
            recorded,
            policies,
            new=new or 1,
            noise=noise,
            progress=step.update,
        )


def _text_tables(result: TextsReplay) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts, stack, table
    from edgecompile.server.schedule.simulate import percentile_ms
    from edgecompile.units import format_ms

    def ms(times: Sequence[float], percent: int) -> str:
        found = percentile_ms(times, percent)
        return "-" if found is None else format_ms(found)

    rows = [
        [
            outcome.policy,
            "at once" if outcome.offered == float("inf") else f"{outcome.offered:.3g}",
            f"{outcome.rate:.3g}",
            f"{outcome.tokens_per_s:.3g}",
            *(
                ms(times, percent)
                for times in (outcome.first, outcome.gaps)
                for percent in (50, 99)
            ),
        ]
        for outcome in result.outcomes
    ]
    columns = ["rule", "offered/s", "texts/s", "tokens/s", "first p50 ms", "first p99 ms"]
    return stack(
        facts([("CPUs", str(result.cpus))]),
        table(
            ["rule", "at most/s"],
            [[name, f"{rate:.3g}"] for name, rate in result.saturated.items()],
        ),
        table([*columns, "gap p50 ms", "gap p99 ms"], rows),
    )


def _tables(result: Replay) -> RenderableType:
    from edgecompile.cli.terminal.tables import facts, stack, table
    from edgecompile.units import format_ms

    def ms(value: float | None) -> str:
        return "-" if value is None else format_ms(value * 1e3)

    rows = [
        [
            outcome.policy,
            "at once" if outcome.offered == float("inf") else f"{outcome.offered:.0f}",
            f"{outcome.rate:.0f}",
            "-" if result.slo_ms is None else f"{outcome.goodput:.0f}",
            ms(outcome.percentile(50)),
            ms(outcome.percentile(99)),
            f"{outcome.refused / max(1, outcome.refused + outcome.answered):.1%}",
            f"{outcome.cpu_share:.0%}",
        ]
        for outcome in result.outcomes
    ]
    streams = result.streams
    division = f"{streams.count} runs side by side, {streams.threads} threads each"
    columns = ["rule", "offered/s", "answered/s", "in time/s", "p50 ms", "p99 ms", "refused", "CPU"]
    return stack(
        facts([("CPUs", f"{result.cpus}: {division}")]),
        table(
            ["rule", "at most/s"],
            [[name, f"{rate:.0f}"] for name, rate in result.saturated.items()],
        ),
        table(columns, rows),
    )
