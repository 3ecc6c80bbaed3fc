"""Options that say how a MODEL is loaded; every command that takes one shares them."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from edgecompile.cli.options import Decorator, add_options
from edgecompile.cli.options.common import number_option
from edgecompile.models.options import POOLING_MODES
from edgecompile.models.tasks import TASK_NAMES

Span = tuple[int, int]


def _complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _read_span(text: str, whole: str, forms: str) -> Span:
    """N, or LO:HI."""
    low, colon, high = text.partition(":")
    try:
        span = int(low), int(high) if colon else int(low)
    except ValueError:
        raise click.BadParameter(f"'{whole}' is neither {forms}.") from None
    if not 1 <= span[0] <= span[1]:
        raise click.BadParameter(f"LO:HI needs 1 <= LO <= HI, got {text}.")
    return span


def _read_batch(ctx: click.Context, param: click.Parameter, value: str) -> Span:
    return _read_span(value, value, "a number nor LO:HI")


def _read_image_size(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[Span, Span] | None:
    """HxW, N, or with a range in place of a number, as smallest and largest height and width."""
    if value is None:
        return None
    parts = value.lower().split("x")
    spans = [_read_span(part, value, "N, nor HxW, nor LO:HIxLO:HI") for part in parts]
    if len(spans) > 2:
        raise click.BadParameter(f"'{value}' has {len(spans)} sizes, an image has two.")
    return spans[0], spans[-1]


def _load_options(**values: Any) -> Any:
    from edgecompile.models.options import LoadOptions

    return LoadOptions(**values)


model_argument: Decorator = click.argument("model", shell_complete=_complete_model)

#: Makes the argument ``load``.
model_options = add_options(
    "load",
    _load_options,
    click.option(
        "--batch",
        metavar="N|LO:HI",
        callback=_read_batch,
        default="1",
        help="Set the batch size: fixed, or a range.",
    ),
    click.option(
        "--task",
        type=click.Choice(TASK_NAMES),
        help="Compile a folder's model for this task.  [default: what its config.json says]",
    ),
    click.option(
        "--pooling",
        type=click.Choice(POOLING_MODES),
        help="Make one embedding of a text's token embeddings; for folders without a modules.json.",
    ),
    click.option("--normalize", is_flag=True, help="Divide the embedding by its norm."),
    click.option("--softmax", is_flag=True, help="Compile in the softmax behind a classifier."),
    click.option(
        "--token-type-ids/--no-token-type-ids",
        default=None,
        help="Take an input that tells the first text of a pair from the second.  [default: for "
        "question-answering]",
    ),
    click.option(
        "--image-size",
        metavar="N|HxW",
        callback=_read_image_size,
        help="Set the height and width of images; ranges 64:224 make them dynamic.  [default: what "
        "the folder says]",
    ),
    number_option(
        "--max-context",
        least=2,
        help="Limit a prompt and its new tokens together to N; --max-length then bounds one run, "
        "longer prompts take several.  [default: what the model allows, at most 2048]",
    ),
)
