"""New text as it is made: whole characters, ended by texts."""

from typing import TYPE_CHECKING, Any, Collection, Optional, Sequence

from ..base.errors import InputError
from ..base.lifetime import Unique
from ..format.document import shorten
from .decoder import TextDecoder

if TYPE_CHECKING:
    from ..generation.stream import TokenStream


class StopTexts:
    """Gives text out as far as no stop can have begun in it."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises InputError where ``stops`` aren't texts: an empty one would end every text at once."""
        listed = isinstance(stops, (list, tuple))
        if not listed or not all([isinstance(stop, str) and stop for stop in stops]):
            text = "stop_text is {}, must be a list of texts that aren't empty"
            raise InputError(text.format(shorten(repr(stops))))
        self._stops = stops
        self._text = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Takes ``text``, and returns all that can be given out now."""
        self._text += text
        positions = [at for at in (self._text.find(stop) for stop in self._stops) if at >= 0]
        if positions:
            self.stopped = True
            output, self._text = self._text[: min(positions)], ""
            return output
        keep = max((find_overlap(self._text, stop) for stop in self._stops), default=0)
        cut = len(self._text) - keep
        output, self._text = self._text[:cut], self._text[cut:]
        return output

    def rest(self) -> str:
        """The characters that were held back and are no stop after all."""
        return self._text


def find_overlap(text: str, stop: str) -> int:
    """The number of characters at the end of ``text`` that may begin a stop."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


class TextStream(Unique):
    """The new text of a prompt, piece by piece as its tokens are made; an iterator of strings.

    A piece has whole characters and may be empty, as there is one for each token. A text that ends the new
    one isn't part of it, nor is the token that does.

    Attributes:
        tokens: Stream of the tokens behind the text.
        text: Text so far.
        finish_reason: None until it ended; then "eos", "stop", "length" or "closed".
    """

    def __init__(
        self,
        tokenizer: Any,
        tokens: "TokenStream",
        stops: Sequence[str] = (),
        special: Collection[int] = (),
    ) -> None:
        """``tokenizer`` is one of the package tokenizers; ``stops`` are texts at which the new one ends.

        ``special`` are the special tokens that are written, too; one that ends the text never is.
        """
        self.tokens = tokens
        self.text = ""
        self._decoder = TextDecoder(tokenizer, tokens.prompt, special)
        self._stops = StopTexts(stops)

    @property
    def finish_reason(self) -> Optional[str]:
        return self.tokens.finish_reason

    def read(self, token: int) -> str:
        """The piece that a token of the stream adds; for those who ask ``tokens`` for it themselves."""
        tokens, stops = self.tokens, self._stops
        new = "" if tokens.finish_reason == "eos" else self._decoder.add(token)
        if tokens.finish_reason is not None:
            new += self._decoder.rest()
        new = stops.add(new)
        if stops.stopped:
            tokens.finish_reason = "stop"
        elif tokens.finish_reason is not None:
            new += stops.rest()
        self.text += new
        return new

    def close(self) -> None:
        """Ends the stream."""
        self.tokens.close()

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> str:
        return self.read(next(self.tokens))
