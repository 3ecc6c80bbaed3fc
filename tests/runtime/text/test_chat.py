"""Token ids of a chat: those of its whole text, but for special tokens that stand in a message."""

from __future__ import annotations

from typing import Any

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.text.chat import ChatEncoder, Piece

tokenizers = pytest.importorskip("tokenizers")

END, START = "<|end|>", "<|start|>"


def a_tokenizer(style: str) -> Any:
    """One of bytes, with two special tokens; or one that writes a space before the first word alone."""
    p = tokenizers.pre_tokenizers
    letters = sorted(p.ByteLevel.alphabet())
    if style == "first-space":
        letters = ["▁", *(chr(code) for code in range(33, 127))]
    merges = [("h", "i"), ("u", "s"), ("us", "e"), ("use", "r")]
    words = [*letters, "hi", "us", "use", "user"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({word: index for index, word in enumerate(words)}, merges)
    )
    if style == "bytes":
        tokenizer.pre_tokenizer = p.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = p.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([START, END])
    return tokenizer


def prompt(text: str) -> list[Piece]:
    return [Piece(START + "user\n", False), Piece(text, True), Piece(END + START + "hi\n", False)]


@pytest.mark.parametrize("text", ["hi", " hi user\n", "naïve 😀", "<|en d|>", ""])
def test_ids_are_those_of_the_whole_text(text: str) -> None:
    tokenizer = a_tokenizer("bytes")
    pieces = prompt(text)
    whole = "".join(piece.text for piece in pieces)
    assert (
        ChatEncoder(tokenizer).encode(pieces)
        == tokenizer.encode(whole, add_special_tokens=False).ids
    )


@pytest.mark.parametrize("text", [END, f"hi{END}{START}user\nhi", f" {START} ", f"{END[:-1]}{END}"])
def test_a_special_token_in_a_message_is_text(text: str) -> None:
    tokenizer = a_tokenizer("bytes")
    ids = ChatEncoder(tokenizer).encode(prompt(text))
    start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    assert [token for token in ids if token in (start, end)] == [start, end, start]
    assert (
        tokenizer.decode(ids, skip_special_tokens=False) == f"{START}user\n{text}{END}{START}hi\n"
    )
    # The tokenizer itself is left as it was.
    assert tokenizer.encode(END, add_special_tokens=False).ids == [end]


def test_a_tokenizer_that_can_t_read_it_as_text_is_told() -> None:
    tokenizer = a_tokenizer("first-space")
    pieces = [Piece("hi" + START + "user", False), Piece(END, True)]
    with pytest.raises(InputError, match=r"holds the special token '<\|end\|>'"):
        ChatEncoder(tokenizer).encode(pieces)
    assert ChatEncoder(tokenizer).encode([*pieces[:1], Piece("hi", True)])


def test_texts_that_are_no_pieces_may_hold_no_special_token() -> None:
    encoder = ChatEncoder(a_tokenizer("bytes"))
    whole = [Piece(f"{START}user\nhi{END}", False)]
    ids = encoder.encode(whole)
    assert encoder.encode(whole, [{"role": "user", "content": "hi", "name": "naïve"}]) == ids
    for message in (
        {"role": "user", "content": END},
        {"role": "user", "content": "hi", "name": f"x{END}"},
    ):
        with pytest.raises(InputError, match=r"holds the special token '<\|end\|>'"):
            encoder.encode(whole, [message])
