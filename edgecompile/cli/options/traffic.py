"""Options that say which lengths the traffic has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgecompile.cli.options import add_options
from edgecompile.cli.options.common import file_option

if TYPE_CHECKING:
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.lengths.joint import JointDistribution
    from edgecompile.models.samples import SampleTexts

__all__ = ["TrafficOptions", "lengths_options", "traffic_options"]


@dataclass(frozen=True)
class TrafficOptions:
    """Where the lengths come from: a file of lengths, texts with a tokenizer, or devices' counts.

    Attributes:
        lengths, texts: a path, or - for standard input.
        tokenizer: of the texts; None: the model's own.
        stats: files that devices wrote.
    """

    lengths: str | None = None
    texts: str | None = None
    tokenizer: Path | None = None
    stats: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.stats) or any((self.lengths, self.texts, self.tokenizer))

    @property
    def named(self) -> str:
        """The files, for people."""
        return self.lengths or self.texts or ", ".join(str(path) for path in self.stats)

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

    def check(self, model: str | None = None) -> None:
        """Refuses sources that exclude each other, or lack something.

        Raises:
            click.UsageError: says which.
        """
        if self.stats and (self.lengths or self.texts or self.tokenizer):
            raise click.UsageError("--from-stats stands in place of --lengths and --texts.")
        if self.lengths is not None and self.texts is not None:
            raise click.UsageError("--lengths and --texts exclude each other.")
        if self.texts is None and self.tokenizer is not None:
            raise click.UsageError("--tokenizer goes with --texts.")
        if self.texts is not None and self.tokenizer is None and model is None:
            raise click.UsageError("--texts needs --tokenizer FILE or --model MODEL.")
        if not self:
            raise click.UsageError(
                "The lengths of the traffic are missing: give --lengths FILE or --texts FILE."
            )

    def read(
        self,
        model: str | None = None,
        *,
        axes: tuple[str, str] | None = None,
        max_length: int | None = None,
    ) -> tuple[LengthDistribution, JointDistribution | None]:
        """The lengths and, where the source has them, the sizes of two axes together.

        Args:
            model: has a tokenizer, if none is named.
            axes: names of the axes that a file of two is to have.
            max_length: the longest to be served, for devices' counts.

        Raises:
            click.UsageError: as :meth:`check`.
            LengthsError, ModelError: a file can't be read, or holds something else.
        """
        from edgecompile.lengths.distribution import LengthDistribution
        from edgecompile.lengths.files import read_sizes

        self.check(model)
        if self.stats:
            from edgecompile.lengths.stats_files import read_stats

            return read_stats(self.stats, max_length=max_length).sizes()
        if self.texts is not None:
            from edgecompile.lengths.texts import read_text_lengths

            return read_text_lengths(self.texts, self.text_tokenizer(model)), None
        assert self.lengths is not None
        sizes = read_sizes(self.lengths, axes)
        if isinstance(sizes, LengthDistribution):
            return sizes, None
        return sizes.marginal(sizes.axes[0]), sizes

    def text_tokenizer(self, model: str | None) -> Path:
        """The tokenizer of the texts.

        Raises:
            ModelError: the model has another form than any that can be read.
            click.UsageError: it has no tokenizer.
        """
        if self.tokenizer is not None:
            return self.tokenizer
        from edgecompile.loaders.kinds import check_form, find_tokenizer

        found = find_tokenizer(model or "")
        if found is None:
            check_form(model or "")
            raise click.UsageError(
                f"'{model}' is not a folder with a tokenizer; --texts then needs --tokenizer FILE."
            )
        return found

    def samples(self, model: str | None) -> SampleTexts | None:
        """The texts as inputs to run; None without a file that can be read again."""
        if self.texts is None or self.texts == "-":
            return None
        from edgecompile.models.samples import SampleTexts

        return SampleTexts(Path(self.texts), self.text_tokenizer(model))


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
lengths_options = add_options("traffic", TrafficOptions, _LENGTHS, _TEXTS, _TOKENIZER)
traffic_options = add_options("traffic", TrafficOptions, _LENGTHS, _TEXTS, _TOKENIZER, _STATS)
