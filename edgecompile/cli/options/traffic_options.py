"""Options that say which lengths the traffic has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgecompile.cli.options import add_options
from edgecompile.cli.options.common import file_option

if TYPE_CHECKING:
    from edgecompile.api.traffic_sources import GivenTraffic


@dataclass(frozen=True)
class TrafficOptions:
    """Arguments of the same names of :func:`edgecompile.build`: paths, or - for standard input."""

    lengths: str | None = None
    texts: str | None = None
    tokenizer: Path | None = None
    stats: tuple[Path, ...] | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(vars(self).values())

    def or_file(self, file: str | None) -> TrafficOptions:
        """The same, with an argument that may stand for --lengths.

        Raises:
            click.UsageError: both are given.
        """
        if file is not None and self.lengths is not None:
            raise click.UsageError(
                "The argument LENGTHS and --lengths are the same thing; give one of them."
            )
        return replace(self, lengths=file or self.lengths)

    def read(
        self,
        model: str | None = None,
        *,
        axes: Sequence[str] | None = None,
        max_length: int | None = None,
    ) -> GivenTraffic:
        """The traffic; see :meth:`edgecompile.api.traffic_sources.Sources.read`."""
        from edgecompile.api.traffic_sources import find_sources

        with find_sources(model, **vars(self)).read(max_length, axes) as traffic:
            return traffic


def _options(stats: tuple[Path, ...] = (), **others: Any) -> TrafficOptions:
    return TrafficOptions(stats=stats or None, **others)


_LENGTHS = click.option(
    "--lengths",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Read lengths of real inputs: .txt, .csv (length or length,count), .jsonl, .json histogram "
    "or .npy; - reads standard input.",
)
_TEXTS = click.option(
    "--texts",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Read typical texts, one per line, and count their tokens; - reads standard input.",
)
_TOKENIZER = file_option(
    "--tokenizer", help="Tokenize --texts with this tokenizer.json. Default: the model's own."
)
_STATS = file_option(
    "--from-stats",
    "stats",
    multiple=True,
    help="Read lengths that a device counted, from its runtime's stats file; may be given several "
    "times.",
)

#: Both make the argument ``traffic``.
lengths_options = add_options("traffic", _options, _LENGTHS, _TEXTS, _TOKENIZER)
traffic_options = add_options("traffic", _options, _LENGTHS, _TEXTS, _TOKENIZER, _STATS)
