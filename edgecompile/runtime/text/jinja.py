"""Chat templates as programs in Jinja's language, rendered as transformers does.

They run in Jinja's sandbox, and change nothing that they are given.
"""

import json
from datetime import datetime
from typing import Any, Callable, Mapping, NoReturn, Sequence

from ..base.errors import InputError, TokenizerError
from ..format.document import shorten

#: Characters of what a template says of messages that it refuses.
_LONGEST = 500


class JinjaTemplate:
    """A compiled template with the special tokens that it may name."""

    def __init__(
        self,
        name: str,
        source: str,
        tokens: Mapping[str, str],
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compiles it.

        Args:
            name: Name of the model, for errors.
            source: The program.
            tokens: Special tokens by their names in the template, such as ``bos_token``.
            clock: Source of the date that a template may write.

        Raises:
            TokenizerError: it is no template, or the package jinja2 isn't installed.
        """
        self._name, self._tokens = name, dict(tokens)
        self._template = _compile(name, source, clock)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The prompt after which the model answers.

        Args:
            messages: Messages of the chat.
            tools: Tools that the model may call, as OpenAI's interface describes them.

        Raises:
            InputError: the template refuses the messages.
            TokenizerError: it fails on them.
        """
        try:
            text: str = self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except _Refused as error:
            text = "the chat template of {} refuses these messages: {}"
            raise InputError(shorten(text.format(self._name, error), _LONGEST)) from None
        except Exception as error:  # whatever a program may do wrong
            text = "the chat template of {} fails on these messages: {}: {}"
            text = text.format(self._name, type(error).__name__, error)
            raise TokenizerError(shorten(text, _LONGEST)) from None
        return text


class _Refused(Exception):
    """Raised by a template's ``raise_exception``."""


def _compile(name: str, source: str, clock: Callable[[], datetime]) -> Any:
    try:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise TokenizerError(
            "{}: its chat template needs the Python package jinja2, which isn't installed here".format(
                name
            ),
            "pip install jinja2; or write the turns as the model expects them, as one text",
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
    environment.globals.update(
        raise_exception=_refuse, strftime_now=lambda form: clock().strftime(form)
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        text = "{}: its chat template can't be read: {}".format(name, error)
        raise TokenizerError(shorten(text, _LONGEST)) from None


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Unlike Jinja's own, without HTML's escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)
