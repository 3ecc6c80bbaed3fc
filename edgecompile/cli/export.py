"""``edgecompile export``: one exported program for each bucket of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options.common import batch_option, model_argument
from edgecompile.cli.options.model import model_options
from edgecompile.cli.stages import load_for_plan, plan_option, read_plan, work_dir_option
from edgecompile.cli.terminal.session import Command, Session, output_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.models.loaded import LoadOptions

__all__ = ["command"]

_EPILOG = """\b
Example:
  edgecompile plan lengths.json --model ./minilm --work-dir minilm.work
  edgecompile export ./minilm --work-dir minilm.work
"""


@click.command("export", cls=Command, epilog=_EPILOG, short_help="Export the model's buckets.")
@model_argument
@work_dir_option
@plan_option
@batch_option
@model_options
@output_options
@click.pass_obj
def command(
    session: Session,
    model: str,
    work_dir: Path,
    plan_file: Path | None,
    batch: tuple[int, int],
    load: LoadOptions,
) -> None:
    """Export MODEL for each bucket of the plan, and check each program against eager.

    The programs are left in DIR/exported. What is there already for the same model and bucket is
    used again.
    """
    from edgecompile.loaders.load import check_model

    check_model(model, load)
    plan = read_plan(plan_file, work_dir)

    from edgecompile.export.store import ExportStore, export_buckets
    from edgecompile.planning.request import with_padding

    console = session.console
    loaded = load_for_plan(console, model, load, batch, plan.max_length)
    with console.step("export") as step:
        with_padding(plan, loaded)  # what can't be padded is refused before it is exported
        exports = ExportStore(loaded, work_dir / "exported")
        exported = export_buckets(exports, plan.buckets, step=step)
    rows: list[dict[str, Any]] = [
        {
            "bucket": index,
            "mode": bucket.mode,
            "ranges": {axis: list(span) for axis, span in program.ranges.items()},
            "strategy": program.strategy,
            "max_error": program.max_error,
            "checked": len(program.checked),
            "path": str(exports.folder / exports.key(bucket)),
            "notes": list(program.notes),
        }
        for index, (bucket, program) in enumerate(zip(plan.buckets, exported, strict=True))
    ]
    session.emit({"model": loaded.name, "programs": rows}, lambda: _table(rows))


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.console import stack, table
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
