"""From new tokens to text, piece by piece: the text that follows the prompt's, spaces included."""

from typing import Any, Collection, List, Sequence

#: What stands for bytes that are no character, or not yet a whole one.
_HALF = "\ufffd"
#: So many of them are given out before a further one ends: no character is waited for there.
_MANY = _HALF * 16
#: Tokens of the prompt that are decoded with the first new ones.
_BEFORE = 8
#: The longest character has so many bytes, of which each may be a token.
_BYTES = 4


class TextDecoder:
    """Decodes the tokens of one text as they come.

    A token is decoded together with those before it, as many tokenizers write it otherwise at the start of
    a text: Llama's drop the space in front of a first word. So all pieces together are the end of the decoded
    prompt and new tokens, behind the decoded prompt. Special tokens are left out, but for those that are asked for.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], kept: Collection[int] = ()) -> None:
        """``tokenizer`` is one of the package tokenizers, ``prompt`` the token ids before the new ones.

        ``kept`` are the special tokens that are written.
        """
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder() if kept else {}
        self._left_out = {at for at, token in added.items() if token.special} - set(kept)
        self._skip = not kept
        size = _BEFORE
        # Special tokens alone have no text for the first word to follow.
        while size < len(prompt) and not self._decode(prompt[-size:]):
            size *= 4
        # Llama's tokenizers make nothing of a row of bytes that begins within a character.
        for further in range(_BYTES):
            if not self._decode(prompt[-size - further :]).startswith(_HALF):
                size += further
                break
        self._ids: List[int] = list(prompt[-size:])
        #: How many of the ids belong to text that has been given out.
        self._done = len(self._ids)

    def add(self, token: int) -> str:
        """The characters that ``token`` completes; "" where it has only a part of the next one."""
        self._ids.append(token)
        return self._take(whole=True)

    def rest(self) -> str:
        """The text of tokens that no further one completes, at the end of the text."""
        return self._take(whole=False)

    def _take(self, whole: bool) -> str:
        before, text = self._decode(self._ids[: self._done]), self._decode(self._ids)
        if whole and text.endswith(_HALF) and not text.endswith(_MANY):
            return ""
        # The prompt may end within a character: what stood for its first bytes goes.
        while not text.startswith(before):
            before = before[:-1]
        new = text[len(before) :]
        if new:
            self._ids = self._ids[self._done :]
            self._done = len(self._ids)
        return new

    def _decode(self, ids: Sequence[int]) -> str:
        read = [token for token in ids if token not in self._left_out]
        text: str = self._tokenizer.decode(read, skip_special_tokens=self._skip)
        return text
