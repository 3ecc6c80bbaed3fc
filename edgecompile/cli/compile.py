"""``edgecompile compile``: a library for each bucket and variant, each of them judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import (
    check_runtime_options,
    jobs_option,
    runtime_option,
    target_option,
)
from edgecompile.cli.stages import (
    find_exports,
    plan_option,
    read_plan,
    work_dir_option,
)
from edgecompile.cli.terminal.session import Command, Session, output_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.backends.compilation import CompiledModel
    from edgecompile.precision import Precision

__all__ = ["command"]

_EPILOG = """\b
Example:
  edgecompile compile --work-dir minilm.work --target cpu-x86-64
"""


@click.command(
    "compile", cls=Command, epilog=_EPILOG, short_help="Compile what was exported, and audit it."
)
@work_dir_option
@plan_option
@target_option
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="Build only this variant of the target.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "int8"]),
    help="Data type of the linear layers' weights. Default: DIR/precision.json, which plan leaves.",
)
@runtime_option
@jobs_option
@output_options
@click.pass_obj
def command(
    session: Session,
    work_dir: Path,
    plan_file: Path | None,
    target: str,
    variants: tuple[str, ...],
    precision: str | None,
    runtime: str,
    jobs: int | None,
) -> None:
    """Compile the exported programs for every variant of the target.

    The libraries are left in DIR/artifacts. Each is audited: instructions, glibc, libraries and
    symbols that it needs.
    """
    from edgecompile.targets.profile import load_target

    profile = load_target(target)
    if profile.gpu is not None:
        raise click.UsageError(
            f"{target} has a GPU, which is built for in one go: edgecompile build --target {target}."
        )
    chosen = [profile.variant(name) for name in variants] or None
    plan = read_plan(plan_file, work_dir)
    chosen_precision = _precision(precision, work_dir)
    check_runtime_options(runtime, chosen_precision.label, gpu=False)
    console = session.console
    folders = find_exports(plan, work_dir)
    with console.step("load the exported programs"):
        from edgecompile.backends.compilation import compile_buckets
        from edgecompile.export.program import ExportedModel

        exported = [ExportedModel.load(folder) for folder in folders]
    with console.step("compile") as step:
        compiled = compile_buckets(
            exported,
            plan.buckets,
            profile,
            work_dir / "artifacts",
            keys=[folder.name for folder in folders],
            variants=chosen,
            precision=chosen_precision,
            runtime=runtime,
            jobs=jobs,
            step=step,
        )
    session.emit(_document(compiled, target), lambda: _table(compiled))


def _precision(given: str | None, work_dir: Path) -> Precision:
    """What was asked for, left for the stages that follow; or what was left by those before."""
    from edgecompile.errors import CompileError
    from edgecompile.narrowing.files import load_precision, save_precision
    from edgecompile.precision import Precision

    if given is None:
        return load_precision(work_dir)
    try:
        left = load_precision(work_dir)
    except CompileError:
        left = None
    if left is not None and left.label == given:
        return left  # with its weights' rounding
    precision = Precision(given)
    save_precision(work_dir, precision)
    return precision


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
    """The runtime library of a variant; None where torch is the runtime."""
    native = compiled.natives.get(variant)
    return None if native is None else str(native.path)


def _table(compiled: CompiledModel) -> RenderableType:
    from edgecompile.cli.terminal.console import table
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
