"""TextGenerator: the methods to ask for new text, shared by a model and a session."""

from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence

from ..base.arguments import check_callback
from ..base.errors import InputError
from ..generation.generator import Generator
from ..generation.options import Options

if TYPE_CHECKING:
    from ..generation.stream import TokenStream
    from .chat import Message
    from .prompts import Prompt, Prompts
    from .stream import TextStream


class TextGenerator(Generator):
    """Makes new text behind a text or a chat, and new tokens behind token ids."""

    def _prompts(self) -> "Prompts":
        raise NotImplementedError

    def complete(
        self,
        text: str,
        *,
        on_text: Optional[Callable[[str], Any]] = None,
        stop_text: Sequence[str] = (),
        **options: Any,
    ) -> str:
        """The text that follows ``text``; needs the Python package tokenizers.

        Args:
            text: Beginning of the text.
            on_text: Function that gets each piece of new text as soon as it is made; ends the text by
                returning False.
            stop_text: Texts at which the new one ends; they aren't part of it.
            options: Options of ``generate`` from ``max_new_tokens`` to ``constraint``. Without
                ``max_new_tokens`` the text may fill the context, or have as many as the model's author says.

        Raises:
            TokenizerError: the bundle holds no tokenizer; a TokenizersMissingError where the package
                isn't installed.
            ContextLengthError, InputError, GenerationError, NativeError, ModelClosedError: see ``generate``.
        """
        check_callback("on_text", on_text)
        given: Any = text
        if not isinstance(given, str):
            raise InputError("text is a {}, must be a string".format(type(text).__name__))
        return _write(self.stream_text(text, stop_text=stop_text, **options), on_text)

    def chat(
        self,
        messages: "Sequence[Message]",
        *,
        on_text: Optional[Callable[[str], Any]] = None,
        stop_text: Sequence[str] = (),
        **options: Any,
    ) -> str:
        """The model's answer in a chat, by the chat template of the bundle.

        Where the template is data in the bundle, a special token that stands in a message is text. A session runs only what is new in the messages.

        Args:
            messages: Objects of ``role`` ("system", "user" or "assistant") and ``content``.
            on_text: as in ``complete``.
            stop_text: as in ``complete``.
            options: as in ``complete``.

        Raises:
            InputError: the template refuses the messages; or see ``generate``.
            TokenizerError: the bundle holds no chat template, or one that needs the package jinja2,
                which isn't installed; or see ``complete``.
            ContextLengthError, GenerationError, NativeError, ModelClosedError: see ``generate``.
        """
        check_callback("on_text", on_text)
        given: Any = messages
        if isinstance(given, str):
            raise InputError(
                "messages is a str, must be a list of messages", "complete() takes a text"
            )
        return _write(self.stream_text(messages, stop_text=stop_text, **options), on_text)

    def stream_text(
        self, prompt: "Prompt", *, stop_text: Sequence[str] = (), **options: Any
    ) -> "TextStream":
        """Like ``complete`` for a text and ``chat`` for messages, as an iterator of the pieces of new text."""
        from .prompts import count_new_tokens
        from .stream import TextStream

        prompts = self._prompts()
        ids = prompts.read(prompt)
        chosen = Options(**options)
        most = count_new_tokens(prompts.spec, ids, chosen.max_new_tokens)
        tokens = self.stream_prompt(prompt, ids, chosen._replace(max_new_tokens=most))
        return TextStream(prompts.tokenizer, tokens, stop_text)

    def stream_prompt(
        self,
        prompt: "Prompt",
        ids: List[int],
        options: Options,
        tools: "Sequence[Mapping[str, Any]]" = (),
    ) -> "TokenStream":
        """``stream`` of a text or a chat whose token ids are known."""
        return self._stream(ids, None, options)


def _write(stream: "TextStream", on_text: Optional[Callable[[str], Any]]) -> str:
    for piece in stream:
        if piece and on_text is not None and on_text(piece) is False:
            stream.close()
    return stream.text
