"""``edgecompile plan``: the buckets that are worth building, and what others would have chosen."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options import (
    batch_option,
    lengths_options,
    max_length_option,
    mode_option,
    read_traffic,
    seed_option,
    target_option,
    threads_option,
)
from edgecompile.cli.session import Command, Session, output_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from edgecompile.buckets import BucketPlan
    from edgecompile.curves import Mode
    from edgecompile.lengths import LengthDistribution
    from edgecompile.plan_view import PlanJudgement

__all__ = ["command"]

_EPILOG = """\b
Examples:
  edgecompile plan lengths.json --model ./minilm --report plan.html
  edgecompile plan lengths.csv --cost-points costs.csv --max-buckets 6 --json
  edgecompile plan lengths.json --model ./minilm --work-dir minilm.work
"""

# What rivals may use where the plan itself isn't bounded.
_RIVAL_PROGRAMS = 8


@click.command("plan", cls=Command, epilog=_EPILOG, short_help="Choose the buckets to build.")
@click.argument("file", metavar="[LENGTHS]", type=click.Path(allow_dash=True), required=False)
@lengths_options
@click.option("--model", metavar="MODEL", help="Measure the costs on this model.")
@click.option(
    "--cost-points",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the costs from length,exact_ms,pad_ms rows instead of a model.",
)
@target_option
@click.option(
    "--buckets", type=click.IntRange(min=1), metavar="K", help="Exactly so many programs."
)
@click.option(
    "--max-buckets", type=click.IntRange(min=1), metavar="K", help="At most so many programs."
)
@click.option(
    "--price-per-bucket",
    type=click.FloatRange(min=0.0),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="Milliseconds of the mean run that a program has to save.",
)
@max_length_option
@batch_option
@mode_option
@threads_option
@seed_option
@click.option(
    "--work-dir",
    "-w",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Read lengths.json and leave plan.json here, for the stages that follow.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the plan as JSON.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page with the histogram, the cost curve and the comparison.",
)
@output_options
@click.pass_obj
def command(
    session: Session,
    file: str | None,
    lengths: str | None,
    texts: str | None,
    tokenizer: Path | None,
    model: str | None,
    cost_points: Path | None,
    target: str,
    buckets: int | None,
    max_buckets: int | None,
    price_per_bucket: float,
    max_length: int | None,
    batch: tuple[int, int],
    mode: str,
    threads: int | None,
    seed: int,
    work_dir: Path | None,
    output: Path | None,
    report: Path | None,
) -> None:
    """Choose the buckets of least expected cost for the lengths of the traffic.

    The costs are measured on a model, or read from a file; the plan says which. The table
    compares the plan with the usual rules, by the same costs on the same lengths.
    """
    from edgecompile.cli.output import write_json, write_text
    from edgecompile.plan_view import judge_plan

    if (model is None) == (cost_points is None):
        raise click.UsageError("Give either --model MODEL or --cost-points FILE.")
    if file is not None and lengths is not None:
        raise click.UsageError("LENGTHS and --lengths are the same thing; give one of them.")
    source = file or lengths
    if source is None and texts is None and work_dir is not None:
        source = str(work_dir / "lengths.json")
    traffic = read_traffic(source, texts, tokenizer, model)
    limits = _Limits(buckets, max_buckets, price_per_bucket, max_length, mode)
    if cost_points is not None:
        plan = _plan_from_points(traffic, cost_points, limits)
    else:
        assert model is not None
        plan = _plan_from_model(session, traffic, model, target, batch, threads, limits, work_dir)
    judgement = judge_plan(plan, traffic, programs=limits.programs, modes=limits.modes, seed=seed)
    document = judgement.to_json()
    if work_dir is not None:
        work_dir.mkdir(parents=True, exist_ok=True)
        write_json(work_dir / "lengths.json", traffic.to_json())
        write_json(work_dir / "plan.json", document)
        session.console.say(f"wrote {work_dir / 'plan.json'}")
    if output is not None:
        write_json(output, document)
        session.console.say(f"wrote {output}")
    if report is not None:
        write_text(report, _page(judgement, model))
        session.console.say(f"wrote {report}")
    session.emit(document, lambda: _table(judgement))


@dataclass(frozen=True)
class _Limits:
    buckets: int | None
    max_buckets: int | None
    price_per_bucket: float
    max_length: int | None
    mode: str

    @property
    def programs(self) -> int:
        return self.buckets or self.max_buckets or _RIVAL_PROGRAMS

    @property
    def modes(self) -> tuple[Mode, ...]:
        if self.mode == "auto":
            return ("exact", "pad")
        return ("pad",) if self.mode == "pad" else ("exact",)


def _plan_from_points(
    traffic: LengthDistribution, cost_points: Path, limits: _Limits
) -> BucketPlan:
    from edgecompile.buckets import plan_buckets
    from edgecompile.costs import read_cost_points

    bounded = limits.buckets is not None or limits.price_per_bucket > 0
    return plan_buckets(
        traffic,
        read_cost_points(cost_points),
        buckets=limits.buckets,
        max_buckets=limits.max_buckets or (None if bounded else _RIVAL_PROGRAMS),
        price_per_bucket=limits.price_per_bucket,
        max_length=limits.max_length,
        modes=limits.modes,
    )


def _plan_from_model(
    session: Session,
    traffic: LengthDistribution,
    model: str,
    target: str,
    batch: tuple[int, int],
    threads: int | None,
    limits: _Limits,
    work_dir: Path | None,
) -> BucketPlan:
    from edgecompile.compilation import ExportStore
    from edgecompile.models import load_model
    from edgecompile.planning import PlanRequest, plan_model
    from edgecompile.targets import load_target

    profile = load_target(target)
    with session.console.step("load the model"):
        loaded = load_model(model, batch=batch)
    request = PlanRequest(
        lengths=traffic,
        buckets=limits.buckets,
        max_buckets=limits.max_buckets,
        max_length=limits.max_length,
        mode=limits.mode,
        price_per_bucket=limits.price_per_bucket,
        threads=threads,
    )
    with _folder(work_dir) as work, session.console.step("measure and plan") as step:
        exports = ExportStore(loaded, work / "exported")
        planned = plan_model(exports, profile, request, work, step=step)
    return replace(planned.plan, notes=planned.notes)


@contextmanager
def _folder(work_dir: Path | None) -> Iterator[Path]:
    if work_dir is not None:
        work_dir.mkdir(parents=True, exist_ok=True)
        yield work_dir
        return
    with tempfile.TemporaryDirectory(prefix="edgecompile-plan-") as name:
        yield Path(name)


def _table(judgement: PlanJudgement) -> RenderableType:
    from edgecompile.cli.console import heading, stack, table
    from edgecompile.plan_view import plan_figures
    from edgecompile.units import format_ms, format_share

    figures = plan_figures(judgement.plan, judgement.served)
    buckets = table(
        ("bucket", "mode", "lengths", "tuned for", "inputs", "padding", "mean ms"),
        [
            (
                f"{i}",
                item.bucket.mode,
                f"{item.bucket.lo}–{item.bucket.hi}",
                f"{item.bucket.hint}",
                format_share(item.share),
                format_share(item.padding_waste),
                format_ms(item.expected_ms),
            )
            for i, item in enumerate(figures.buckets)
        ],
        left=2,
    )
    policies = table(
        ("policy", "mean ms", "p99 ms", "padding", "programs", "over the optimum"),
        [
            (
                name.replace("_", " "),
                format_ms(result.evaluation.expected_ms),
                format_ms(result.evaluation.p99_ms),
                format_share(result.evaluation.padding_waste),
                f"{result.evaluation.programs}",
                f"{100 * result.regret:+.1f} %",
            )
            for name, result in judgement.policies.items()
        ],
        strong=0,
    )
    lines = table(("", ""), [("·", line) for line in judgement.sentences()], left=2)
    lines.show_header = False
    return stack(heading("Buckets"), buckets, heading("Policies"), policies, lines)


def _page(judgement: PlanJudgement, model: str | None) -> str:
    from edgecompile import __version__
    from edgecompile.report import plan_section, render_page

    plan = judgement.plan
    section = plan_section(plan, judgement.served, judgement=judgement)
    facts = [("edgecompile", __version__), ("lengths", judgement.traffic.source)]
    if model is not None:
        facts.append(("model", model))
    if plan.cost_model is not None:
        facts += [(f"costs: {name}", text) for name, text in plan.cost_model.provenance.items()]
    return render_page("Bucket plan", [section], facts=facts)
