"""Options that decide a plan; ``plan`` and ``build`` share them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgecompile.cli.options.common import (
    assume_option,
    lengths_options,
    max_length_option,
    mode_option,
    read_traffic,
)
from edgecompile.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.lengths.joint import JointDistribution
    from edgecompile.models.loaded import LoadOptions

__all__ = ["batch_traffic", "plan_options", "read_sizes", "traffic_options"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


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


def traffic_options(function: _Decorated) -> _Decorated:
    """Adds --lengths, --texts, --tokenizer and --from-stats."""
    stats = click.option(
        "--from-stats",
        "stats",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="Lengths that a device counted: its runtime's stats file; may be given several times.",
    )
    return lengths_options(stats(function))


def plan_options(function: _Decorated) -> _Decorated:
    """Adds what bounds a plan: how many buckets, at what price, how large, from which costs."""
    for option in reversed(
        (
            click.option(
                "--buckets",
                type=click.IntRange(min=1),
                metavar="K",
                help="Exact number of programs.",
            ),
            click.option(
                "--max-buckets",
                type=click.IntRange(min=1),
                metavar="K",
                help="Largest number of programs. Default: as many as pay, 8 at most.",
            ),
            click.option(
                "--max-size",
                type=_Quantity("size", parse_bytes),
                metavar="SIZE",
                help="Largest size of the bundle: 120MB, 1.5GB.",
            ),
            click.option(
                "--max-build-time",
                "max_build_s",
                type=_Quantity("duration", parse_duration),
                metavar="TIME",
                help="Longest time that the build may take: 90s, 10min.",
            ),
            click.option(
                "--price-per-bucket",
                type=click.FloatRange(min=0.0),
                metavar="MS",
                help="Add a bucket only if it lowers the mean run time by at least this many "
                "milliseconds.  [default: 1 to 5 % of the mean run, as far as measurements differ; "
                "0 with --cost-points]",
            ),
            click.option(
                "--runs",
                type=click.FloatRange(min=1.0),
                metavar="N",
                help="Expected number of runs. A bucket is added only if it saves more time over "
                "these runs than it takes to build and load.",
            ),
            click.option(
                "--calibration",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Costs that the device measured: bench --calibrate FILE. Default: measure "
                "here.",
            ),
            click.option(
                "--measure-again",
                is_flag=True,
                help="Measure here also what this machine measured before for the same model and "
                "versions.",
            ),
            max_length_option,
            mode_option,
            assume_option,
        )
    ):
        function = option(function)
    return function


def read_sizes(
    lengths: str | None,
    texts: str | None,
    tokenizer: Path | None,
    model: str | None,
    stats: tuple[Path, ...] = (),
    *,
    axes: tuple[str, str] | None = None,
    max_length: int | None = None,
    load: tuple[LoadOptions, tuple[int, int]] | None = None,
) -> tuple[LengthDistribution, JointDistribution | None]:
    """The lengths of the traffic and, where the file has them, the sizes of two axes together.

    A lengths file is about two axes if it names ``axes``; without them, if beside ``length`` it
    has a column ``batch`` or another one with ``length`` in its name. Other columns are ignored.
    With ``load``, how the model is loaded and its batch, nothing need be given for one of which
    only the batch varies, or nothing.

    Raises:
        click.UsageError: the sources exclude each other, or one is missing.
        LengthsError: see the readers.
    """
    if stats:
        if lengths is not None or texts is not None or tokenizer is not None:
            raise click.UsageError("--from-stats stands in place of --lengths and --texts.")
        return _read_stats(stats, max_length)
    if load is not None and model is not None and lengths is None and texts is None:
        found = batch_traffic(model, *load)
        if found is not None:
            return found, None
    if lengths is not None and texts is None and tokenizer is None:
        from edgecompile.lengths import files
        from edgecompile.lengths.joint import JointDistribution

        sizes = files.read_sizes(lengths, axes)
        if isinstance(sizes, JointDistribution):
            return sizes.marginal(sizes.axes[0]), sizes
        return sizes, None
    return read_traffic(lengths, texts, tokenizer, model), None


def batch_traffic(
    model: str, load: LoadOptions, batch: tuple[int, int]
) -> LengthDistribution | None:
    """Every batch size once, for a model of which nothing else varies, and the size of one that has a
    single one; None for other models.

    The model is loaded, which takes seconds: only for a command that was given no traffic.

    Raises:
        ModelError: it can't be loaded.
    """
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.loaders.load import load_model

    loaded = load_model(model, load, batch=batch)
    if loaded.generation is not None and loaded.generation.encoder is not None:
        loaded = loaded.generation.encoder
    axis = loaded.length_axis
    limits = None if axis is None else loaded.axes[axis]
    if limits is None or (axis != "batch" and limits.lo != limits.hi):
        return None
    sizes = range(limits.lo, (limits.hi or limits.lo) + 1)
    source = "every batch size once" if len(sizes) > 1 else "the one size that there is"
    return LengthDistribution.from_counts(dict.fromkeys(sizes, 1), source)


def _read_stats(
    stats: tuple[Path, ...], max_length: int | None
) -> tuple[LengthDistribution, JointDistribution | None]:
    from edgecompile.lengths.joint import JointDistribution
    from edgecompile.lengths.rows import Sizes
    from edgecompile.lengths.stats_files import read_stats

    served = read_stats(stats, max_length=max_length)
    lengths = served.demand(outside=True)
    if not served.cells or not served.cell_axes:
        return lengths, None
    cells: dict[Sizes, int] = dict(served.cells.items())
    return lengths, JointDistribution.from_counts(served.cell_axes, cells, lengths.source)
