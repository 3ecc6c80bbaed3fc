"""One row of traffic: its sizes and its count, the checks of both, and the report of bad rows.

A row has the size of one axis, a length, or of two: lengths with batches, or two lengths. Which axes
they are, the names of columns or keys say (:func:`choose_columns`).
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgecompile.errors import LengthsError

MAX_LENGTH = 2**31 - 1
MAX_TOTAL = 2**53  # beyond this, sums of counts are no longer exact in float64

PROBLEMS_SHOWN = 10
WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = ("nan", "inf", "-inf")

LENGTH = "length"
COUNT = "count"
FORMS_HINT = (
    'give one length per line ("12"), rows with a header "length,count", "length,batch,count" or '
    '"height,width,count", JSON lines {"length": 12, "count": 3}, a JSON list or histogram {"12": 3}, '
    '{"axes": [...], "sizes": [[...]], "counts": [...]}, or a one-dimensional integer .npy file'
)
_TEXTS_HINT = (
    "is this a file of texts? Give it as `texts`, and the model or a `tokenizer`, to count their "
    "tokens"
)
_WORDS = re.compile(r"[^\W\d]+\s+\w")

Sizes = tuple[int, ...]
Row = tuple[Sizes, int]


@dataclass
class Problems:
    """Collects what is wrong with one source; the first ten are shown, all are counted."""

    name: str
    hint: str = FORMS_HINT
    shown: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, where: str, text: str, reason: str) -> None:
        """Notes that ``text`` at ``where`` is refused."""
        self.total += 1
        if len(self.shown) < PROBLEMS_SHOWN:
            self.shown.append(f"  {where}: {quote(text)} {reason}")

    def raise_if_any(self) -> None:
        """Raises a LengthsError if anything was added."""
        if not self.total:
            return
        noun = "problem" if self.total == 1 else "problems"
        lines = [f"{self.name}: {self.total} {noun}", *self.shown]
        if self.total > len(self.shown):
            lines.append(f"  … and {self.total - len(self.shown)} more")
        raise LengthsError("\n".join(lines), hint=self.hint)


#: The axes of a source, the length axis first, each with the name that it has there, in lower case.
Columns = Mapping[str, str]
#: The axes of a log of images.
IMAGE = ("height", "width")
LENGTHS_ALONE: Columns = {LENGTH: LENGTH}
#: The name of a second column without a header: it is counted as the count.
UNNAMED = ""


def choose_columns(names: Sequence[str], axes: Sequence[str] | None) -> Columns | None:
    """The columns that names of columns or keys stand for; None if there are none.

    Args:
        names: the column names of the source.
        axes: the model's axes that may vary, the length axis first; None accepts "length" with
            "batch", or with another name that has "length" in it, and without "length" "height" with "width".
            A column "length" stands for the length axis whatever its name.
    """
    lower = [name.lower() for name in names]
    if axes is None and {*IMAGE} <= {*lower} and LENGTH not in lower:
        return find_pair(names, IMAGE)
    pair = find_pair(names, axes)
    if pair and (axes or any(axis == "batch" or LENGTH in axis for axis in list(pair)[1:])):
        return pair
    return LENGTHS_ALONE if lower.count(LENGTH) == 1 and lower.count(COUNT) < 2 else None


def find_pair(names: Sequence[str], axes: Sequence[str] | None) -> Columns | None:
    """The two axes that names stand for, of ``axes`` or whatever they are; None without such."""
    lower = [name.lower() for name in names]
    if axes is None:
        axes = (LENGTH, *(name for name in lower if name not in (LENGTH, COUNT)))
    others = {axis: axis.lower() for axis in axes[1:]}
    first = axes[0].lower()
    if first not in lower:
        if LENGTH in others.values():
            return None
        first = LENGTH
    pair = {axes[0]: first, **{axis: name for axis, name in others.items() if name in lower}}
    once = all(lower.count(name) == 1 for name in pair.values()) and lower.count(COUNT) < 2
    return pair if len(pair) == 2 and once else None


def make_row(axes: Sequence[str], sizes: Sequence[object], count: object) -> Row | str:
    """Checked sizes and count, or the reasons of all that are bad."""
    if len(sizes) != len(axes):
        return "isn't a pair of sizes" if len(axes) == 2 else "isn't a number"
    values: list[int] = []
    reasons = []
    for axis, value in zip((*axes, COUNT), (*sizes, count), strict=True):
        noun = COUNT if axis is COUNT else LENGTH if len(axes) == 1 else "size"
        number = _checked_number(value, noun)
        if isinstance(number, int):
            values.append(number)
        elif value is None or value == "":
            reasons.append(f"has no {axis}")
        elif noun == LENGTH:
            reasons.append(number)
        else:
            reasons.append(f"has the {axis} {quote(spell(value))}, which {number}")
    return "; ".join(reasons) if reasons else (tuple(values[:-1]), values[-1])


def _checked_number(value: object, noun: str) -> int | str:
    """``value`` as a length, size or count, or the reason why it can't be one."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return "isn't a number"
    if not isinstance(value, int) and not math.isfinite(value):
        return "isn't a finite number"
    number = int(value)
    if number != value:
        return "isn't a whole number"
    largest = MAX_TOTAL if noun == COUNT else MAX_LENGTH
    if number < 1:
        return f"is no {noun}: {noun}s start at 1"
    return number if number <= largest else f"is over the largest {noun}, {largest}"


class RowReader:
    """The grammar of the rows of a file; the first row that isn't blank decides on the columns.

    Attributes:
        columns: the columns of the file; None before the first row, or where it can't be one.
        ignored: names of the first row, in lower case, that nothing counts; :data:`UNNAMED` where two columns have none.
    """

    def __init__(self, axes: Sequence[str] | None) -> None:
        self.columns: Columns | None = None
        self.ignored: tuple[str, ...] = ()
        self._axes = axes
        self._names: Sequence[str] = (LENGTH,)
        self._objects = False

    def start(self, line: bytes) -> bool | str:
        """Learns the columns from the first row.

        Returns:
            True if that row is a header, False if it is data, else the reason why it is neither;
            the other rows can still be judged if ``columns`` isn't None then.
        """
        text = strip_comment(line)
        self._objects = text.startswith("{")
        names = list(_object_of(text) or ()) if self._objects else split_cells(text)
        columns = choose_columns(names, self._axes)
        if columns is not None:
            counted = (*columns.values(), COUNT)
            self.ignored = tuple(name.lower() for name in names if name.lower() not in counted)
        if self._objects:
            self.columns = columns or LENGTHS_ALONE
            return False
        if _NUMBER.fullmatch(names[0]) or names[0].lower() in (*_NOT_FINITE, ""):
            self.columns = LENGTHS_ALONE
            self._names = (LENGTH, COUNT, *names)[: len(names)]
            if len(names) > 2:
                return f"has {len(names)} columns and no header that names them"
            self.ignored = (UNNAMED,) * (len(names) - 1)
            return False
        self._names = [name.lower() for name in names]
        if columns is None:
            if len(names) == 1 and self._names[0] != LENGTH:
                self.columns = LENGTHS_ALONE  # no header that could be meant: judge the other rows
                self._names = (LENGTH,)
            return 'is neither a length nor a header with one "length" column'
        self.columns = columns
        return True

    def parse(self, line: bytes) -> Row | str | None:
        """Sizes and count; None for a blank or comment; else the reason of refusal."""
        assert self.columns is not None
        text = strip_comment(line)
        if not text:
            return None
        is_object = text.startswith("{")
        if len(self.columns) == 2 and is_object != self._objects:
            return "isn't a row of the kind that the first row is"
        if is_object:
            value = _object_of(text)
            if value is None:
                return "isn't valid JSON"
            named = {key.lower(): item for key, item in value.items()}
        else:
            cells = split_cells(text)
            if len(cells) != len(self._names):
                return f"has {len(cells)} columns where the first row has {len(self._names)}"
            named = dict(zip(self._names, map(spelled_number, cells), strict=True))
        sizes = [named.get(name) for name in self.columns.values()]
        return make_row(tuple(self.columns), sizes, named.get(COUNT, 1))


def _object_of(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def strip_comment(line: bytes) -> str:
    """The text of a line without comment and surrounding white space."""
    text = line.decode("utf-8", "backslashreplace").strip()
    if text.startswith("{"):  # JSON has no comments, and its strings may hold the sign
        return text
    return text.split("#", 1)[0].rstrip()


def rows_hint(head: bytes) -> str:
    """The cure where the rows that begin so can't be read."""
    first = strip_comment(head.lstrip().split(b"\n", 1)[0])
    return FORMS_HINT if first.startswith("{") or not _WORDS.search(first) else _TEXTS_HINT


def split_cells(text: str) -> list[str]:
    """The cells of a row, without white space around them; quotes may hold commas."""
    if '"' in text:
        try:
            text_cells = next(csv.reader([text], skipinitialspace=True), [text])
        except csv.Error:  # a carriage return within the line, say
            text_cells = [text]
    else:
        text_cells = text.split(",")
    return [cell.strip() for cell in text_cells]


def spelled_number(text: str) -> object:
    """The number that ``text`` spells; the text itself if it spells none."""
    if WHOLE.fullmatch(text):
        digits = text.split(".", 1)[0]
        return int(digits) if len(digits) <= 30 else MAX_TOTAL + 1
    if _NUMBER.fullmatch(text) or text.lower() in _NOT_FINITE:
        return float(text)
    return text


def spell(value: object) -> str:
    """A value as JSON has it; a string as it is."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def quote(text: str) -> str:
    """Text in quotes, cut to 40 characters, with control characters escaped."""
    shown = text if len(text) <= 40 else text[:39] + "…"
    return '"' + "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown) + '"'
