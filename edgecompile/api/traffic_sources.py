"""The traffic arguments: lengths, texts or the counts of devices, in whatever form they come."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile import checks
from edgecompile.errors import LengthsError, UsageError
from edgecompile.lengths.served_traffic import missing_lengths

if TYPE_CHECKING:
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.lengths.joint import JointDistribution
    from edgecompile.models.samples import SampleTexts


@dataclass(frozen=True)
class GivenTraffic:
    """The lengths of the traffic.

    Attributes:
        lengths: their distribution.
        joint: the sizes on two axes, where they are known.
        texts: the texts that they come from, where these can be read again.
    """

    lengths: LengthDistribution
    joint: JointDistribution | None = None
    texts: SampleTexts | None = None


@dataclass(frozen=True)
class Sources:
    """The sources of the lengths: the arguments of that name, checked.

    Attributes:
        lengths: lengths in a form that :func:`edgecompile.lengths.sources.read_traffic` takes.
        texts: texts, or the file that has one on each line.
        tokenizer: the ``tokenizer.json`` for them.
        stats: files in which devices counted lengths.
    """

    lengths: Any = None
    texts: Path | tuple[str, ...] | None = None
    tokenizer: Path | None = None
    stats: tuple[Path, ...] = ()

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return self.lengths is not None or self.texts is not None or bool(self.stats)

    @contextmanager
    def read(
        self, max_length: int | None = None, axes: Sequence[str] | None = None
    ) -> Iterator[GivenTraffic]:
        """The traffic; the texts stay readable for as long as the context lasts.

        Args:
            max_length: the longest to be served, for devices' counts.
            axes: the length axis and a second axis, where both are to be counted; see
                :func:`edgecompile.lengths.sources.read_traffic`.

        Raises:
            UsageError: there are no sources.
            LengthsError: the lengths can't be read, or aren't any.
            ModelError, MissingDependencyError: the tokenizer can't be read.
        """
        if self.texts is not None:
            assert self.tokenizer is not None  # find_sources saw to it
            with _text_file(self.texts) as file:
                yield _from_texts(file, self.tokenizer, named=isinstance(self.texts, Path))
        elif self.stats:
            yield _from_stats(self.stats, max_length)
        elif self.lengths is not None:
            yield _from_lengths(self.lengths, axes)
        else:
            raise missing_lengths()


def find_sources(
    model: Any = None,
    lengths: Any = None,
    texts: Any = None,
    tokenizer: Any = None,
    stats: Any = None,
) -> Sources:
    """The sources of lengths, refused where they contradict each other; nothing is read yet.

    Args:
        model: the model argument of :func:`edgecompile.build`; a folder has a tokenizer.
        lengths, texts, tokenizer, stats: the arguments of :func:`edgecompile.build`.

    Raises:
        UsageError: says what contradicts what, or is missing.
        ModelError: a tokenizer is looked for, and the model is no model.
    """
    arguments = {"lengths": lengths, "texts": texts, "stats": stats}
    names = [f"`{name}`" for name, value in arguments.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} exclude each other", hint="give one of them")
    if texts is None and tokenizer is not None:
        raise UsageError("`tokenizer` goes with `texts`", hint="leave it out, or give texts")
    if texts is not None:
        texts = checks.path("texts", texts) if _is_path(texts) else _texts_of(texts)
        tokenizer = checks.path("tokenizer", tokenizer) or _own_tokenizer(model)
    if _is_path(lengths):
        checks.given_path("lengths", lengths)
    if stats is None or _is_path(stats):
        stats = () if stats is None else (stats,)
    checks.instance("stats", stats, Iterable, "a file, or a list of files")
    paths = tuple(checks.given_path("stats", item) for item in stats)
    return Sources(lengths, texts, tokenizer, paths)


def _from_lengths(lengths: Any, axes: Sequence[str] | None) -> GivenTraffic:
    from edgecompile.lengths.joint import JointDistribution
    from edgecompile.lengths.sources import read_traffic

    traffic = read_traffic(lengths, axes)
    if isinstance(traffic, JointDistribution):
        return GivenTraffic(traffic.marginal(traffic.axes[0]), traffic)
    return GivenTraffic(traffic)


def _from_texts(file: Path, tokenizer: Path, *, named: bool) -> GivenTraffic:
    from edgecompile.lengths.texts import read_text_lengths
    from edgecompile.models.samples import SampleTexts

    lengths = read_text_lengths(file, tokenizer)
    # A temporary file's name would differ from build to build.
    lengths = lengths if named else replace(lengths, source="texts (tokens)")
    return GivenTraffic(lengths, texts=None if str(file) == "-" else SampleTexts(file, tokenizer))


def _from_stats(files: tuple[Path, ...], max_length: int | None) -> GivenTraffic:
    from edgecompile.lengths.stats_files import read_stats

    return GivenTraffic(*read_stats(files, max_length=max_length).sizes())


@contextmanager
def _text_file(texts: Path | tuple[str, ...]) -> Iterator[Path]:
    """The file of texts, or a temporary one of those in a list."""
    if isinstance(texts, Path):
        yield texts
        return
    with tempfile.TemporaryDirectory(prefix="edgecompile-texts-") as folder:
        file = Path(folder) / "texts"
        lines = (" ".join(text.splitlines()) for text in texts)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield file


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _texts_of(texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, Iterable) or isinstance(texts, (bytes, dict)):
        raise UsageError(
            f"`texts` is {checks.describe(texts)}", hint="give a list of texts, or a file of lines"
        )
    items = tuple(texts)
    for item in items:
        if not isinstance(item, str):
            raise UsageError(f"`texts` holds {checks.describe(item)}", hint="give a list of str")
    if not any(item.strip() for item in items):
        raise LengthsError("`texts` holds no text", hint="give the texts of typical requests")
    return items


def _own_tokenizer(model: Any) -> Path:
    """The tokenizer of a model folder, or of the transformer in a pipeline's folder."""
    if _is_path(model):
        from edgecompile.loaders.kinds import check_form, find_tokenizer

        tokenizer = find_tokenizer(os.fsdecode(model))
        if tokenizer is not None:
            return tokenizer
        check_form(os.fsdecode(model))
    raise UsageError(
        "`texts` need a `tokenizer`: the model is not a folder that has one",
        hint="give the path of its tokenizer.json",
    )
