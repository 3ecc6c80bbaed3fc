"""Strict reading of JSON that somebody else wrote, collecting every problem.

Python's ``json`` accepts duplicate keys, NaN, numbers of any length and nesting until the
stack ends; a bundle's JSON may hold none of these. ``Field`` walks a document and notes what is
wrong as (rule, place, text); nothing is raised until the whole document has been looked at.
"""

import json
import re
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Pattern,
    Sequence,
    Tuple,
    Type,
)

from ..base.errors import BundleError

#: A SHA-256 as documents have it.
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_DEPTH = 32
#: All but brackets. A string may lack its end, which the parser finds: trying each later quote would be quadratic.
_REST = re.compile(r'[^][{}"]+|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
#: More of them take too much memory as parts.
_MOST_QUOTES = 1 << 16
_MAX_LISTED = 40
_TOO_MANY = 10000


class Problem(NamedTuple):
    """One broken rule: its id in FORMAT.md, the key path and the value that was found there."""

    rule: str
    where: str
    text: str

    def __str__(self) -> str:
        return "{}: {} [{}]".format(self.where, self.text, self.rule)


class Problems:
    """Collects broken rules and raises them all at once.

    Only the first 40 are kept and named, the others counted: a hostile document has millions. A
    reader of many things stops once there are ``too_many``.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.items: List[Problem] = []
        self.count = 0

    @property
    def too_many(self) -> bool:
        """Whether looking for more isn't worth the time."""
        return self.count >= _TOO_MANY

    def add(self, rule: str, where: str, text: str) -> None:
        """Notes that ``rule`` is broken at ``where``."""
        self.count += 1
        if len(self.items) < _MAX_LISTED:
            self.items.append(Problem(rule, where, text))

    def raise_if_any(
        self, error: Type[BundleError] = BundleError, hint: Optional[str] = None
    ) -> None:
        """Raises ``error`` with every problem on a line of its own, if there is one."""
        if not self.items:
            return
        lines = [str(item) for item in self.items]
        if self.count > len(lines):
            least = "at least " if self.too_many else ""
            lines.append("... and {}{} more".format(least, self.count - len(lines)))
        if len(lines) == 1:
            raise error("{}: {}".format(self.source, lines[0]), hint)
        most = " or more" if self.too_many else ""
        head = "{}: {}{} problems".format(self.source, self.count, most)
        raise error("\n  ".join([head, *lines]), hint)


class _Refused(Exception):
    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule
        self.text = text


def _unique_pairs(pairs: Sequence[Tuple[str, Any]]) -> Dict[str, Any]:
    result: Dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _Refused("json-duplicate", "the key {!r} occurs twice".format(shorten(key)))
        result[key] = value
    return result


def _parse_int(text: str) -> int:
    # Converting a million digits takes minutes; no number of a bundle needs more than 64 bits.
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise _Refused("json-number", "{} doesn't fit in 64 bits".format(shorten(text)))
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text) if len(text) <= 64 else float("inf")
    if value in (float("inf"), float("-inf")):
        raise _Refused("json-number", "{} isn't a finite double".format(shorten(text)))
    return value


def _parse_constant(text: str) -> float:
    raise _Refused("json-number", "{} isn't a JSON number".format(text))


def _check_depth(text: str) -> None:
    depth = 0
    if "\\" not in text and text.count('"') < _MOST_QUOTES:  # then each second part is a string
        text = "".join(text.split('"')[::2])
    for bracket in _REST.sub("", text):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise _Refused("json-depth", "nested deeper than {} levels".format(MAX_DEPTH))


def shorten(value: object, limit: int = 60) -> str:
    """``str(value)`` cut to ``limit`` characters and free of control characters."""
    text = str(value)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def parse_json(
    data: bytes, source: str, max_bytes: int, hint: Optional[str] = None
) -> Dict[str, Any]:
    """Parses ``data`` as one strict JSON object.

    Args:
        data: the bytes of the document.
        source: its name in an error.
        max_bytes: largest size that is looked at.
        hint: cure that an error names.

    Raises:
        BundleError: rules json-size, json-utf8, json-depth, json-syntax, json-duplicate,
            json-number, json-object.
    """
    problems = Problems(source)
    try:
        if len(data) > max_bytes:
            raise _Refused("json-size", "{} bytes, at most {}".format(len(data), max_bytes))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _Refused("json-utf8", "not UTF-8 at byte {}".format(error.start)) from None
        _check_depth(text)
        try:
            value = json.loads(
                text,
                object_pairs_hook=_unique_pairs,
                parse_int=_parse_int,
                parse_float=_parse_float,
                parse_constant=_parse_constant,
            )
        except ValueError as error:
            raise _Refused("json-syntax", shorten(error, 120)) from None
        if not isinstance(value, dict):
            raise _Refused("json-object", "must be an object, not {}".format(json_type(value)))
        return value
    except _Refused as refused:
        problems.add(refused.rule, "document", refused.text)
    problems.raise_if_any(hint=hint)
    raise AssertionError("unreachable")


def is_printable(name: str) -> bool:
    """As FORMAT.md says it. ``str.isprintable`` also refuses what its version doesn't know yet."""
    if name.isprintable():
        return True
    from unicodedata import category  # hardly any name needs it

    return not any(
        (category(char) in _INVISIBLE and char != " ")
        or ord(char) & 0xFFFE == 0xFFFE
        or 0xFDD0 <= ord(char) <= 0xFDEF
        for char in name
    )


def json_type(value: object) -> str:
    """JSON's name for the type of ``value``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "list")):
        if isinstance(value, kind):
            return name
    return "object"


_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,199}")


_ABSENT: Any = object()


class Field:
    """A value of a parsed document and its place; what is wrong with it goes to ``problems``.

    A field that isn't there is false, and so are those below it; what it lacks was noted once. Every
    reading method returns None, or an empty container, where the value can't be used, so that reading
    can go on and find the next problem.
    """

    __slots__ = ("problems", "value", "where")

    def __init__(self, problems: Problems, value: Any, where: str = "") -> None:
        self.problems = problems
        self.value = value
        self.where = where

    def __bool__(self) -> bool:
        return self.value is not _ABSENT

    @property
    def given(self) -> bool:
        """Whether it is there and isn't null."""
        return self.value is not _ABSENT and self.value is not None

    def refuse(self, rule: str, text: str) -> None:
        """Notes that ``rule`` is broken here."""
        self.problems.add(rule, self.where, text)

    def _typed(self, kinds: Tuple[type, ...], description: str) -> bool:
        value = self.value
        if isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds):
            return True
        if self:
            self.refuse("key-type", "must be {}, not {}".format(description, json_type(value)))
        return False

    def find(self, key: str) -> "Field":
        """The value of ``key`` of an object that may have it."""
        value = self.value.get(key, _ABSENT) if isinstance(self.value, dict) else _ABSENT
        return Field(self.problems, value, join(self.where, key))

    def at(self, key: str) -> "Field":
        """The value of ``key`` of an object that must have it."""
        field = self.find(key)
        if self and not field:
            field.refuse("key-missing", "is required")
        return field

    def object(self) -> "Field":
        """Itself if it is an object, else a field that isn't there."""
        return self if self._typed((dict,), "an object") else Field(self.problems, _ABSENT)

    def mapping(self) -> Dict[str, Any]:
        """An object as it is."""
        return self.value if self._typed((dict,), "an object") else {}

    def members(self, least: int = 0, most: Optional[int] = None) -> "Iterator[Tuple[str, Field]]":
        """The entries of an object of ``least`` to ``most``; None: as many as there are."""
        if self.object():
            if most is not None:
                self._check_count(least, most)
            for key in self.value:
                yield key, self.find(key)

    def items(self, least: int, most: int) -> "List[Field]":
        """The items of a list of ``least`` to ``most``."""
        if not self._typed((list,), "a list"):
            return []
        self._check_count(least, most)
        return [
            Field(self.problems, value, "{}[{}]".format(self.where, index))
            for index, value in enumerate(self.value[:most])
        ]

    def objects(self, least: int, most: int) -> "Iterator[Field]":
        """The objects of a list."""
        return (item for item in self.items(least, most) if item.object())

    def _check_count(self, least: int, most: int) -> None:
        count = len(self.value)
        if not least <= count <= most:
            text = "has {} entries, must have {} to {}".format(count, least, most)
            self.refuse("list-size", text)

    def string(self) -> Optional[str]:
        """A string."""
        return self.value if self._typed((str,), "a string") else None

    def integer(self) -> Optional[int]:
        """An integer; 1.0 isn't one."""
        return self.value if self._typed((int,), "an integer") else None

    def number(self) -> Optional[float]:
        """An integer or a float; the type is kept."""
        return self.value if self._typed((int, float), "a number") else None

    def boolean(self) -> Optional[bool]:
        """True or false."""
        return self.value if self._typed((bool,), "true or false") else None

    def strings(self, least: int, most: int) -> Tuple[str, ...]:
        """The strings of a list."""
        values = [item.string() for item in self.items(least, most)]
        return tuple(value for value in values if value is not None)

    def integers(self, least: int, most: int) -> Tuple[int, ...]:
        """The integers of a list."""
        values = [item.integer() for item in self.items(least, most)]
        return tuple(value for value in values if value is not None)

    def name(self) -> Optional[str]:
        """A name; see ``check_name``."""
        value = self.string()
        return value if value is not None and self.check_name(value) else None

    def check_name(self, value: str) -> bool:
        """Names are 1 to 200 of ``A-Z a-z 0-9 _ . : + -`` and begin with a letter, digit or _."""
        if _NAME.fullmatch(value):
            return True
        text = "{!r} isn't a name (1 to 200 of A-Z a-z 0-9 _ . : + -)".format(shorten(value))
        self.refuse("name-form", text)
        return False

    def within(self, least: int, most: int, rule: str) -> Optional[int]:
        """An integer from ``least`` to ``most``, or ``rule`` is broken."""
        value = self.integer()
        self.check_range(value, least, most, rule)
        return value

    def check_range(self, value: Optional[float], least: float, most: float, rule: str) -> None:
        """``rule`` is broken unless ``value`` is from ``least`` to ``most``."""
        if value is not None and not least <= value <= most:
            self.refuse(rule, "{} isn't within {}..{}".format(value, least, most))

    def choice(self, options: Sequence[str], rule: str) -> Optional[str]:
        """A string that is one of ``options``, or ``rule`` is broken."""
        value = self.string()
        if value is None or value in options:
            return value
        self.refuse(rule, "{!r} isn't one of {}".format(shorten(value), ", ".join(options)))
        return None

    def formed(self, form: Pattern[str], rule: str, text: str) -> Optional[str]:
        """A string; ``rule`` is broken unless it is of a form, which ``text`` describes."""
        value = self.string()
        if value is not None and not form.fullmatch(value):
            self.refuse(rule, "{!r} {}".format(shorten(value, 80), text))
        return value

    def path(self, files: Mapping[str, Any]) -> str:
        """A path that the manifest's ``files`` have, or the rule path-listed is broken."""
        value = self.string()
        if value is not None and value not in files:
            self.refuse("path-listed", "{!r} isn't listed in files".format(shorten(value)))
        return value or ""


def join(where: str, key: str) -> str:
    """The key path of ``key`` below ``where``."""
    return "{}.{}".format(where, shorten(key)) if where else shorten(key)
