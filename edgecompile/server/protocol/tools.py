"""Tools of a chat, as OpenAI's interface has them: requests, earlier calls and the calls of an answer."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from edgecompile.runtime.text.tools import Call, CallReader
from edgecompile.server.errors import BadRequest, Unprocessable
from edgecompile.server.generation_request import Piece, Tools
from edgecompile.server.protocol.documents import kind, load_object, required
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.texts import flag

_MOST = 128
_TOOL = Fields("type function")
_FUNCTION = Fields("name description parameters strict")
_CALL = Fields("id type function", "index")
_CALLED = Fields("name arguments")
#: Of a function that says nothing of its arguments.
_NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def read_tools(document: Mapping[str, Any]) -> Tools | None:
    """The tools of a request, where they may be called.

    Raises:
        BadRequest: they, or the choice among them, aren't what they must be.
        Unprocessable: a tool is of another kind than functions, or the choice of another kind.
    """
    value, choice = document.get("tools"), document.get("tool_choice")
    if value is not None and not isinstance(value, list):
        raise BadRequest(f"tools must be a list, not {kind(value)}")
    several = flag(document, "parallel_tool_calls", True)
    if not value:
        if choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice asks for a tool, but there are no tools")
        return None
    if len(value) > _MOST:
        raise BadRequest(f"there are {len(value)} tools, the limit is {_MOST}")
    schemas = dict(_read_tool(item, f"tools[{index}]") for index, item in enumerate(value))
    if len(schemas) < len(value):
        raise BadRequest("two tools have the same name")
    if choice == "none":
        return None
    must = _read_choice(choice, schemas)
    return Tools(tuple(value), schemas, must, several)


def _read_tool(value: Any, where: str) -> tuple[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object, not {kind(value)}")
    _TOOL.check(value, where + ".")
    if value.get("type") != "function":
        raise Unprocessable(
            f"{where}.type {value.get('type')!r:.80} isn't supported, only function"
        )
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{where}.function must be an object with a name")
    _FUNCTION.check(function, f"{where}.function.")
    name, parameters = function["name"], function.get("parameters")
    if not name or len(name) > 256:
        raise BadRequest(f"{where}.function.name must have 1 to 256 characters")
    if parameters is None:
        parameters = _NONE
    if not isinstance(parameters, dict):
        raise BadRequest(f"{where}.function.parameters must be a JSON schema, an object")
    return name, parameters or {"type": "object"}


def _read_choice(choice: Any, names: Mapping[str, Any]) -> tuple[str, ...]:
    """The tools of which one must be called; none where the model is free."""
    if choice in (None, "auto"):
        return ()
    if choice == "required":
        return tuple(names)
    if not isinstance(choice, dict):
        raise BadRequest("tool_choice must be none, auto, required or a tool")
    if choice.get("type") != "function":
        raise Unprocessable(f"tool_choice.type {choice.get('type')!r:.80} isn't supported")
    Fields("type function").check(choice, "tool_choice.")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in names:
        raise BadRequest("tool_choice.function.name must be the name of one of the tools")
    return (name,)


def read_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """The calls of an earlier answer, with their arguments as objects: templates write these.

    Raises:
        BadRequest: they aren't what they must be.
    """
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be a list, not {kind(value)}")
    calls = []
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        if not isinstance(item, dict) or item.get("type", "function") != "function":
            raise BadRequest(f"{place} must be an object of the type function")
        _CALL.check(item, place + ".")
        function = item.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"{place}.function must be an object with a name")
        _CALLED.check(function, f"{place}.function.")
        arguments = required(function, "arguments")
        if isinstance(arguments, str):
            try:
                arguments = load_object(arguments.encode()) if arguments.strip() else {}
            except (BadRequest, UnicodeEncodeError):
                raise BadRequest(f"{place}.function.arguments must be a JSON object") from None
        if not isinstance(arguments, dict):
            raise BadRequest(f"{place}.function.arguments must be a JSON object")
        kept = {"name": function["name"], "arguments": arguments}
        calls.append({**item, "type": "function", "function": kept})
    return calls


async def divide_calls(
    pieces: AsyncIterator[Piece], reader: CallReader, several: bool
) -> AsyncIterator[Piece]:
    """The pieces of an answer with its calls apart from its text.

    Args:
        pieces: the answer as the model writes it.
        reader: the parser that divides it.
        several: whether it may have more than one call; else it ends behind the first one.
    """
    called = False
    try:
        async for piece in pieces:
            text, calls = reader.add(piece.text)
            reason = piece.finish_reason
            if reason is not None:
                rest, more = reader.rest()
                text, calls = text + rest, [*calls, *more]
            called = called or bool(calls)
            if called and (reason == "stop" or not several):
                reason = "tool_calls"
            made = calls if several else calls[:1]
            yield Piece(text, piece.tokens, reason, tuple(made))
            if reason is not None:
                break
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


def format_calls(calls: Sequence[Call], first: int | None = None) -> list[dict[str, Any]]:
    """Calls of an answer; ``first`` is the index of the first one in a stream."""
    return [
        {
            **({} if first is None else {"index": first + number}),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls)
    ]
