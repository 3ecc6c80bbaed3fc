"""Lengths that texts have for a model: each line of a file through the model's own tokenizer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from edgecompile.errors import LengthsError, MissingDependencyError, ModelError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.tables import open_source

# A line longer than this is no text of one request, but a file without line ends.
MAX_LINE_BYTES = 16 << 20
_BATCH = 1024
_JSON = (".json", ".jsonl", ".ndjson")
_MAX_LISTED = 10


def read_text_lengths(source: str | Path, tokenizer: Path) -> LengthDistribution:
    """Tokenizes every line of a UTF-8 text file, with special tokens and without truncation.

    Args:
        source: the file, or ``-`` for standard input; one text per line, blank lines are skipped.
        tokenizer: the model's ``tokenizer.json``. Truncation and padding that it may ask for are
            off: the model's limit is the caller's business, and a length that it hides would
            never be seen.

    Returns:
        The distribution of the numbers of tokens.

    Raises:
        LengthsError: the file can't be read, isn't UTF-8 text, holds no text, or is JSON by its name.
        ModelError: the tokenizer can't be read.
        MissingDependencyError: the package tokenizers isn't installed.
    """
    if Path(source).suffix.lower() in _JSON:
        raise LengthsError(
            f"{source}: a file of JSON, whose brackets and keys would count as tokens",
            hint="write the texts themselves, one per line, into a file with another ending",
        )
    encoder = load_tokenizer(tokenizer)
    lower = wants_lower_case(tokenizer.parent)
    counts: Counter[int] = Counter()
    with open_source(source, "texts") as (stream, name):
        lines = read_lines(stream, name)
        while batch := list(islice(lines, _BATCH)):
            texts = [text.lower() for text in batch] if lower else batch
            counts.update(len(item.ids) for item in encoder.encode_batch_fast(texts))
    counts.pop(0, None)  # a line of which the tokenizer leaves nothing is no request
    if not counts:
        raise LengthsError(f"{name}: holds no text", hint="one text per line, UTF-8")
    return LengthDistribution.from_counts(counts, source=f"{name} (tokens)")


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a ``tokenizer.json``, with truncation and padding switched off."""
    try:
        from tokenizers import Tokenizer
    except ImportError as exc:
        raise MissingDependencyError(
            "tokenizing texts needs the Python package tokenizers",
            hint="pip install 'edgecompile[hf]', or give `lengths` in numbers",
        ) from exc
    if not path.is_file():
        if (path.parent / "preprocessor_config.json").is_file():
            raise ModelError(
                f"'{path.parent}' has no tokenizer: it reads images or sounds",
                hint="leave `texts` out; lengths that vary are given as `lengths`, in numbers",
            )
        raise ModelError(
            f"'{path}' doesn't exist: the model has no fast tokenizer",
            hint="AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes tokenizer.json; "
            "or give `lengths` in numbers",
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # the library raises plain Exception
        raise ModelError(f"'{path}' is no tokenizer that can be read: {exc}") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """The lines of a stream that hold more than blanks, without their line ends.

    Raises:
        LengthsError: lines aren't UTF-8, or are over ``MAX_LINE_BYTES``; the first ten are named.
    """
    problems: list[str] = []
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            problems.append(f"line {number} has over {MAX_LINE_BYTES} bytes")
            break
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as exc:
            problems.append(f"line {number}: byte {exc.start + 1} isn't UTF-8")
            if len(problems) == _MAX_LISTED:
                break
            continue
        if "\0" in text:
            problems.append(f"line {number} holds a NUL: this isn't text")
            break
        if text:
            yield text
    if problems:
        raise LengthsError(
            f"{name}: " + "; ".join(problems), hint="one text per line, UTF-8 encoded"
        )


def wants_lower_case(folder: Path) -> bool:
    """Whether texts are lowered before the tokenizer sees them, as sentence-transformers can ask."""
    path = folder / "sentence_bert_config.json"
    if not path.is_file():
        return False
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(config, dict) and config.get("do_lower_case") is True
