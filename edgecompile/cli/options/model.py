"""Options that say how a MODEL is loaded; every command that takes one shares them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from edgecompile.cli.options import Decorator, add_options
from edgecompile.cli.options.common import number_option
from edgecompile.models.options import POOLING_MODES, SPLADE
from edgecompile.models.tasks import TASK_NAMES


class Span(NamedTuple):
    """A smallest and a largest number, printed as they may be typed."""

    lo: int
    hi: int

    def __str__(self) -> str:
        return str(self.lo) if self.lo == self.hi else f"{self.lo}..{self.hi}"


class Pairs(dict[str, Any]):
    """Values by name, printed as they may be typed."""

    def __str__(self) -> str:
        return " ".join(f"{name}={self._text(value)}" for name, value in self.items())

    @staticmethod
    def _text(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _read_span(text: str, whole: str, forms: str) -> Span:
    """N, or LO..HI as output prints it, or LO:HI."""
    low, mark, high = text.partition(".." if ".." in text else ":")
    try:
        span = Span(int(low), int(high) if mark else int(low))
    except ValueError:
        raise click.BadParameter(f"'{whole}' is neither {forms}.") from None
    if not 1 <= span.lo <= span.hi:
        raise click.BadParameter(f"LO..HI needs 1 <= LO <= HI, got {text}.")
    return span


def _read_batch(ctx: click.Context, param: click.Parameter, value: str) -> Span:
    return _read_span(value, value, "a number nor LO..HI")


def _read_image_size(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[Span, Span] | None:
    """HxW, N, or with a range in place of a number, as smallest and largest height and width."""
    if value is None:
        return None
    parts = value.lower().split("x")
    spans = [_read_span(part, value, "N, nor HxW, nor LO..HIxLO..HI") for part in parts]
    if len(spans) > 2:
        raise click.BadParameter(f"'{value}' has {len(spans)} sizes, an image has two.")
    return spans[0], spans[-1]


def _read_pairs(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...], read: Any = str
) -> Pairs:
    pairs = Pairs()
    for value in values:
        name, _, given = value.partition("=")
        if not name or not given:
            raise click.BadParameter(f"'{value}' isn't {param.metavar}.")
        if name in pairs:
            raise click.BadParameter(f"'{name}' is given twice.")
        pairs[name] = read(given)
    return pairs


def _read_number(text: str) -> float:
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise click.BadParameter(f"'{text}' is no number.") from None


def _read_sizes(text: str) -> tuple[int | str, ...]:
    sizes = [size.strip() for size in text.split(",")]
    return tuple(int(size) if size.isdecimal() else size for size in sizes)


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
        metavar="N|LO..HI",
        callback=_read_batch,
        default="1",
        help="Set the batch size: fixed, or a range.",
    ),
    click.option(
        "--task",
        type=click.Choice(TASK_NAMES),
        help="Compile a folder's model for this task.  [default: from its config.json]",
    ),
    click.option(
        "--pooling",
        type=click.Choice((*POOLING_MODES, SPLADE)),
        help="Pool a text's token embeddings into one embedding; for folders without a modules.json.",
    ),
    click.option("--normalize", is_flag=True, help="Divide the embedding by its norm."),
    click.option("--softmax", is_flag=True, help="Include the softmax after a classifier."),
    click.option(
        "--token-type-ids/--no-token-type-ids",
        default=None,
        help="Add the input that tells the first text of a pair from the second.  [default: for "
        "question-answering]",
    ),
    click.option(
        "--image-size",
        metavar="N|HxW",
        callback=_read_image_size,
        help="Set the height and width of images; a range such as 64..224 makes them dynamic.  [default: "
        "from the folder]",
    ),
    number_option(
        "--max-context",
        least=2,
        help="Limit a prompt and its new tokens together to N. --max-length then limits one run, and "
        "longer prompts take several runs.  [default: the model's limit, at most 2048]",
    ),
    click.option(
        "--cache-precision",
        type=click.Choice(["fp32", "bf16", "int8"]),
        help="Set the data type of a language model's keys and values in its caches: bf16 halves them, int8 takes "
        "about a quarter. States of a fixed size stay fp32.  [default: fp32]",
    ),
    number_option(
        "--lookup",
        least=2,
        help="Add a program that checks up to N tokens (at most 8) in one run, for `generate --lookup`, which guesses "
        "them from the text so far.  [default: none]",
    ),
    click.option(
        "--fixed-input",
        metavar="INPUT=NUMBER",
        callback=functools.partial(_read_pairs, read=_read_number),
        multiple=True,
        help="Make an input of an ONNX file a constant, such as sr=16000. Repeat for others.",
    ),
    click.option(
        "--input-shape",
        metavar="INPUT=SIZE,...",
        callback=functools.partial(_read_pairs, read=_read_sizes),
        multiple=True,
        help="Set the sizes of an ONNX file's input that the file leaves open: numbers, or names of axes, such as "
        "frames=1,length,80. Repeat for others.",
    ),
    click.option(
        "--state",
        metavar="INPUT=OUTPUT",
        callback=_read_pairs,
        multiple=True,
        help="Let an ONNX file's output be its input in the next run of a stream. Repeat for others.",
    ),
)
