"""Prompts as people write them, a text or the messages of a chat, as token ids."""

from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

from ..base.errors import EdgecompileError, GenerationError, InputError
from ..base.lifetime import Unique
from ..format.manifest.schema import GenerationSpec
from .chat import Chat, ChatEncoder, Message, open_chat
from .encoder import open_tokenizer
from .grammar import Grammars
from .tools import ToolFormat

if TYPE_CHECKING:
    from ..open.bundle import OpenBundle

Prompt = Union[str, Sequence[Message]]
#: A number of new tokens: as many as the context has room for.
ALL = -1


class Prompts(Unique):
    """A language model's tokenizer, and its chat template once a chat asks for it."""

    def __init__(self, bundle: "OpenBundle") -> None:
        """Reads the tokenizer.

        Raises:
            GenerationError: the model is no language model.
            TokenizerError: see ``open_tokenizer``.
        """
        spec = bundle.manifest.generation
        if spec is None:
            text = "{} is not a language model, so it cannot generate text"
            hint = "build it as a language model, for the task causal-lm"
            raise GenerationError(text.format(bundle.path), hint)
        self.spec: GenerationSpec = spec
        self.tokenizer: Any = open_tokenizer(bundle)
        self._bundle = bundle
        self._chat: Optional[Chat] = None
        self._encoder = ChatEncoder(self.tokenizer)
        vocabulary = bundle.manifest.outputs[0].shape[1]
        assert isinstance(vocabulary, int)
        #: What makes constraints of grammars.
        self.grammars = Grammars(self.tokenizer, vocabulary, spec.eos)

    def read(
        self,
        prompt: Prompt,
        judge: Optional[Callable[[int], None]] = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> List[int]:
        """The token ids of a text or of a chat.

        Args:
            prompt: Text, or messages.
            judge: Function that gets the number of characters before they become tokens, and may raise.
            tools: Tools that the model may call in a chat, as OpenAI's interface describes them.

        Raises:
            InputError: it holds no tokens, or what can't be encoded; or the template refuses the chat.
            TokenizerError: the bundle has no chat template that can be used.
        """
        chat: Optional[Chat] = None
        given: Any = prompt
        if isinstance(prompt, str):
            text = prompt
        elif isinstance(given, (bytes, bytearray)) or not isinstance(given, Sequence):
            error = "the prompt is a {}, must be a string or a list of messages"
            raise InputError(error.format(type(prompt).__name__))
        else:
            chat = self._open_chat()
            pieces = chat.pieces(prompt, tools)
            text = "".join(piece.text for piece in pieces)
        if judge is not None:
            judge(len(text))
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError("the prompt has half of a surrogate pair") from None
        if chat is None or isinstance(prompt, str):
            # Unlike encode() this one lets other threads go on.
            ids: List[int] = self.tokenizer.encode_batch([text])[0].ids
        else:
            unlike = chat.has_turns and not any(piece.given for piece in pieces)
            ids = self._encoder.encode(pieces, [*prompt, *tools] if unlike else ())
        if not ids:
            raise InputError("the prompt holds no tokens")
        return ids

    def tool_format(self) -> "Tuple[ToolFormat, List[int]]":
        """The form in which the model calls tools, and the special tokens that are part of it.

        Raises:
            TokenizerError: see ``Chat.tool_format``.
        """
        ends = [self.tokenizer.id_to_token(token) or "" for token in self.spec.eos]
        form = self._open_chat().tool_format(ends)
        return form, self._encoder.find_special(form.before + form.after)

    def _open_chat(self) -> Chat:
        if self._chat is None:
            self._chat = open_chat(self._bundle)
        return self._chat

    def find_marks(
        self, prompt: Prompt, ids: Sequence[int], tools: Sequence[Mapping[str, Any]] = ()
    ) -> List[int]:
        """Where the next turn of a chat parts from the prompt of this one, if not at its end.

        Templates write the beginning of an answer otherwise once it is given: without the place for thoughts.

        Args:
            prompt: Text, or messages.
            ids: Their token ids.
            tools: Tools that they were written with.
        """
        if not _is_chat(prompt):
            return []
        answer = {"role": "assistant", "content": "x"}
        return _part(self, ids, [*prompt, answer, {"role": "user", "content": "x"}], tools)

    def find_last_message(
        self, prompt: Prompt, ids: Sequence[int], tools: Sequence[Mapping[str, Any]] = ()
    ) -> List[int]:
        """Where a chat with another last message parts from this one; the arguments are those of ``find_marks``."""
        if not _is_chat(prompt):
            return []
        last: Any = prompt[-1]
        other = "y" if str(last.get("content")).startswith("x") else "x"
        return _part(self, ids, [*prompt[:-1], {**last, "content": other}], tools)


def _is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)


def _part(
    prompts: Prompts, ids: Sequence[int], chat: Prompt, tools: Sequence[Mapping[str, Any]]
) -> List[int]:
    """Where another chat parts from a prompt, if neither at its beginning nor at its end."""
    try:
        other = prompts.read(chat, None, tools)
    except EdgecompileError:
        return []  # the template may refuse to go on so
    common = next((i for i, (a, b) in enumerate(zip(ids, other)) if a != b), len(ids))
    return [common] if 0 < common < len(ids) else []


def count_new_tokens(spec: GenerationSpec, prompt: Sequence[int], asked: Optional[int]) -> int:
    """The largest number of new tokens behind a prompt.

    Args:
        spec: Generation of the manifest.
        prompt: Token ids of the prompt.
        asked: Number that was asked for. None: the model's own number, as the context has room, and
            without one ``ALL``.
    """
    room = max(1, spec.max_context - len(spec.start or prompt))  # an encoder's source takes no room
    if asked is None:
        return min(int(spec.defaults.get("max_new_tokens", room)), room)
    return room if asked == ALL else asked
