"""Strict reading of JSON that somebody else wrote, collecting every problem.

Python's ``json`` accepts duplicate keys, NaN, numbers of any length and nesting until the
stack ends; a bundle's JSON may hold none of these. ``Reader`` walks a document and notes what is
wrong as (rule, place, text); nothing is raised until the whole document has been looked at.
"""

import json
import re
from typing import (
    Any,
    Callable,
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
    TypeVar,
)

from ..errors import BundleError

_T = TypeVar("_T")

MAX_DEPTH = 32
# The lone quote at the end is an unterminated string: trying every later quote would be quadratic.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]+|[\]}]+|"', re.DOTALL)
_MAX_LISTED = 40
_TOO_MANY = 10000


class Problem(NamedTuple):
    """One broken rule: its id in FORMAT.md, the key path and what was found there."""

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
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == '"':
            raise _Refused("json-syntax", "unterminated string at {}".format(match.start()))
        if token[0] in "[{":
            depth += len(token)
            if depth > MAX_DEPTH:
                raise _Refused("json-depth", "nested deeper than {} levels".format(MAX_DEPTH))
        elif token[0] in "]}":
            depth -= len(token)


def shorten(value: object, limit: int = 60) -> str:
    """``str(value)`` cut to ``limit`` characters and free of control characters."""
    text = str(value)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def parse_json(data: bytes, source: str, max_bytes: int) -> Dict[str, Any]:
    """Parses ``data`` as one strict JSON object.

    Args:
        data: the bytes of the document.
        source: what to call it in an error.
        max_bytes: largest size that is looked at.

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
    problems.raise_if_any()
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


class Reader:
    """Typed access to a parsed document; what is wrong goes to ``problems``.

    Every method returns None, or an empty container, where the value can't be used, so that
    reading can go on and find the next problem.
    """

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def _typed(self, value: object, where: str, kinds: Tuple[type, ...], wanted: str) -> bool:
        if isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds):
            return True
        self.problems.add("key-type", where, "must be {}, not {}".format(wanted, json_type(value)))
        return False

    def key(self, parent: Dict[str, Any], key: str, where: str) -> Any:
        """The required value of ``key``; None and a problem where it is missing."""
        if key not in parent:
            self.problems.add("key-missing", join(where, key), "is required")
            return None
        return parent[key]

    def mapping(
        self, parent: Dict[str, Any], key: str, where: str, optional: bool = False
    ) -> Dict[str, Any]:
        """An object under ``key``; {} where it is unusable."""
        if optional and key not in parent:
            return {}
        value = self.key(parent, key, where)
        return self.as_object(value, join(where, key)) if key in parent else {}

    def items(
        self, parent: Dict[str, Any], key: str, where: str, least: int, most: int
    ) -> List[Any]:
        """A list under ``key`` of ``least`` to ``most`` items."""
        value = self.key(parent, key, where)
        place = join(where, key)
        if key not in parent or not self._typed(value, place, (list,), "a list"):
            return []
        assert isinstance(value, list)
        self.count(len(value), place, least, most)
        return value[:most]

    def objects(
        self, parent: Dict[str, Any], key: str, where: str, least: int, most: int
    ) -> Iterator[Tuple[str, Dict[str, Any]]]:
        """The objects of a list under ``key``, each with its place."""
        for index, value in enumerate(self.items(parent, key, where, least, most)):
            place = "{}[{}]".format(join(where, key), index)
            if self._typed(value, place, (dict,), "an object"):
                yield place, value

    def _listed(
        self,
        read: Callable[[object, str], Optional[_T]],
        parent: Dict[str, Any],
        key: str,
        where: str,
        bounds: Tuple[int, int],
    ) -> Tuple[_T, ...]:
        items = self.items(parent, key, where, *bounds)
        place = join(where, key)
        values = [read(item, "{}[{}]".format(place, i)) for i, item in enumerate(items)]
        return tuple(value for value in values if value is not None)

    def strings(
        self, parent: Dict[str, Any], key: str, where: str, least: int, most: int
    ) -> Tuple[str, ...]:
        """The strings of a list under ``key``."""
        return self._listed(self.as_string, parent, key, where, (least, most))

    def integers(
        self, parent: Dict[str, Any], key: str, where: str, least: int, most: int
    ) -> Tuple[int, ...]:
        """The integers of a list under ``key``."""
        return self._listed(self.as_integer, parent, key, where, (least, most))

    def count(self, count: int, where: str, least: int, most: int) -> None:
        """Checks the number of entries of a list or object."""
        if not least <= count <= most:
            text = "has {} entries, must have {} to {}".format(count, least, most)
            self.problems.add("list-size", where, text)

    def as_object(self, value: object, where: str) -> Dict[str, Any]:
        """``value`` if it is an object; {} and a problem otherwise."""
        if self._typed(value, where, (dict,), "an object"):
            assert isinstance(value, dict)
            return value
        return {}

    def as_string(self, value: object, where: str) -> Optional[str]:
        """``value`` if it is a string."""
        if not self._typed(value, where, (str,), "a string"):
            return None
        assert isinstance(value, str)
        return value

    def as_integer(self, value: object, where: str) -> Optional[int]:
        """``value`` if it is an integer (1.0 isn't one)."""
        if not self._typed(value, where, (int,), "an integer"):
            return None
        assert isinstance(value, int)
        return value

    def as_number(self, value: object, where: str) -> Optional[float]:
        """``value`` if it is an integer or a float; the type is kept."""
        if not self._typed(value, where, (int, float), "a number"):
            return None
        assert isinstance(value, (int, float))
        return value

    def string(self, parent: Dict[str, Any], key: str, where: str) -> Optional[str]:
        """A string under ``key``."""
        value = self.key(parent, key, where)
        return self.as_string(value, join(where, key)) if key in parent else None

    def integer(self, parent: Dict[str, Any], key: str, where: str) -> Optional[int]:
        """An integer under ``key``."""
        value = self.key(parent, key, where)
        return self.as_integer(value, join(where, key)) if key in parent else None

    def boolean(self, parent: Dict[str, Any], key: str, where: str) -> Optional[bool]:
        """True or false under ``key``."""
        value = self.key(parent, key, where)
        if key in parent and self._typed(value, join(where, key), (bool,), "true or false"):
            assert isinstance(value, bool)
            return value
        return None

    def number(self, parent: Dict[str, Any], key: str, where: str) -> Optional[float]:
        """A number under ``key``."""
        value = self.key(parent, key, where)
        return self.as_number(value, join(where, key)) if key in parent else None

    def name(self, parent: Dict[str, Any], key: str, where: str) -> Optional[str]:
        """A name (see ``check_name``) under ``key``."""
        value = self.string(parent, key, where)
        return value if value is not None and self.check_name(value, join(where, key)) else None

    def within(
        self, parent: Dict[str, Any], key: str, where: str, least: int, most: int, rule: str
    ) -> Optional[int]:
        """An integer under ``key`` from ``least`` to ``most``, or ``rule`` is broken."""
        value = self.integer(parent, key, where)
        if value is not None:
            self.check_range(value, join(where, key), least, most, rule)
        return value

    def check_range(self, value: float, where: str, least: float, most: float, rule: str) -> None:
        """``rule`` is broken unless ``value`` is from ``least`` to ``most``."""
        if not least <= value <= most:
            text = "{} isn't within {}..{}".format(value, least, most)
            self.problems.add(rule, where, text)

    def check_choice(self, value: str, where: str, options: Sequence[str], rule: str) -> bool:
        """``rule`` is broken unless ``value`` is one of ``options``."""
        if value in options:
            return True
        text = "{!r} isn't one of {}".format(shorten(value), ", ".join(options))
        self.problems.add(rule, where, text)
        return False

    def check_form(
        self, value: Optional[str], where: str, form: Pattern[str], rule: str, text: str
    ) -> None:
        """``rule`` is broken unless ``value`` is of a form, which ``text`` describes."""
        if value is not None and not form.fullmatch(value):
            self.problems.add(rule, where, "{!r} {}".format(shorten(value, 80), text))

    def check_listed(self, path: str, where: str, files: Mapping[str, Any]) -> None:
        """The rule path-listed: the manifest's ``files`` have this path."""
        if path not in files:
            text = "{!r} isn't listed in files".format(shorten(path))
            self.problems.add("path-listed", where, text)

    def check_name(self, value: str, where: str) -> bool:
        """Names are 1 to 200 of ``A-Z a-z 0-9 _ . : + -`` and begin with a letter, digit or _."""
        if _NAME.fullmatch(value):
            return True
        text = "{!r} isn't a name (1 to 200 of A-Z a-z 0-9 _ . : + -)".format(shorten(value))
        self.problems.add("name-form", where, text)
        return False


def join(where: str, key: str) -> str:
    """The key path of ``key`` below ``where``."""
    return "{}.{}".format(where, shorten(key)) if where else shorten(key)
