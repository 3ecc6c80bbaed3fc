"""``edgecompile explain``: why a model is refused or slow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import max_length_option, target_option, untested_torch_option
from edgecompile.cli.options.model import model_argument, model_options
from edgecompile.cli.terminal.session import Command, Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.explanation.report import Explanation
    from edgecompile.models.options import LoadOptions

_EPILOG = """\b
Examples:
  edgecompile explain ./minilm
  edgecompile explain model.py:make --max-length 256 --output why.html
  edgecompile explain ./minilm --target raspberry-pi-5 --json
  edgecompile explain model.py:make --every --no-code
"""


@click.command(
    "explain", cls=Command, epilog=_EPILOG, short_help="Say why a model is refused or slow."
)
@model_argument
@target_option
@max_length_option
@model_options
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "int8"]),
    default="fp32",
    help="Set the data type of the linear layers' weights on a CPU; a GPU's figures are in fp32.",
)
@click.option(
    "--every",
    is_flag=True,
    help="Try every export strategy, and look for graph breaks, even if one was accepted.",
)
@click.option(
    "--no-code",
    is_flag=True,
    help="Generate no code: quicker, but reports only our own kernels, and none as missing.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write an HTML page.",
)
@untested_torch_option
def command(
    session: Session,
    model: str,
    target: str,
    max_length: int | None,
    load: LoadOptions,
    precision: str,
    every: bool,
    no_code: bool,
    output: Path | None,
) -> None:
    """Say why MODEL is refused or slow, and what can be done about it.

    Tries the export strategies, and reports the lines of the model's code that make each one fail.
    Reports the model's kernels and the missing ones, the effect of padding on its outputs, and
    the FLOPs and bytes of a run by length and by module. Continues after failures; exits with 0 if
    it could report anything.
    """
    from edgecompile.api.explain import explain
    from edgecompile.cli.terminal.build_view import show_options

    console = session.console
    show_options(console)
    explanation = explain(
        model,
        target=target,
        batch=load.batch or 1,
        max_length=max_length,
        precision=precision,
        every=every,
        code=not no_code,
        load_options=replace(load, batch=None),
        progress=console,
    )
    if output is not None:
        explanation.write_report(output)
    session.emit(explanation.to_json(), lambda: _table(explanation.details))
    if output is not None:
        console.say(f"wrote {output}")


def _table(explanation: Explanation) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.tables import heading, stack, table
    from edgecompile.explanation.view import explanation_tables
    from edgecompile.units import sentence

    shown: list[RenderableType] = [heading(f"{explanation.model} {explanation.summary}")]
    lines = []
    for item in explanation.causes:
        where = f" ({item.place.short})" if item.place is not None else ""
        cure = f"\n{item.cure}" if item.cure else ""
        lines.append((item.kind, f"{item.text}{where}{cure}"))
    if lines:
        shown.append(table(("", ""), lines, left=2))
    for part in explanation_tables(explanation):
        shown.append(heading(part.title))
        shown.append(table(part.columns, part.rows, left=part.words))
        if part.caption:
            shown.append(Text(part.caption, "dim"))
    notes = [*explanation.notes]
    if explanation.export.padding is not None:
        notes.insert(0, f"padding: {explanation.export.padding}")
    if notes:
        shown.append(Text("\n".join(f"· {sentence(note)}" for note in notes)))
    return stack(*shown)
