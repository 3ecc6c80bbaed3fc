"""Calls of tools in answers: how a chat template writes them, and what of an answer is one.

A model writes a call as its template writes those of earlier answers: mostly a JSON object between two marks. The
marks are found by a probe, an answer that calls a tool of a name that occurs nowhere else.
"""

import json
import math
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

from ..base.errors import ConstraintError
from ..format.document import shorten
from .schema_limits import DATA, NAMED
from .stream import find_overlap

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], str]
_NAME, _KEY, _VALUE, _ID = "Qx2Zy", "Qx3Zy", "Qx4Zy", "callQx123"
_USER = {"role": "user", "content": "Qx1Zy"}
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Qx5Zy",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "Qx6Zy"}},
            "required": [_KEY],
        },
    },
}


class ToolFormat(NamedTuple):
    """The form of a call: a JSON object with the tool's name first, between two marks, which may be empty.

    ``arguments`` is the key of the arguments. ``separators`` stand behind values and behind keys.
    """

    before: str
    after: str
    arguments: str
    separators: Tuple[str, str]


class Call(NamedTuple):
    """A call of a tool. ``arguments`` is a JSON object as a text."""

    name: str
    arguments: str


def has_tools(render: Render) -> bool:
    """Whether a template tells the model of tools; raises what ``render`` does."""
    return _NAME in render([_USER], [PROBE_TOOL])


def find_tool_format(render: Render, ends: Sequence[str] = ()) -> Optional[ToolFormat]:
    """The form in which a template writes calls; None: not as one JSON object each.

    Args:
        render: function that makes a prompt of messages and tools; what it raises is raised.
        ends: texts of tokens that end an answer.
    """
    arguments = {_KEY: _VALUE}
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    whole = render([_USER, answer], [PROBE_TOOL])
    plain = render([_USER, {"role": "assistant", "content": "Qy"}], [PROBE_TOOL])
    begin = find_common(whole, plain)
    name = whole.find(json.dumps(_NAME), begin)
    start = whole.rfind("{", begin, max(name, 0))
    if name < 0 or start < 0:
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(whole, start)
    except ValueError:
        return None
    keys = [key for key in ("arguments", "parameters") if value == {"name": _NAME, key: arguments}]
    if not keys or next(iter(value)) != "name":
        return None
    rest = plain[begin + len("Qy") :]
    after = whole[end : len(whole) - find_common(whole[end:][::-1], rest[::-1])]
    # An answer with a call may end with another token than the others.
    ended = [at for at in (whole.find(text, end) for text in ends if text) if at >= 0]
    after = after[: min(ended) - end] if ended else after
    before = whole[begin:start]
    if "Qx" in before + after:
        return None  # a number of the call, which the model would have to make up
    written = whole[start:end]
    compact = written == json.dumps(value, separators=(",", ":"))
    return ToolFormat(before, after, keys[0], (",", ":") if compact else (", ", ": "))


def find_common(first: str, second: str) -> int:
    """The number of characters with which both begin."""
    pairs = enumerate(zip(first, second))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def name_tool(name: str) -> str:
    """The schema of a tool's arguments, as errors name it."""
    return "the schema of the tool {!r:.80}".format(name)


def make_call_schema(form: ToolFormat, tools: Mapping[str, Any]) -> Dict[str, Any]:
    """The JSON schema of a call of one of some tools.

    Args:
        form: form of calls.
        tools: schemas of the arguments by the tools' names.

    Raises:
        ConstraintError: arguments can't be an object, or a schema has references or an ``$id`` that can't be moved.
    """
    choices, definitions = [], {}
    for index, (name, parameters) in enumerate(tools.items()):
        place = "tool{}".format(index)
        _check_object(parameters, name)
        definitions[place] = _Move(place, name, parameters).move(parameters)
        choices.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    # Calls have objects, where a schema takes other values, too.
                    form.arguments: {"type": "object", "$ref": "#/$defs/" + place},
                },
                "required": ["name", form.arguments],
                "additionalProperties": False,
            }
        )
    item, key = form.separators
    options = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
    return {"anyOf": choices, "$defs": definitions, "x-guidance": options}


def _check_object(parameters: Mapping[str, Any], name: str) -> None:
    kinds = parameters.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        text = "{} has the type {}, must have the type object"
        raise ConstraintError(text.format(name_tool(name), shorten(json.dumps(kinds), 80)))


class _Move:
    """Moves the schema of a tool to a place of its own: its references begin there."""

    def __init__(self, place: str, name: str, schema: Mapping[str, Any]) -> None:
        self._place, self._name = place, name
        own = schema.get("$id")
        self._schema, self._own = schema, own.rstrip("#") if isinstance(own, str) else ""

    def move(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.move(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        moved: Dict[str, Any] = {}
        for key, value in schema.items():
            if key in NAMED and isinstance(value, dict):
                moved[key] = {name: self.move(inner) for name, inner in value.items()}
            elif key == "$ref" and isinstance(value, str):
                moved[key] = self._move_reference(value)
            elif key == "$anchor" and isinstance(value, str):
                moved[key] = "{}.{}".format(self._place, value)
            elif key in DATA:
                moved[key] = value
            elif key == "$id":  # the whole one's is left out
                if schema is not self._schema:
                    self._refuse("has an $id within, which isn't supported")
            elif key != "$schema":  # it is the whole one's
                moved[key] = self.move(value)
        return moved

    def _move_reference(self, reference: str) -> str:
        base, _, path = reference.partition("#")
        if base not in ("", self._own):
            self._refuse("refers to another document: " + shorten(reference, 80))
        if path and not path.startswith("/"):
            return "#{}.{}".format(self._place, path)
        return "#/$defs/" + self._place + path

    def _refuse(self, problem: str) -> NoReturn:
        raise ConstraintError("{} {}".format(name_tool(self._name), problem))


class CallReader:
    """Divides an answer, as it comes, into text and calls.

    What only looks like a call is text: one of an unknown tool, and one that isn't JSON or isn't whole.
    """

    def __init__(self, form: ToolFormat, names: Iterable[str]) -> None:
        """``names`` are those of the tools."""
        self._mark, self._end = form.before.strip(), form.after.strip()
        self._key = form.arguments
        self._names = frozenset(names)
        self._decoder = json.JSONDecoder(parse_constant=_refuse, parse_float=_read_float)
        self._text = ""
        self._count = 0
        self._inside = False
        # White space around calls is of no text.
        self._between = True

    def add(self, text: str) -> "Tuple[str, List[Call]]":
        """Takes ``text``; all the text and the calls that are known to be such now."""
        self._text += text
        return self._read(last=False)

    def rest(self) -> "Tuple[str, List[Call]]":
        """The end of the answer: a call that lacks only its last mark is one, and all else is text."""
        return self._read(last=True)

    def _read(self, last: bool) -> "Tuple[str, List[Call]]":
        found: str = ""
        calls: List[Call] = []
        while True:
            if not self._inside:
                found += self._take_text(last)
                if not self._inside:
                    return found, calls
            call, size = self._take_call(last)
            if size is None:
                return found, calls
            if call is None:
                found += self._text[:size]
            else:
                calls.append(call)
                self._count += 1
            self._between = call is not None
            self._inside, self._text = False, self._text[size:]

    def _take_text(self, last: bool) -> str:
        """The text before the next call; ``_inside`` says whether one may begin behind it."""
        text = self._text
        cut = len(text)
        if self._mark:
            at = text.find(self._mark)
            self._inside = at >= 0
            cut = at if at >= 0 else cut if last else cut - find_overlap(text, self._mark)
        elif self._between and text.lstrip().startswith("{"):
            self._inside, cut = True, cut - len(text.lstrip())
        found = text[:cut]
        if self._between and not found.strip():
            if not self._inside and not last:
                return ""  # a call may follow
            found = "" if self._inside or self._count else found
        else:
            self._between = False
        self._text = text[cut:]
        return found

    def _take_call(self, last: bool) -> "Tuple[Optional[Call], Optional[int]]":
        """A call at the beginning, or None, and how many characters are judged; None: more have to come."""
        text, start = self._text, len(self._mark)
        rest = text[start:].lstrip()
        if rest and not rest.startswith("{"):
            return None, start
        if "}" not in rest:
            return None, len(text) if last else None
        try:
            value, end = self._decoder.raw_decode(text, len(text) - len(rest))
        except (ValueError, RecursionError):
            if not last:
                return None, None
            at = text.find(self._end, start) if self._end else -1
            return None, len(text) if at < 0 else at + len(self._end)
        if not self._end:
            return self._judge(value), end
        rest = text[end:].lstrip()
        if rest.startswith(self._end):
            return self._judge(value), len(text) - len(rest) + len(self._end)
        if self._end.startswith(rest) and not last:
            return None, None
        return (None, end) if rest else (self._judge(value), len(text))

    def _judge(self, value: Any) -> Optional[Call]:
        if not isinstance(value, dict) or set(value) != {"name", self._key}:
            return None
        name, arguments = value["name"], value[self._key]
        # Models write anything: a name may be a list, which is in no set.
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        try:
            text = json.dumps(arguments, ensure_ascii=False)
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which is an escape in JSON alone
            text = json.dumps(arguments)
        except RecursionError:
            return None
        return Call(name, text)


def _refuse(name: str) -> NoReturn:
    raise ValueError("{} isn't JSON".format(name))


def _read_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("{} is more than a double holds".format(text[:40]))
    return value
