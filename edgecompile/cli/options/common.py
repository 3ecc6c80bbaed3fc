"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.models.samples import SampleTexts

__all__ = [
    "DEFAULT_TARGET",
    "batch_option",
    "check_max_error",
    "check_precision",
    "check_traffic_options",
    "complete_target",
    "backend_option",
    "jetpack_option",
    "jobs_option",
    "lengths_options",
    "max_length_option",
    "assume_option",
    "mode_option",
    "model_argument",
    "precision_options",
    "sample_texts",
    "read_traffic",
    "seed_option",
    "target_option",
    "threads_option",
]

DEFAULT_TARGET = "cpu-x86-64"

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])
_Decorator = Callable[[_Decorated], _Decorated]


def _read_batch(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    low, colon, high = value.partition(":")
    try:
        lo = int(low)
        hi = int(high) if colon else lo
    except ValueError:
        raise click.BadParameter(f"'{value}' is neither a number nor LO:HI.") from None
    if not 1 <= lo <= hi:
        raise click.BadParameter(f"LO:HI needs 1 <= LO <= HI, got {value}.")
    return lo, hi


def complete_target(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names of targets that begin so, for the shell."""
    from edgecompile.targets.profile import list_targets

    return [CompletionItem(name) for name in list_targets() if name.startswith(incomplete)]


def _complete_jetpack(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from edgecompile.targets.jetpack import list_jetpacks

    return [CompletionItem(name) for name in list_jetpacks() if name.startswith(incomplete)]


def _complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


model_argument: _Decorator[Any] = click.argument("model", shell_complete=_complete_model)

target_option: _Decorator[Any] = click.option(
    "--target",
    "-t",
    default=DEFAULT_TARGET,
    show_default=True,
    metavar="NAME",
    shell_complete=complete_target,
    help="Device to build for: a name from 'edgecompile targets list', or a TOML file.",
)

batch_option: _Decorator[Any] = click.option(
    "--batch",
    metavar="N|LO:HI",
    callback=_read_batch,
    default="1",
    show_default=True,
    help="Batch size: fixed, or a range.",
)

mode_option: _Decorator[Any] = click.option(
    "--mode",
    type=click.Choice(["auto", "exact", "pad"]),
    default="auto",
    show_default=True,
    help="Programs of dynamic length (exact), of fixed length with padded inputs (pad), or what "
    "suits the model.",
)

assume_option: _Decorator[Any] = click.option(
    "--assume-paddable",
    is_flag=True,
    help="Pad the model where padding changes nothing in trials, though nothing proves that it can't. "
    "The bundle says so.",
)

max_length_option: _Decorator[Any] = click.option(
    "--max-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Longest length to serve. Default: the model's limit, or the longest seen.",
)


def precision_options(function: _Decorated) -> _Decorated:
    """Adds --precision and --max-error."""
    precision = click.option(
        "--precision",
        type=click.Choice(["fp32", "fp16", "bf16", "int8", "auto"]),
        help="CPU: data type of the linear layers' weights (fp32, bf16, int8; auto picks the "
        "fastest on this machine within --max-error). GPU: compute type (fp32, fp16, int8).  "
        "[default: fp32 on CPUs, fp16 on GPUs]",
    )
    max_error = click.option(
        "--max-error",
        callback=_read_share,
        metavar="SHARE",
        help="Largest difference from eager that --precision auto may cause, as a share of "
        "an output's largest magnitude, 0.01 or 1%.  [default: 2%]",
    )
    return precision(max_error(function))


def check_max_error(precision: str | None, max_error: float | None) -> None:
    """Raises click.UsageError where --max-error says nothing."""
    if max_error is not None and precision != "auto":
        raise click.UsageError("--max-error goes with --precision auto.")


def check_precision(precision: str | None, *, gpu: bool, target: str) -> None:
    """Raises click.UsageError for a precision that the target's backend hasn't got."""
    from edgecompile.precision import PRECISIONS
    from edgecompile.targets.gpu import GPU_PRECISIONS

    known = GPU_PRECISIONS if gpu else (*PRECISIONS, "auto")
    if precision is not None and precision not in known:
        choices = f"{', '.join(known[:-1])} or {known[-1]}"
        raise click.UsageError(
            f"Target {target} does not support --precision {precision}. Choose {choices}."
        )


def check_runtime_options(runtime: str, precision: str | None, *, gpu: bool) -> None:
    """Raises click.UsageError for what doesn't go with --runtime torch."""
    if runtime == "torch" and gpu:
        raise click.UsageError("--runtime torch is for CPUs, and this target has a GPU.")
    if runtime == "torch" and precision not in (None, "fp32"):
        raise click.UsageError(
            f"--runtime torch does not support --precision {precision}. Choose fp32."
        )


backend_option: _Decorator[Any] = click.option(
    "--backend",
    type=click.Choice(["auto", "torch-tensorrt"]),
    default="auto",
    show_default=True,
    help="What builds a GPU's engine. auto: the device, from the bundle's ONNX. torch-tensorrt: this "
    "machine, for its own GPU; the bundle holds the ONNX for other machines as well.",
)

runtime_option: _Decorator[Any] = click.option(
    "--runtime",
    type=click.Choice(["native", "torch"]),
    default="native",
    show_default=True,
    help="What runs the programs on a CPU. native: the library in the bundle. torch: for models "
    "with kernels that this library lacks, on hosts that have the same version of torch.",
)

jetpack_option: _Decorator[Any] = click.option(
    "--jetpack",
    metavar="RELEASE",
    shell_complete=_complete_jetpack,
    help="JetPack release of the Jetson: 6.2 or 7.2.  [default: the first that the target names]",
)


def _read_share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    number = value.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"'{value}' is neither a number nor a percentage.") from None
    if not 0 < share <= 1:
        raise click.BadParameter(f"'{value}' isn't above 0 and at most 1.")
    return share


threads_option: _Decorator[Any] = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads to measure with. Default: every CPU that the process may use.",
)

jobs_option: _Decorator[Any] = click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Programs to compile at once. Default: one for each CPU.",
)

seed_option: _Decorator[Any] = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Random seed.",
)


def lengths_options(function: _Decorated) -> _Decorated:
    """Adds --lengths, --texts and --tokenizer."""
    for option in (
        click.option(
            "--tokenizer",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="tokenizer.json for --texts. Default: the model's own.",
        ),
        click.option(
            "--texts",
            type=click.Path(allow_dash=True),
            metavar="FILE",
            help="File with one typical text per line; the lengths of the texts in tokens are "
            "used. - reads standard input.",
        ),
        click.option(
            "--lengths",
            type=click.Path(allow_dash=True),
            metavar="FILE",
            help="Lengths of real inputs: .txt, .csv (length or length,count), .jsonl, .json "
            "histogram or .npy; - reads standard input.",
        ),
    ):
        function = option(function)
    return function


def check_traffic_options(
    lengths: str | None, texts: str | None, tokenizer: Path | None, model: str | None
) -> None:
    """Raises click.UsageError unless one of --lengths and --texts is given, with what it needs."""
    if lengths is not None and texts is not None:
        raise click.UsageError("--lengths and --texts exclude each other.")
    if lengths is None and texts is None:
        raise click.UsageError(
            "The lengths of the traffic are missing: give --lengths FILE or --texts FILE."
        )
    if texts is None and tokenizer is not None:
        raise click.UsageError("--tokenizer goes with --texts.")
    if texts is not None and tokenizer is None and model is None:
        raise click.UsageError("--texts needs --tokenizer FILE or --model MODEL.")


def read_traffic(
    lengths: str | None, texts: str | None, tokenizer: Path | None, model: str | None
) -> LengthDistribution:
    """The distribution that --lengths or --texts names.

    Raises:
        click.UsageError: see :func:`check_traffic_options`.
        LengthsError, ModelError: see ``read_lengths`` and ``read_text_lengths``.
    """
    check_traffic_options(lengths, texts, tokenizer, model)
    if lengths is not None:
        from edgecompile.lengths.distribution import read_lengths

        return read_lengths(lengths)
    from edgecompile.lengths.texts import read_text_lengths

    return read_text_lengths(texts or "", tokenizer or _model_tokenizer(model or ""))


def sample_texts(
    texts: str | None, tokenizer: Path | None, model: str | None
) -> SampleTexts | None:
    """The texts of --texts as inputs to run; None without a file that can be read again."""
    if texts is None or texts == "-":
        return None
    from edgecompile.models.samples import SampleTexts

    return SampleTexts(Path(texts), tokenizer or _model_tokenizer(model or ""))


def _model_tokenizer(model: str) -> Path:
    """The tokenizer of a model folder, or of the transformer in a pipeline's folder."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        from edgecompile.loaders.kinds import check_form

        check_form(model)
        raise click.UsageError(
            f"'{model}' is not a folder with a tokenizer; --texts then needs --tokenizer FILE."
        )
    inner = sorted(path.parent / "tokenizer.json" for path in folder.glob("*/config.json"))
    found = [path for path in (folder / "tokenizer.json", *inner) if path.is_file()]
    # Where there is none, reading this one says so, and what to do.
    return found[0] if found else folder / "tokenizer.json"
