"""``edgecompile compile``: a library for each bucket and variant, each of them judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import (
    cpu_backend_option,
    jobs_option,
    on_option,
    plan_file_option,
    target_option,
    untested_torch_option,
    variants_option,
    work_dir_option,
)
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.backends.compilation import CompiledModel

_EPILOG = """\b
Example:
  edgecompile compile --work-dir minilm.work --target cpu-x86-64
"""


@click.command(
    "compile", cls=Command, epilog=_EPILOG, short_help="Compile and audit the exported programs."
)
@work_dir_option
@plan_file_option
@target_option
@variants_option
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "int8"]),
    help="Set the data type of the linear layers' weights. Default: DIR/precision.json, which plan "
    "leaves.",
)
@cpu_backend_option
@jobs_option
@on_option
@untested_torch_option
def command(
    session: Session,
    work_dir: Path,
    plan_file: Path | None,
    target: str,
    variants: tuple[str, ...],
    precision: str | None,
    backend: str,
    jobs: int | None,
    on: str,
) -> None:
    """Compile the exported programs for every variant of the target.

    The libraries are left in DIR/artifacts. Each is audited: instructions, glibc, libraries and
    symbols that it needs.
    """
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.pipeline.work_files import read_plan
    from edgecompile.planning.request import PlanRequest

    # Before the plan, which a GPU's build doesn't leave.
    BuildRequest(None, target, PlanRequest(None, on=on)).check_stage()
    chosen = read_plan(plan_file or work_dir / "plan.json")
    plan = PlanRequest(None, plan=chosen, precision=precision, backend=backend, jobs=jobs, on=on)
    request = BuildRequest(None, target, plan, work_dir=work_dir)
    from edgecompile.pipeline.single import compile_exports

    compiled = compile_exports(request, variants, session.console)
    session.emit(_document(compiled, target), lambda: _table(compiled))


def _document(compiled: CompiledModel, target: str) -> dict[str, Any]:
    return {
        "target": target,
        "precision": compiled.precision.to_json(),
        "variants": {
            variant.name: {
                "runtime": _library(compiled, variant.name),
                "programs": [
                    {**artifact.to_json(), "library": str(artifact.library)}
                    for artifact in compiled.artifacts[variant.name]
                ],
            }
            for variant in compiled.variants
        },
        "audit": [verdict.to_json() for verdict in compiled.audit],
    }


def _library(compiled: CompiledModel, variant: str) -> str | None:
    """The runtime library of a variant; None of the backend torch."""
    native = compiled.natives.get(variant)
    return None if native is None else str(native.path)


def _table(compiled: CompiledModel) -> RenderableType:
    from edgecompile.cli.terminal.tables import table
    from edgecompile.units import format_bytes, format_duration

    verdicts = {(verdict.variant, verdict.library): verdict for verdict in compiled.audit}
    rows = []
    for variant in compiled.variants:
        native = compiled.natives.get(variant.name)
        libraries = [] if native is None else [(native.path, 0.0)]
        libraries += [
            (artifact.library, sum(artifact.seconds.values()))
            for artifact in compiled.artifacts[variant.name]
        ]
        for library, seconds in libraries:
            verdict = verdicts[variant.name, library.name]
            rows.append(
                (
                    variant.name,
                    library.name,
                    format_bytes(library.stat().st_size),
                    format_duration(seconds) if seconds else "–",
                    verdict.glibc or "–",
                    "fit" if verdict.ok else "unfit",
                )
            )
    return table(("variant", "library", "size", "time", "glibc", "audit"), rows, left=2)
