"""One row of a lengths file: its grammar, the checks of its values, and the report of bad ones."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass, field

import numpy as np

from edgecompile.errors import LengthsError

MAX_LENGTH = 2**31 - 1
MAX_TOTAL = 2**53  # beyond this, sums of counts are no longer exact in float64

PROBLEMS_SHOWN = 10
WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
FORMS_HINT = (
    'give one length per line ("12"), rows "length,count", JSON lines {"length": 12, "count": 3}, '
    'a JSON list or histogram {"12": 3}, or a one-dimensional integer .npy file'
)

_TEXTS_HINT = (
    "is this a file of texts? Give it as --texts FILE, and the model or --tokenizer FILE, to count "
    "their tokens"
)
_WORDS = re.compile(r"[^\W\d]+\s+\w")

Row = tuple[int, int]  # length, count


@dataclass
class Problems:
    """Collects what is wrong with one file; the first ten are shown, all are counted."""

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


def whole_number(value: object) -> int | str:
    """``value`` as an int, or the reason why it isn't a whole number."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return "isn't a number"
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            return "isn't a finite number"
        if value != int(value):
            return "isn't a whole number"
    return int(value)


def check_length(length: int) -> str | None:
    """The reason why ``length`` can't be a sequence length, or None."""
    if length < 1:
        return "is no length: lengths start at 1"
    if length > MAX_LENGTH:
        return f"is over the largest length, {MAX_LENGTH}"
    return None


def check_size(size: int) -> str | None:
    """The reason why ``size`` can't be the size of an axis, or None."""
    if size < 1:
        return "is no size: sizes start at 1"
    if size > MAX_LENGTH:
        return f"is over the largest size, {MAX_LENGTH}"
    return None


def check_count(count: int) -> str | None:
    """The reason why ``count`` can't be a number of samples, or None."""
    if count < 1:
        return "is no count: counts start at 1"
    if count > MAX_TOTAL:
        return f"is over the largest count, {MAX_TOTAL}"
    return None


def make_row(length: object, count: object) -> Row | str:
    """Checked length and count, or the reason of the first that is bad."""
    number = whole_number(length)
    reason = number if isinstance(number, str) else check_length(number)
    if reason is None:
        times = whole_number(count)
        reason = times if isinstance(times, str) else check_count(times)
        if reason is None:
            return int(number), int(times)
        reason = f"has the count {quote(spell(count))}, which {reason}"
    return reason


def row_from_object(value: dict[str, object]) -> Row | str:
    """Checked length and count of a JSON object, or the reason why it has none."""
    if "length" not in value:
        return 'has no "length"'
    return make_row(value["length"], value.get("count", 1))


@dataclass
class RowReader:
    """The grammar of one row; the first data row decides which columns there are."""

    n_columns: int = 0
    length_at: int = 0
    count_at: int | None = None

    def start(self, line: bytes) -> bool | str:
        """Learns the columns from the first data row.

        Returns:
            True if that row is a header, False if it is data, else the reason why it is neither;
            the other rows can still be judged if ``n_columns`` isn't 0 then.
        """
        text = strip_comment(line)
        if text.startswith("{"):
            self.n_columns = 1
            return False
        cells = split_cells(text)
        if _NUMBER.fullmatch(cells[0]) or cells[0].lower() in ("nan", "inf", "-inf", ""):
            self.n_columns = len(cells)
            self.count_at = 1 if len(cells) > 1 else None
            if len(cells) > 2:
                return f"has {len(cells)} columns and no header that names them"
            return False
        names = [cell.lower() for cell in cells]
        if len(names) == 1 and names[0] != "length":
            self.n_columns = 1  # no header that could be meant: the other rows can be judged
        if names.count("length") != 1 or names.count("count") > 1:
            return 'is neither a length nor a header with one "length" column'
        self.n_columns = len(names)
        self.length_at = names.index("length")
        self.count_at = names.index("count") if "count" in names else None
        return True

    def parse(self, line: bytes) -> Row | str | None:
        """Length and count; None for a blank or comment; else the reason of refusal."""
        if self.n_columns == 1 and len(line) < 10 and line.isdigit():
            length = int(line)  # the common row, read quickly
            if length:
                return length, 1
        text = strip_comment(line)
        if not text:
            return None
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return "isn't valid JSON"
            return row_from_object(value)
        cells = split_cells(text)
        if len(cells) != self.n_columns:
            return f"has {len(cells)} columns where the first row has {self.n_columns}"
        count = 1 if self.count_at is None else spelled_number(cells[self.count_at])
        return make_row(spelled_number(cells[self.length_at]), count)


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
    if _NUMBER.fullmatch(text) or text.lower() in ("nan", "inf", "-inf"):
        return float(text)
    return text


def spell(value: object) -> str:
    """A value as JSON has it; a string as it is."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def quote(text: str) -> str:
    """Text in quotes, cut to 40 characters, with control characters escaped."""
    shown = text if len(text) <= 40 else text[:39] + "…"
    return '"' + "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown) + '"'
