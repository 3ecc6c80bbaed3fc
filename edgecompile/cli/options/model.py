"""Options that say how a MODEL is loaded; every command that takes one shares them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["model_options", "tokenizer_option"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


tokenizer_option: Callable[[_Decorated], _Decorated] = click.option(
    "--no-tokenizer",
    "keep_tokenizer",
    flag_value=False,
    default=True,
    is_flag=True,
    help="Leave the model's tokenizer.json out: the device is given token ids.",
)


def _read_image_size(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """HxW, N, or with a range in place of a number, as smallest and largest height and width."""
    if value is None:
        return None
    spans = []
    for part in value.lower().split("x"):
        low, colon, high = part.partition(":")
        try:
            span = int(low), int(high) if colon else int(low)
        except ValueError:
            raise click.BadParameter(f"'{value}' isn't N, HxW or LO:HIxLO:HI.") from None
        if not 1 <= span[0] <= span[1]:
            raise click.BadParameter(f"LO:HI needs 1 <= LO <= HI, got {part}.")
        spans.append(span)
    if len(spans) > 2:
        raise click.BadParameter(f"'{value}' has {len(spans)} sizes, an image has two.")
    return spans[0], spans[-1]


def model_options(function: _Decorated) -> _Decorated:
    """Adds --task and what goes with it; the command gets them as one argument ``load``."""

    @functools.wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        from edgecompile.models.loaded import LoadOptions

        load = LoadOptions(
            task=values.pop("task"),
            pooling=values.pop("pooling"),
            normalize=values.pop("normalize"),
            softmax=values.pop("softmax"),
            token_type_ids=values.pop("token_type_ids"),
            image_size=values.pop("image_size"),
            max_context=values.pop("max_context"),
        )
        return function(*args, load=load, **values)

    from edgecompile.models.options import POOLING_MODES
    from edgecompile.models.tasks import TASK_NAMES

    for option in reversed(
        (
            click.option(
                "--task",
                type=click.Choice(TASK_NAMES),
                help="What a folder's model is compiled for.  [default: what its config.json says]",
            ),
            click.option(
                "--pooling",
                type=click.Choice(POOLING_MODES),
                help="Make one embedding of a text's token embeddings; for folders without a "
                "modules.json.",
            ),
            click.option("--normalize", is_flag=True, help="Divide the embedding by its length."),
            click.option(
                "--softmax", is_flag=True, help="Compile in the softmax behind a classifier."
            ),
            click.option(
                "--token-type-ids/--no-token-type-ids",
                default=None,
                help="Whether there is an input that tells the first text of a pair from the "
                "second.  [default: for question-answering]",
            ),
            click.option(
                "--image-size",
                metavar="N|HxW",
                callback=_read_image_size,
                help="Height and width of images; ranges 64:224 make them dynamic.  [default: "
                "what the folder says]",
            ),
            click.option(
                "--max-context",
                type=click.IntRange(min=2),
                metavar="N",
                help="Tokens that a prompt and what is generated may have together; --max-length "
                "then bounds one run, longer prompts take several.  [default: what the model "
                "allows, at most 2048]",
            ),
        )
    ):
        command = option(command)
    return command  # type: ignore[return-value]
