"""The text of a chat, by the template that a bundle brings; as transformers renders it.

Templates are programs in Jinja's language. They run in its sandbox, and change nothing that they are given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from edgecompile.runtime import Model
from edgecompile.runtime.format.text import CHAT_FILE, MAX_CHAT_BYTES
from edgecompile.server.errors import BadRequest, Unprocessable

Message = Mapping[str, Any]
#: Characters of what a template says of messages that it refuses.
_LONGEST = 500


class Chat:
    """A template with the special tokens that it may name."""

    def __init__(self, name: str, template: str, tokens: Mapping[str, str]) -> None:
        """Compiles it.

        Raises:
            Unprocessable: it is none, or the package jinja2 isn't installed.
        """
        self._name, self._tokens = name, dict(tokens)
        self._template = _compile(name, template)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt after which the model answers.

        Raises:
            BadRequest: the template refuses the messages.
            Unprocessable: it fails on them.
        """
        try:
            text: str = self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except _Refused as error:
            text = f"the chat template of {self._name} refuses these messages: {error}"
            raise BadRequest(text[:_LONGEST]) from None
        except Exception as error:  # whatever a program may do wrong
            kind = type(error).__name__
            text = f"the chat template of {self._name} fails on these messages: {kind}: {error}"
            raise Unprocessable(text[:_LONGEST]) from None
        return text


class _Refused(Exception):
    """Raised by a template's ``raise_exception``."""


def open_chat(model: Model) -> Chat:
    """The chat template of a bundle.

    Raises:
        Unprocessable: it has none, or one that can't be used.
    """
    name = model.manifest.name
    if CHAT_FILE not in model.manifest.files:
        raise Unprocessable(
            f"{name}: this bundle holds no chat template\nhint: write the turns as the model expects "
            "them, and ask /v1/completions"
        )
    with os.fdopen(model.open_file(CHAT_FILE), "rb") as stream:
        data = stream.read(MAX_CHAT_BYTES + 1)
    try:
        document = json.loads(data[:MAX_CHAT_BYTES])
        template, tokens = document["template"], document["special_tokens"]
        if not all(isinstance(item, str) for item in (template, *tokens, *tokens.values())):
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Unprocessable(f"{name}: its {CHAT_FILE} isn't what FORMAT.md says") from None
    return Chat(name, template, tokens)


def _compile(name: str, source: str) -> Any:
    try:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise Unprocessable(
            f"{name}: chats need the Python package jinja2, which isn't installed here\n"
            "hint: pip install 'edgecompile-server[text]', or ask /v1/completions"
        ) from None

    class Generation(jinja2.ext.Extension):
        """Marks what an assistant wrote, for training; nothing here."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        text = f"{name}: its chat template can't be read: {error}"
        raise Unprocessable(text[:_LONGEST]) from None


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Unlike Jinja's own, without HTML's escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
