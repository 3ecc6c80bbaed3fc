"""Options that decide a plan; ``plan`` and ``build`` share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from edgecompile.cli.options import Decorator, add_options
from edgecompile.cli.options.common import (
    file_option,
    jobs_option,
    max_length_option,
    mode_option,
    number_option,
    on_option,
    read_backend,
    seed_option,
    threads_option,
)
from edgecompile.units import parse_bytes, parse_duration


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has no parameters
    """A number with a unit."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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


def _read_ratio(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        ratio = float(value)
    except ValueError:
        raise click.BadParameter(f"'{value}' is no number.") from None
    if not 1 < ratio <= 1000:
        raise click.BadParameter(f"'{value}' isn't above 1 and at most 1000.")
    return ratio


def _arguments(**values: Any) -> dict[str, Any]:
    """Arguments of :func:`edgecompile.plan`."""
    from edgecompile.planning.options import BuildOptions, PlanOptions

    backend = read_backend(values.pop("backend"), values.pop("runtime"))
    own = {name: values.pop(name) for name in ("max_length", "precision")}
    limits = {item.name: values.pop(item.name) for item in fields(PlanOptions)}
    return {
        **own,
        "plan_options": PlanOptions(**limits),
        "build_options": BuildOptions(backend=backend, **values),
    }


_OPTIONS = (
    number_option("--buckets", metavar="K", help="Build exactly K programs."),
    number_option(
        "--max-buckets",
        metavar="K",
        help="Build at most K programs. Default: as many as pay, at most 8.",
    ),
    click.option(
        "--max-size",
        type=_Quantity("size", parse_bytes),
        metavar="SIZE",
        help="Keep the bundle within this size: 120MB, 1.5GB.",
    ),
    click.option(
        "--max-build-time",
        type=_Quantity("duration", parse_duration),
        metavar="TIME",
        help="Keep the build within this time: 90s, 10min.",
    ),
    click.option(
        "--price-per-bucket",
        type=click.FloatRange(min=0.0),
        metavar="MS",
        help="Add a bucket only if it lowers the mean run time by at least this many milliseconds.  "
        "[default: 1 to 5 % of the mean run, by the spread of measurements; 0 with --cost-points]",
    ),
    click.option(
        "--runs",
        type=click.FloatRange(min=1.0),
        metavar="N",
        help="Expect N runs: add a bucket only if it saves more time over these runs than it takes "
        "to build and load.",
    ),
    file_option(
        "--calibration",
        help="Use costs that the device measured: bench --calibrate FILE. Default: measure here.",
    ),
    click.option(
        "--measure-again",
        is_flag=True,
        help="Measure again, even if this machine measured the same model and versions before.",
    ),
    max_length_option,
    mode_option,
    click.option(
        "--assume-paddable",
        is_flag=True,
        help="Pad the model if padding changes nothing in trials, even without a proof that it can't. "
        "The bundle records this.",
    ),
    click.option(
        "--precision",
        type=click.Choice(["fp32", "fp16", "bf16", "int8", "int4", "fp8", "auto", "checkpoint"]),
        help="On a CPU, set the data type of the linear layers' weights: fp32, bf16, int8, or int4 for "
        "language models; auto picks the fastest on this machine within --max-error, or mixes those of a language model "
        "within --max-perplexity-ratio; checkpoint keeps the numbers of a GGUF file or another quantized model. On a "
        "GPU, set the compute type: fp32 or fp16; bf16 with --backend triton; int8 (only weights with triton); fp8 (with triton, from compute "
        "capability 8.9 on).  [default: fp32 on CPUs, checkpoint for quantized models; fp16 on GPUs]",
    ),
    click.option(
        "--max-error",
        callback=_read_share,
        metavar="SHARE",
        help="Allow --precision auto this difference from eager, as a share of an output's largest "
        "magnitude: 0.01 or 1%.  [default: 2%]",
    ),
    click.option(
        "--max-perplexity-ratio",
        callback=_read_ratio,
        metavar="RATIO",
        help="Allow narrow weights of a language model to raise its perplexity on texts by this factor. "
        "[default: 1.002, and 1.06 for int4]",
    ),
    threads_option,
    jobs_option,
    on_option,
    seed_option,
)


def plan_options(backends: tuple[Decorator, ...], *more: Decorator) -> Decorator:
    """Makes the argument ``plan``: those of :func:`edgecompile.plan`, with the options ``backends``. Further options are fields of
    :class:`~edgecompile.planning.options.BuildOptions`."""
    return add_options("plan", _arguments, *_OPTIONS, *backends, *more)
