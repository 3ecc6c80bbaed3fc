"""``edgecompile explain``: why a model is refused or slow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options.common import (
    batch_option,
    max_length_option,
    model_argument,
    target_option,
)
from edgecompile.cli.options.model import model_options
from edgecompile.cli.options.plan import read_sizes, traffic_options
from edgecompile.cli.terminal.session import Command, Session, output_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgecompile.explanation.report import Explanation
    from edgecompile.explanation.request import ExplainRequest
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.models.loaded import LoadOptions
    from edgecompile.targets.profile import TargetProfile

__all__ = ["command"]

_EPILOG = """\b
Examples:
  edgecompile explain ./minilm --texts queries.txt
  edgecompile explain model.py:make --max-length 256 --output why.html
  edgecompile explain ./minilm --lengths lengths.json --target raspberry-pi-5 --json
  edgecompile explain model.py:make --compare 16:17 --every --no-code
"""


def _read_pair(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    first, _, second = value.partition(":")
    try:
        pair = int(first), int(second)
    except ValueError:
        raise click.BadParameter(f"'{value}' isn't A:B, two lengths.") from None
    if not 1 <= pair[0] != pair[1] >= 1:
        raise click.BadParameter(f"'{value}' isn't two different lengths from 1 up.")
    return min(pair), max(pair)


@click.command(
    "explain", cls=Command, epilog=_EPILOG, short_help="Say why a model is refused or slow."
)
@model_argument
@target_option
@traffic_options
@max_length_option
@batch_option
@model_options
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "int8"]),
    default="fp32",
    show_default=True,
    help="Data type of the linear layers' weights on a CPU; a GPU's figures are in fp32.",
)
@click.option(
    "--compare",
    metavar="A:B",
    callback=_read_pair,
    help="Two lengths whose graphs to compare.  [default: one at which an export was wrong, or the "
    "double of the traced one]",
)
@click.option(
    "--every",
    is_flag=True,
    help="Try every way to export, and look for graph breaks, though one was accepted.",
)
@click.option(
    "--no-code",
    is_flag=True,
    help="Generate no code: quicker, but only our own kernels are then known, and none is missing.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write an HTML page with plots.",
)
@output_options
@click.pass_obj
def command(
    session: Session,
    model: str,
    target: str,
    lengths: str | None,
    texts: str | None,
    tokenizer: Path | None,
    stats: tuple[Path, ...],
    max_length: int | None,
    batch: tuple[int, int],
    load: LoadOptions,
    precision: str,
    compare: tuple[int, int] | None,
    every: bool,
    no_code: bool,
    output: Path | None,
) -> None:
    """Say why MODEL is refused or slow, and what can be done about it.

    Tries every export method and reports the lines of the model's code that make each one fail, the
    kernels that its operators become and those that are missing, work, bytes and memory for each
    length, and what in its graph depends on the length. With lengths or texts of real inputs, the
    figures are for the four padded buckets that cost them least by the target's profile. Continues
    after failures; exits with 0 if it could report anything.
    """
    from edgecompile.loaders.load import check_model
    from edgecompile.targets.profile import load_target

    check_model(model, load)

    profile = load_target(target)
    if profile.gpu is not None and precision != "fp32":
        raise click.UsageError(f"--precision {precision} is for CPUs; {target} has a GPU.")

    from edgecompile.explanation.request import ExplainRequest
    from edgecompile.precision import Precision

    request = ExplainRequest(
        target=profile,
        precision=Precision(precision),
        max_length=max_length,
        compare=compare,
        code=not no_code,
        every=every,
    )
    traffic = None
    if stats or any(item is not None for item in (lengths, texts, tokenizer)):
        traffic, _ = read_sizes(lengths, texts, tokenizer, model, stats, max_length=max_length)
    found = _explain(session, model, load, batch, request, traffic)
    if output is not None:
        _write_page(output, found, profile)
    session.emit(found.to_json(), lambda: _table(found))
    if output is not None:
        session.console.say(f"wrote {output}")


def _explain(
    session: Session,
    model: str,
    load: LoadOptions,
    batch: tuple[int, int],
    request: ExplainRequest,
    traffic: LengthDistribution | None,
) -> Explanation:
    from dataclasses import replace

    from edgecompile.errors import ModelError
    from edgecompile.explanation.explain import explain_load_failure, explain_model
    from edgecompile.loaders.load import load_model

    console = session.console
    sizes = {} if batch == (1, 1) else {"batch": f"{batch[0]}:{batch[1]}"}
    console.options({"model": model, "target": request.target.name, **sizes})
    try:
        with console.step("load the model"):
            loaded = load_model(model, load, batch=batch)
    except ModelError as error:
        return explain_load_failure(model, request, error)
    if traffic is not None:
        from edgecompile.explanation.buckets import plan_roughly

        buckets = plan_roughly(traffic, loaded, request.target, request.max_length)
        request = replace(request, buckets=buckets)
    return explain_model(loaded, request, console)


def _write_page(output: Path, found: Explanation, profile: TargetProfile) -> None:
    import torch

    from edgecompile import __version__
    from edgecompile.cli.terminal.output import write_text
    from edgecompile.explanation.section import explain_page
    from edgecompile.explanation.work import limits_of

    facts = [("edgecompile", __version__), ("torch", str(torch.__version__))]
    facts.append(("target", f"{profile.name}: {profile.description}"))
    page = explain_page(found, limits_of(profile, found.precision), facts=facts)
    write_text(output, page)


def _table(found: Explanation) -> RenderableType:
    from rich.text import Text

    from edgecompile.cli.terminal.console import heading, stack, table
    from edgecompile.explanation.view import explanation_tables
    from edgecompile.units import sentence

    shown: list[RenderableType] = [heading(f"{found.model} {found.summary}")]
    lines = []
    for item in found.findings:
        where = f" ({item.place.short})" if item.place is not None else ""
        cure = f"\n{item.cure}" if item.cure else ""
        lines.append((item.kind, f"{item.text}{where}{cure}"))
    if lines:
        causes = table(("", ""), lines, left=2)
        causes.show_header = False
        shown.append(causes)
    for part in explanation_tables(found):
        shown.append(heading(part.title))
        shown.append(table(part.columns, part.rows, left=part.words))
        if part.caption:
            shown.append(Text(part.caption, "dim"))
    notes = [*found.notes]
    if found.padding is not None:
        notes.insert(0, f"padding: {found.padding}")
    if notes:
        shown.append(Text("\n".join(f"· {sentence(note)}" for note in notes)))
    return stack(*shown)
