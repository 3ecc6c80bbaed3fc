"""Files of traffic: of lengths, or of the sizes of two axes together.

The content decides on the format, never the name, so a pipe works as a file does, and a file is opened
once:

- an array as ``numpy.save`` writes it (one dimension, whole numbers, nothing pickled);
- one JSON document (:mod:`edgecompile.lengths.documents` has the forms);
- rows, one per line: ``12``, ``12,3`` (length, count), or a JSON object
  ``{"length": 12, "count": 3}``. A first row may name its columns; then ``length`` and ``count``
  are found by name, a second axis such as ``batch`` as well, and other columns are ignored. ``#``
  starts a comment, blank lines are skipped.

``12.0`` counts as 12, ``12.5`` is refused.
"""

from __future__ import annotations

import io
import json
import os
import tokenize
from collections.abc import Sequence

import numpy as np

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.documents import CountedSizes, count_array, count_document
from edgecompile.lengths.joint import JointDistribution, distribution_of
from edgecompile.lengths.rows import FORMS_HINT, LENGTH, RowReader, choose_columns, rows_hint
from edgecompile.lengths.tables import count_rows, open_source, read_block, read_document

_NPY_MAGIC = b"\x93NUMPY"
_NPY_HINT = "write it with numpy.save(path, integer_array)"


def read_sizes(
    source: str | os.PathLike[str], axes: Sequence[str] | None = None
) -> LengthDistribution | JointDistribution:
    """Reads a file about two axes, if it names two, or else about lengths alone.

    Args:
        source: the file, or ``"-"`` for standard input.
        axes: the model's axes that may vary, the length axis first; None: "length", and "batch" or
            another name with "length" in it. Other columns are ignored.

    Raises:
        LengthsError: the file can't be opened, isn't in a known form, is empty, or holds values
            that aren't sizes (whole numbers from 1 to 2^31-1) or counts (from 1 up); the first
            ten are named with their lines.
    """
    with open_source(source) as (stream, name):
        head = read_block(stream)
        if head.startswith(_NPY_MAGIC):
            return distribution_of(_count_npy(head + stream.read(), name))
        head = head.removeprefix(b"\xef\xbb\xbf")  # a byte order mark that some editors write
        if _is_document(head, axes):
            document = read_document(head, stream, name, FORMS_HINT)
            return distribution_of(count_document(document, name, axes))
        reader = RowReader(axes)
        counts = count_rows(head, stream, name, reader, rows_hint(head))
        columns = tuple(reader.columns or (LENGTH,))
        return distribution_of(CountedSizes(columns, counts, name, reader.ignored))


def _count_npy(data: bytes, name: str) -> CountedSizes:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError, SyntaxError, tokenize.TokenError) as error:
        raise LengthsError(f"{name}: not a readable .npy file: {error}", hint=_NPY_HINT) from error
    return count_array(array, name, _NPY_HINT)


def _is_document(head: bytes, axes: Sequence[str] | None) -> bool:
    """Whether JSON is one document: not an object in its first line that is a row."""
    text = head.lstrip()
    if not text.startswith(b"{"):
        return text.startswith(b"[")
    first, _, rest = text.partition(b"\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return True  # an object that goes on over the next lines
    if isinstance(value.get("axes"), list):
        return True
    if rest.lstrip().startswith(b"{"):
        return False  # rows, whatever they lack
    return LENGTH not in value and choose_columns(list(value), axes) is None
