"""``edgecompile plan``: the buckets that are worth building, and those that other rules choose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import (
    backend_options,
    file_option,
    target_option,
    untested_torch_option,
)
from edgecompile.cli.options.groups import GroupedOptions
from edgecompile.cli.options.model import model_options
from edgecompile.cli.options.plan import plan_options
from edgecompile.cli.options.traffic_options import TrafficOptions, traffic_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from edgecompile.models.options import LoadOptions
    from edgecompile.pipeline.result import PlanResult
    from edgecompile.planning.request import PlanRequest

_EPILOG = """\b
Examples:
  edgecompile plan lengths.json --model ./minilm --report plan.html
  edgecompile plan lengths.csv --cost-points costs.csv --max-buckets 6 --json
  edgecompile plan --from-stats stats.json --model ./minilm --work-dir minilm.work
  edgecompile plan lengths.json --model ./minilm --calibration-bundle calibration.ecb --precision int8
  edgecompile plan lengths.json --model ./minilm --calibration device.json --precision int8
"""


class _Command(GroupedOptions, Command):
    """Its options are many, so the help groups them."""


@click.command("plan", cls=_Command, epilog=_EPILOG, short_help="Choose the buckets to build.")
@click.argument("file", metavar="[LENGTHS]", type=click.Path(allow_dash=True), required=False)
@traffic_options
@click.option("--model", metavar="MODEL", help="Measure the costs on this model.")
@file_option(
    "--cost-points",
    help="Take the costs from length,exact_ms,pad_ms rows instead of a model. A further column, such as "
    "batch, gives costs over two axes.",
)
@target_option
@plan_options(backend_options("tensorrt", "triton", "both"))
@model_options
@file_option(
    "--work-dir",
    "-w",
    metavar="DIR",
    help="Read lengths.json and leave plan.json here, for the stages that follow.",
)
@file_option("--output", "-o", help="Write the plan as JSON.")
@file_option("--report", help="Write a page with the histogram, the cost curve and the comparison.")
@file_option(
    "--calibration-bundle",
    metavar="NAME.ecb",
    help="Write a bundle of a few programs for the device to time (bench --calibrate), and make no plan.",
)
@untested_torch_option
def command(
    session: Session,
    /,
    file: str | None,
    traffic: TrafficOptions,
    model: str | None,
    cost_points: Path | None,
    target: str,
    plan: dict[str, Any],
    load: LoadOptions,
    work_dir: Path | None,
    output: Path | None,
    report: Path | None,
    calibration_bundle: Path | None,
) -> None:
    """Choose the buckets of least expected cost for the lengths of the traffic.

    The costs are measured on a model here or by the device, or read from a file; where this
    machine can't run the target's code, they are modelled. The plan says which. The table
    compares the plan with the usual rules, by the same costs on the same lengths.
    """
    if (model is None) == (cost_points is None):
        raise click.UsageError("Give either --model MODEL or --cost-points FILE.")
    traffic = traffic.or_file(file)
    if not traffic and work_dir is not None and (work_dir / "lengths.json").exists():
        traffic = replace(traffic, lengths=str(work_dir / "lengths.json"))
    if model is None:
        assert cost_points is not None
        result = _plan_from_costs(plan, load, traffic, cost_points, calibration_bundle, work_dir)
        _write(session, result, model, work_dir, output, report)
        return
    from edgecompile.api.models import read_model_argument
    from edgecompile.api.request import plan_request, requested
    from edgecompile.api.traffic_sources import find_sources
    from edgecompile.pipeline.plan import CALIBRATION_ON_GPU, write_calibration_bundle
    from edgecompile.pipeline.plan import plan as make_plan

    console = session.console
    with requested(
        read_model_argument(model, options=replace(load, batch=None), batch=load.batch),
        find_sources(model, **vars(traffic)),
        plan_request(**plan),
        progress=console,
        target=target,
        work_dir=work_dir,
        without_gpu="" if calibration_bundle is None else CALIBRATION_ON_GPU,
    ) as request:
        if calibration_bundle is None:
            files = [path for path in (output, report) if path is not None]
            result = make_plan(request, console, files=files)
            _write(session, result, model, work_dir, output, report, request.plan)
            return
        built = write_calibration_bundle(request, calibration_bundle, console)
    console.say_notes(built.notes)
    console.say(f"on the device: python3 {built.path.name} bench --calibrate calibration.json")
    session.emit(built.to_json(), lambda: str(built.path))


def _plan_from_costs(
    plan: dict[str, Any],
    load: LoadOptions,
    traffic: TrafficOptions,
    file: Path,
    calibration_bundle: Path | None,
    work_dir: Path | None,
) -> PlanResult:
    from edgecompile.api.request import plan_request
    from edgecompile.buckets.costs.files import read_costs
    from edgecompile.pipeline.plan import plan_from_costs, refuse_model_options

    request = plan_request(**plan)
    refuse_model_options(
        request, load, ["calibration_bundle"] if calibration_bundle is not None else []
    )
    costs = read_costs(file)
    axes = costs.axes if len(costs.axes) > 1 else None
    read = traffic.read(axes=axes, max_length=request.max_length)
    sized = replace(request, lengths=read.lengths, joint=read.joint)
    return plan_from_costs(sized, costs, work_dir)


def _write(
    session: Session,
    result: PlanResult,
    model: str | None,
    work_dir: Path | None,
    output: Path | None,
    report: Path | None,
    request: PlanRequest | None = None,
) -> None:
    from edgecompile.api.plan import Plan
    from edgecompile.cli.terminal.plan_table import (
        buckets_table,
        plan_page,
        plan_table,
        precision_table,
    )
    from edgecompile.files import write_document, write_text

    console, assessment = session.console, result.assessment
    console.say_notes(result.notes)
    if result.choice is not None:
        console.show(precision_table(result.choice))
    document = result.to_json()
    if work_dir is not None:
        console.say(f"wrote {work_dir / 'plan.json'}")
    if output is not None:
        write_document(output, document)
        console.say(f"wrote {output}")
    if report is not None:
        if assessment is None:
            Plan(result.plan).write_report(report)
        else:
            write_text(report, plan_page(assessment, model))
        console.say(f"wrote {report}")
    if assessment is not None:
        session.emit(document, lambda: plan_table(assessment))
    else:  # the model's code decides, no costs
        assert request is not None
        traffic = request.sizes
        console.say_notes(result.plan.notes)
        session.emit(document, lambda: buckets_table(result.plan, traffic))
