"""The text behind a prompt, piece by piece: the pieces are the end of the text that all tokens make."""

from __future__ import annotations

import random
from typing import Any

import pytest

from edgecompile.runtime.text.decoder import TextDecoder

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["▁The", "▁capital", "▁of", "▁France", "▁is", "▁Paris", ".", "▁", "▁▁", "ris", "字", "\n"]
VOCABULARY = ["<s>", *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
SPACE = " "


def ids(*tokens: str) -> list[int]:
    return [VOCABULARY.index(token) for token in tokens]


def spelled(text: str) -> list[int]:
    """A text in tokens of a byte each."""
    return ids(*(f"<0x{byte:02X}>" for byte in text.encode()))


def a_tokenizer(style: str) -> Any:
    """One with the decoder of a family of models, and <s> as its special token."""
    d = tokenizers.decoders
    byte_level = style == "bytes"
    words = VOCABULARY
    if byte_level:
        letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        words = ["<s>", *(word.replace("▁", "Ġ").replace("\n", "Ċ") for word in WORDS), *letters]
        words[words.index("字")] = "åŃĹ"
    model = tokenizers.models.BPE({w: i for i, w in enumerate(dict.fromkeys(words))}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["<s>"])
    steps = [d.Replace("▁", SPACE), d.ByteFallback(), d.Fuse()]
    tokenizer.decoder = {
        "llama": d.Sequence([*steps, d.Strip(SPACE, 1, 0)]),
        "gemma": d.Sequence(steps),
        "metaspace": d.Metaspace(prepend_scheme="first"),
        "bytes": d.ByteLevel(),
        "words": d.WordPiece(),
    }[style]
    return tokenizer


def pieces(tokenizer: Any, prompt: list[int], new: list[int]) -> list[str]:
    decoder = TextDecoder(tokenizer, prompt)
    return [*(decoder.add(token) for token in new), decoder.rest()]


@pytest.mark.parametrize("style", ["llama", "gemma", "metaspace", "bytes", "words"])
def test_pieces_are_the_end_of_the_whole_text(style: str) -> None:
    """For prompts and texts of words, spaces, special tokens and whole characters, in any order."""
    tokenizer, draw = a_tokenizer(style), random.Random(1)
    for _ in range(300):
        prompt = [0, *draw.choices(range(len(WORDS) + 1), k=draw.choice([0, 1, 5, 40]))]
        prompt += [0] * draw.choice([0, 0, 1, 20])
        new = draw.choices(range(len(WORDS) + 1), k=12)
        if style in ("llama", "gemma"):
            new += [*spelled("é字😀"), *ids("▁is")]
        head, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + new)
        assert whole.startswith(head)
        assert "".join(pieces(tokenizer, prompt, new)) == whole[len(head) :], (prompt, new)


@pytest.mark.parametrize("style", ["llama", "gemma", "metaspace", "bytes"])
def test_the_first_space_stays(style: str) -> None:
    prompt = ids("<s>", "▁The", "▁capital", "▁is")
    new = ids("▁Paris", ".")
    assert pieces(a_tokenizer(style), prompt, new) == [" Paris", ".", ""]


def test_a_character_comes_with_its_last_byte() -> None:
    tokenizer, prompt = a_tokenizer("llama"), ids("<s>", "▁The")
    new = [*ids("▁is", "▁"), *spelled("😀é")]
    assert pieces(tokenizer, prompt, new) == [" is", SPACE, "", "", "", "😀", "", "é", ""]
    # What the text's end cuts off is shown as what it is, and so are bytes of no character.
    assert pieces(tokenizer, prompt, spelled("é")[:1]) == ["", "\ufffd"]
    assert pieces(tokenizer, prompt, [*ids("<0xFF>"), *ids("▁is")]) == ["", "\ufffd is", ""]
    many = pieces(tokenizer, prompt, ids("<0xFF>") * 100)
    assert "".join(many) == "\ufffd" * 100 and max(map(len, many)) == 16


def test_a_prompt_may_end_within_a_character() -> None:
    for split in (1, 2, 3):
        prompt, new = ids("<s>", "▁The") + spelled("😀")[:split], spelled("😀")[split:]
        assert "".join(pieces(a_tokenizer("llama"), prompt, new + ids("▁is"))) == "😀 is"


def test_a_prompt_of_bytes_is_divided_between_characters() -> None:
    """A row of bytes that begins within a character has no text at all with these tokenizers."""
    for text in ("አማርኛ", "éአማርኛ", "አማርኛ" * 9, "a😀é😀é"):
        found = pieces(a_tokenizer("llama"), ids("<s>") + spelled(text), spelled("ቋንቋ"))
        assert [piece for piece in found if piece] == ["ቋ", "ን", "ቋ"], text


@pytest.mark.parametrize("style", ["llama", "bytes"])
def test_special_tokens_that_are_asked_for_are_written_and_no_others(style: str) -> None:
    tokenizer = a_tokenizer(style)
    tokenizer.add_special_tokens(["<call>", "<other>"])
    start, call, other = (tokenizer.token_to_id(text) for text in ("<s>", "<call>", "<other>"))
    decoder = TextDecoder(tokenizer, [start, *ids("▁The", "▁is")], [call])
    new = [start, other, *ids("▁Paris"), call, *ids("."), other, call]
    text = "".join(decoder.add(token) for token in new) + decoder.rest()
    assert text.replace(SPACE, "") == "Paris<call>.<call>"
