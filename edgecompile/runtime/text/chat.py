"""The prompt of a chat: its messages as one text, and the token ids of that.

A template is a program. Most only write something before each message that depends on its role and on the
role before. Such a template is data in the bundle, its *turns*, found and proven when the bundle is built
(edgecompile/loaders/folders/turns.py). Others need the package jinja2.
"""

import contextlib
import json
import os
import re
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from ..base.errors import InputError, TokenizerError
from ..base.lifetime import Unique
from ..format.manifest.text import CHAT_FILE, MAX_CHAT_BYTES
from .jinja import JinjaTemplate
from .tools import ToolFormat, find_tool_format, has_tools

if TYPE_CHECKING:
    from ..open.bundle import OpenBundle

Message = Mapping[str, Any]
_THOUGHT = "</think>"
#: Conversions of a message's text, by their names in a bundle.
CONTENTS: Dict[str, Callable[[str], str]] = {
    "as-is": lambda text: text,
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
    # Reasoning models: an earlier answer without the thoughts before it.
    "answer": lambda text: text.rpartition(_THOUGHT)[2],
    "answer-lines": lambda text: (
        text.rpartition(_THOUGHT)[2].lstrip("\n") if _THOUGHT in text else text
    ),
    "answer-strip": lambda text: text.rpartition(_THOUGHT)[2].strip(),
}


class Piece(NamedTuple):
    """A piece of a prompt; ``given``: it is a message's text, not the template's."""

    text: str
    given: bool


class Turns:
    """A template as data, for chats that end with a message of the user.

    The prompt is what stands before each message and the converted text of the message, and then the end. What
    stands there depends on the role and on the role of the message before, which is "" for the first one.
    """

    def __init__(self, document: Any) -> None:
        """Reads what ``turns`` of ``tokenizer/chat.json`` holds.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it isn't what FORMAT.md says.
        """
        self._end = _string(document["end"])
        self._turns = {
            (last, role): (_string(turn["before"]), CONTENTS[turn["content"]])
            for last, roles in document["after"].items()
            for role, turn in roles.items()
        }

    def pieces(self, messages: Sequence[Message]) -> Optional[List[Piece]]:
        """The prompt in pieces; None: the turns don't say how these messages are written."""
        last, found = "", []
        for message in messages:
            role, text = message.get("role"), message.get("content")
            if set(message) != {"role", "content"} or not isinstance(text, str) or not text.strip():
                return None
            turn = self._turns.get((last, str(role)))
            if turn is None:
                return None
            last = str(role)
            found += [Piece(turn[0], False), Piece(turn[1](text), True)]
        return [*found, Piece(self._end, False)] if last == "user" else None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


class Chat(Unique):
    """A bundle's chat template."""

    def __init__(self, name: str, document: Any) -> None:
        """Reads what ``tokenizer/chat.json`` holds; a template without turns is compiled when it is needed.

        Raises:
            TokenizerError: it isn't what FORMAT.md says.
        """
        self._name = name
        self._jinja: Optional[JinjaTemplate] = None
        self._takes_tools: Optional[bool] = None
        self._tool_format: Optional[ToolFormat] = None
        try:
            self._source = _string(document["template"])
            self._tokens = {key: _string(text) for key, text in document["special_tokens"].items()}
            self._turns = Turns(document["turns"]) if "turns" in document else None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            text = "{}: its {} isn't what FORMAT.md says".format(name, CHAT_FILE)
            raise TokenizerError(text) from None

    @property
    def has_turns(self) -> bool:
        """Whether the template is data, and messages are pieces of their own in most chats."""
        return self._turns is not None

    def pieces(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> List[Piece]:
        """The prompt after which the model answers, in pieces.

        Args:
            messages: Objects of ``role`` and ``content``, and what else the template may read.
            tools: Tools that the model may call, as OpenAI's interface describes them.

        Raises:
            InputError: there is no message, or the template refuses them.
            TokenizerError: it fails on them, or doesn't write tools, calls or their results. Or it needs the
                package jinja2, which isn't installed.
        """
        if not messages or not all(isinstance(message, Mapping) for message in messages):
            hint = 'such as [{"role": "user", "content": "Hello"}]'
            raise InputError("a chat needs messages", hint)
        found = None if self._turns is None or tools else self._turns.pieces(messages)
        if found is None:
            text = self._render(messages, tools)
            if tools and not self.takes_tools:
                hint = "leave the tools out, or use a model that was trained with tools"
                raise TokenizerError(
                    "{}: its chat template takes no tools".format(self._name), hint
                )
            for what, written in _tool_texts(messages):
                if not any(form in text for form in (written, _escape(written))):
                    error = "{}: its chat template doesn't write {}"
                    raise TokenizerError(error.format(self._name, what))
            found = [Piece(text, False)]
        return found

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt as one text; raises what ``pieces`` does."""
        return "".join(piece.text for piece in self.pieces(messages))

    @property
    def takes_tools(self) -> bool:
        """Whether the template tells the model of tools; raises what ``pieces`` does."""
        if self._takes_tools is None:
            self._takes_tools = has_tools(self._render)
        return self._takes_tools

    def tool_format(self, ends: Sequence[str] = ()) -> ToolFormat:
        """The form in which the model calls tools.

        Args:
            ends: Texts of tokens that end an answer.

        Raises:
            TokenizerError: the template writes calls in another form than JSON, or none; or see ``pieces``.
        """
        if self._tool_format is None:
            with contextlib.suppress(InputError):  # it has no place for calls
                self._tool_format = find_tool_format(self._render, ends)
            if self._tool_format is None:
                text = "{}: its chat template writes no calls of tools as JSON objects"
                raise TokenizerError(text.format(self._name))
        return self._tool_format

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        if self._jinja is None:
            self._jinja = JinjaTemplate(self._name, self._source, self._tokens)
        return self._jinja.render(messages, tools)


def _tool_texts(messages: Sequence[Message]) -> Iterator[Tuple[str, str]]:
    """What a prompt must hold of calls of tools and their results, each with its name for an error."""
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                yield "calls of tools", str(function.get("name"))
        if message.get("role") == "tool":
            yield "results of tools", str(message.get("content")).strip()


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def open_chat(model: "OpenBundle") -> Chat:
    """The chat template of a bundle.

    Raises:
        TokenizerError: it has none, or one that isn't what FORMAT.md says.
        DamagedBundleError: the file differs from its recorded hash.
    """
    name = model.manifest.name
    if CHAT_FILE not in model.manifest.files:
        raise TokenizerError(
            "{}: this bundle holds no chat template".format(name),
            "write the turns as the model expects them, as one text",
        )
    with os.fdopen(model.open_file(CHAT_FILE), "rb") as stream:
        data = stream.read(MAX_CHAT_BYTES)
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    return Chat(name, document)


class ChatEncoder(Unique):
    """Makes token ids of prompts. A special token that stands in a message is text, not that token."""

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer`` is one of the package tokenizers."""
        added = tokenizer.get_added_tokens_decoder().values()
        special = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._tokenizer = tokenizer
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        # Made when a message first holds a special token.
        self._plain: Any = None

    def find_special(self, text: str) -> List[int]:
        """The special tokens that a text holds."""
        return [self._tokenizer.token_to_id(mark) for mark in self._special.findall(text)]

    def encode(self, pieces: Sequence[Piece], messages: Sequence[Message] = ()) -> List[int]:
        """Token ids of a prompt.

        Args:
            pieces: The prompt, as ``Chat.pieces`` returns it.
            messages: Messages whose texts aren't pieces of their own, and may hold no special token.

        Raises:
            InputError: a message holds a special token, which can't be read as text here.
        """
        for message in messages:
            found = self._special.search(json.dumps(message, ensure_ascii=False, default=str))
            if found is not None:
                raise InputError(
                    "a message holds the special token {!r}".format(found.group()),
                    "it is read as text in chats without blank messages and without other fields than "
                    "role and content",
                )
        bad = [piece.text for piece in pieces if piece.given and self._special.search(piece.text)]
        if not bad:
            return _encode(self._tokenizer, "".join(piece.text for piece in pieces))
        # Whether a prompt is read in parts as in one: those whose first word is written otherwise aren't.
        neutral = [Piece("x", True) if piece.text in bad else piece for piece in pieces]
        whole = _encode(self._tokenizer, "".join(piece.text for piece in neutral))
        if self._encode_parts(neutral) != whole:
            found = self._special.search(bad[0])
            raise InputError(
                "a message holds the special token {!r}, which this tokenizer can't read as text".format(
                    "" if found is None else found.group()
                ),
                "take it out of the message",
            )
        return self._encode_parts(pieces)

    def _encode_parts(self, pieces: Sequence[Piece]) -> List[int]:
        """The parts between the template's own special tokens each for itself, where none is one."""
        if self._plain is None:
            plain = type(self._tokenizer).from_str(self._tokenizer.to_str())
            plain.encode_special_tokens = True
            self._plain = plain
        ids: List[int] = []
        part = ""
        for piece in pieces:
            rest = piece.text
            while not piece.given:
                found = self._special.search(rest)
                if found is None:
                    break
                ids += _encode(self._plain, part + rest[: found.start()])
                ids.append(self._tokenizer.token_to_id(found.group()))
                part, rest = "", rest[found.end() :]
            part += rest
        return ids + _encode(self._plain, part)


def _encode(tokenizer: Any, text: str) -> List[int]:
    # Unlike encode() this one lets other threads go on. A template writes special tokens itself.
    ids: List[int] = tokenizer.encode_batch([text], add_special_tokens=False)[0].ids
    return ids
