"""Finds a chat template's turns: what it writes before each message, by its role and the role before.

The template is a program. Probes show what it writes, and conversations that are drawn prove that it writes nothing
else. A template of another kind, or with a date in it, has no turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.text.chat import CONTENTS, Turns
from edgecompile.runtime.text.jinja import JinjaTemplate

Message = dict[str, str]
Render = Callable[[Sequence[Message]], str]
_PROBES = ("u", "su", "uau", "suau", "uauau", "suauau", "uu", "au", "sau", "uaau")
_ROLES = {"s": "system", "u": "user", "a": "assistant"}
#: Texts that templates have been seen to change.
_TEXTS = (
    "Hello", " Hi ", "", "\n\nTwo\n\nlines\n", "{{ 1 + 1 }} {% if x %}", "<think>\nso\n</think>\n\nYes", "</think>",
    "naïve 😀 文", "<b>&amp;</b>", "'quotes' \"twice\" \\n", "\tx\r\n", "<|im_end|>", "a" * 2000, "[INST] x [/INST]",
)  # fmt: skip
#: Texts that tell conversions apart.
_CHANGED = (" \n Qx \n ", "<think>\nQy\n</think>\n\nQx\n", "\n\nQx")
_DRAWN = 300
_CLOCKS = (datetime(2026, 3, 4, 5, 6, 7), datetime(2031, 11, 12, 13, 14, 15))


def find_turns(source: str, tokens: Mapping[str, str]) -> dict[str, Any] | None:
    """The ``turns`` of ``tokenizer/chat.json`` as FORMAT.md has them; None: the template is of another kind.

    Args:
        source: Template, a program in Jinja's language.
        tokens: Special tokens that it may name.
    """
    try:
        renders = [JinjaTemplate("", source, tokens, _stopped(at)).render for at in _CLOCKS]
    except EdgecompileError:
        return None
    found = _probe(renders[0])
    if found is None:
        return None
    turns = Turns(found)
    drawn = random.Random(0)
    for index in range(_DRAWN):
        messages = _draw(drawn)
        pieces = turns.pieces(messages)
        if pieces is None:
            continue  # the device asks the template itself
        if "".join(piece.text for piece in pieces) != _try(renders[index % 2], messages):
            return None
    return found


def _stopped(moment: datetime) -> Callable[[], datetime]:
    return lambda: moment


def _probe(render: Render) -> dict[str, Any] | None:
    """What the template writes around texts that occur nowhere else."""
    after: dict[str, dict[str, dict[str, str]]] = {}
    ends = set()
    for roles in _PROBES:
        messages = _write(roles, [f"Qx{index}Zy" for index in range(len(roles))])
        text = _try(render, messages)
        if text is None:
            continue
        pieces = _split(text, messages)
        if pieces is None:
            continue  # a message is left out
        *starts, end = pieces
        ends.add(end)
        for at, start in enumerate(starts):
            last = messages[at - 1]["role"] if at else ""
            content = _conversion(render, roles, at)
            turn = {"before": start, "content": content or ""}
            if (
                content is None
                or after.setdefault(last, {}).setdefault(_ROLES[roles[at]], turn) != turn
            ):
                return None
    return {"after": after, "end": ends.pop()} if len(ends) == 1 else None


def _split(text: str, messages: Sequence[Message]) -> list[str] | None:
    """What stands before, between and behind the texts of messages; None: one is missing."""
    pieces = []
    for message in messages:
        start, found, text = text.partition(message["content"])
        if not found:
            return None
        pieces.append(start)
    return [*pieces, text]


def _conversion(render: Render, roles: str, at: int) -> str | None:
    """The name of the conversion that explains what becomes of the text of a message."""

    def written(text: str) -> str | None:
        return _try(
            render, _write(roles, [text if index == at else "Qz" for index in range(len(roles))])
        )

    plain = written("Qx")
    for name, convert in CONTENTS.items():
        if all(plain and written(x) == plain.replace("Qx", convert(x)) for x in _CHANGED):
            return name
    return None


def _draw(drawn: random.Random) -> list[Message]:
    roles = drawn.choice(("", "s")) + "ua" * drawn.randrange(4) + "u"
    return _write(roles, [drawn.choice(_TEXTS) for _ in roles])


def _write(roles: str, texts: Sequence[str]) -> list[Message]:
    return [
        {"role": _ROLES[role], "content": text} for role, text in zip(roles, texts, strict=True)
    ]


def _try(render: Render, messages: Sequence[Message]) -> str | None:
    """What the template makes of the messages; None where it refuses them."""
    try:
        return render(messages)
    except EdgecompileError:
        return None
