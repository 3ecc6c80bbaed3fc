"""A text that a client wants to be gone on from, and a piece of what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgecompile.runtime.text.chat import Message
from edgecompile.runtime.text.tools import Call


@dataclass(frozen=True)
class Piece:
    """A piece of a text: its new characters, the number of tokens so far, and why the text ended or None.

    ``calls`` are those of tools behind the characters.
    """

    text: str
    tokens: int
    finish_reason: str | None
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Tools:
    """Tools that a chat's answer may call.

    Attributes:
        described: the tools as the client describes them, for the template.
        schemas: schemas of the arguments by the tools' names.
        must: names of those of which the answer is a call; none: the model is free.
        several: whether it may call more than one.
    """

    described: tuple[dict[str, Any], ...]
    schemas: dict[str, Any]
    must: tuple[str, ...]
    several: bool


@dataclass(frozen=True)
class Generation:
    """A text to go on from.

    Attributes:
        prompt: a text, token ids, or the messages of a chat.
        stop: texts at which the new one ends; they aren't part of it.
        options: Options of ``Model.stream``; ``max_new_tokens`` may be ``ALL``. None is the number of the
            model's own generation_config.json, and without one ``ALL``.
        grammar: arguments of ``make_grammar``, of which the new text is one; none: it is free.
        tools: tools that an answer of a chat may call.
    """

    prompt: str | Sequence[int] | Sequence[Message]
    stop: tuple[str, ...]
    options: dict[str, Any]
    grammar: Mapping[str, Any] = field(default_factory=dict)
    tools: Tools | None = None

    @property
    def described(self) -> Sequence[dict[str, Any]]:
        """The tools for the template."""
        return () if self.tools is None else self.tools.described
