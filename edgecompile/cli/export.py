"""``edgecompile export``: one exported program for each bucket of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import plan_file_option, untested_torch_option, work_dir_option
from edgecompile.cli.options.model import model_argument, model_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.models.options import LoadOptions
    from edgecompile.pipeline.single import ExportedPlan

_EPILOG = """\b
Example:
  edgecompile plan lengths.json --model ./minilm --work-dir minilm.work
  edgecompile export ./minilm --work-dir minilm.work
"""


@click.command("export", cls=Command, epilog=_EPILOG, short_help="Export the model's buckets.")
@model_argument
@work_dir_option
@plan_file_option
@model_options
@untested_torch_option
def command(
    session: Session, model: str, work_dir: Path, plan_file: Path | None, load: LoadOptions
) -> None:
    """Export MODEL for each bucket of the plan, and check each program against eager.

    The programs are left in DIR/exported. What is there already for the same model and bucket is
    used again.
    """
    from edgecompile.loaders.load import check_model
    from edgecompile.pipeline.request import BuildRequest
    from edgecompile.pipeline.work_files import read_plan
    from edgecompile.planning.request import PlanRequest

    check_model(model, load)
    plan = PlanRequest(None, plan=read_plan(plan_file or work_dir / "plan.json"))
    request = BuildRequest(model, plan=plan, load=load, work_dir=work_dir)
    from edgecompile.pipeline.single import export_plan

    exported = export_plan(request, session.console)
    session.console.say_notes(exported.notes)
    rows = _rows(exported)
    session.emit({"model": exported.model, "programs": rows}, lambda: _table(rows))


def _rows(exported: ExportedPlan) -> list[dict[str, Any]]:
    programs = zip(exported.plan.buckets, exported.programs, exported.folders, strict=True)
    return [
        {
            "bucket": index,
            "mode": bucket.mode,
            "ranges": {axis: list(span) for axis, span in program.ranges.items()},
            "strategy": program.strategy,
            "max_error": program.max_error,
            "checked": len(program.checked),
            "path": str(folder),
            "notes": list(program.notes),
        }
        for index, (bucket, program, folder) in enumerate(programs)
    ]


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.tables import stack, table
    from edgecompile.units import sentence

    cells = [
        (
            f"{row['bucket']}",
            row["mode"],
            ", ".join(f"{axis} {lo}–{hi}" for axis, (lo, hi) in row["ranges"].items()),
            row["strategy"],
            f"{row['checked']}",
            f"{row['max_error']:.1e}",
        )
        for row in rows
    ]
    columns = ("bucket", "mode", "sizes", "exported as", "checks", "largest error")
    notes = list(dict.fromkeys(note for row in rows for note in row["notes"]))
    drawn = table(columns, cells, left=4)
    return (
        stack(drawn, Text("\n".join(f"· {sentence(note)}" for note in notes))) if notes else drawn
    )
