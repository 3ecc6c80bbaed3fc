"""Damaged and hostile GGUF files: each is refused with a sentence, before a library reads it."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgecompile.errors import ModelError
from edgecompile.loaders.checkpoints.gguf_header import FORMS, read_gguf_header

U32, STRING, ARRAY = 4, 8, 9
Entry = tuple[str, Sequence[int], int, int]  # name, sizes as the file has them, type, offset
TOKENS = 4
SOUND: Mapping[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "llama.block_count": (U32, 1),
    "llama.embedding_length": (U32, 32),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["a", "b", "c", "d"])),
}
TENSORS: Sequence[Entry] = (
    ("token_embd.weight", (32, TOKENS), 2, 0),
    ("blk.0.attn_norm.weight", (32,), 0, 96),
)
BYTES = 224


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def encode(kind: int, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value  # a lie, whole
    if kind == STRING:
        return string(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(encode(inner, i) for i in items)
    return struct.pack("<I", value)


def gguf(
    values: Mapping[str, tuple[int, Any]] = SOUND,
    tensors: Sequence[Entry] = TENSORS,
    *,
    start: bytes | None = None,
    size: int = BYTES,
) -> bytes:
    head = start or b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, (kind, value) in values.items():
        head += string(key) + struct.pack("<I", kind) + encode(kind, value)
    for name, sizes, kind, offset in tensors:
        head += string(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % 32) + bytes(size)


def changed(**entries: tuple[int, Any] | None) -> bytes:
    values = {**SOUND, **{key.replace("__", "."): value for key, value in entries.items()}}
    return gguf({key: value for key, value in values.items() if value is not None})


def table(*entries: Entry) -> bytes:
    return gguf(tensors=entries)


TABLE, NORM = TENSORS


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf())
    header = read_gguf_header(path)
    assert header.architecture == "llama" and header.values["tokenizer.ggml.tokens"] == TOKENS
    first, second = header.tensors.values()
    assert (first.shape, first.form.name, first.size) == ((TOKENS, 32), "Q4_0", 4 * 18)
    assert second.begin + second.size == path.stat().st_size


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it ends within the magic"),
        (gguf(start=b"GGML" + bytes(20)), "doesn't begin as one"),
        (gguf(start=struct.pack("<4sIQQ", b"GGUF", 1, 2, 4)), "it has version 1"),
        (gguf(start=struct.pack(">4sIQQ", b"GGUF", 3, 2, 4)), "version 50331648.* little-endian"),
        (gguf(start=struct.pack("<4sIQQ", b"GGUF", 3, 1 << 63, 4)), "claims 9223372036854775808 t"),
        (gguf(start=struct.pack("<4sIQQ", b"GGUF", 3, 2, 1 << 40)), "claims 1099511627776 entries"),
        (gguf(start=struct.pack("<4sIQQ", b"GGUF", 3, 9, 4)), "no valid GGUF file"),
        (changed(general__name=(STRING, struct.pack("<Q", 1 << 60))), "1152921504606846976 bytes"),
        (changed(general__name=(STRING, b"\xff" * 4)), "no valid GGUF file"),
        (changed(general__name=(STRING, string(b"\xff"))), "general.name isn't UTF-8"),
        (changed(general__x=(ARRAY, struct.pack("<IQ", STRING, 1 << 60))), "no room for"),
        (changed(general__x=(ARRAY, struct.pack("<IQ", 0, 1 << 20))), "no room for"),
        (changed(general__x=(ARRAY, struct.pack("<IQ", ARRAY, 1))), "array of the type 9"),
        (changed(general__x=(99, b"")), "has the type 99, which there isn't"),
        (changed(general__alignment=(U32, 0)), "general.alignment is 0, no power of two"),
        (changed(general__alignment=(U32, 48)), "general.alignment is 48"),
        (changed(general__alignment=(U32, 1 << 31)), "general.alignment is 2147483648"),
        (changed(general__alignment=(STRING, "32")), "general.alignment is '32'"),
        (gguf(size=BYTES - 1), "ends at byte .*, the file at"),
        (table(TABLE, ("n", (32,), 0, 1 << 62)), "n ends at byte"),
        (table(TABLE, ("n", (32,), 0, 97)), "n begins at 97, no multiple of 32"),
        (table(TABLE, ("n", (32,), 0, 64)), "token_embd.weight and n overlap"),
        (table(TABLE, TABLE), "token_embd.weight occurs twice"),
        (table(TABLE, ("n", (), 0, 96)), "n has 0 dimensions"),
        (table(TABLE, ("n", (1,) * 5, 0, 96)), "n has 5 dimensions"),
        (table(TABLE, ("n", (0,), 0, 96)), r"n has the shape \[0\]"),
        (table(TABLE, ("n", (1 << 32, 1), 0, 96)), r"n has the shape \[1, 4294967296\]"),
        (table(TABLE, ("n", ((1 << 31) - 1,) * 4, 0, 96)), "n ends at byte"),
        (table(TABLE, ("n", (32,), 99, 96)), "n has the type 99, which isn't read"),
        (table(TABLE, ("n", (32,), 4, 96)), "n has the type 4, which isn't read"),
        (table(TABLE, ("n", (32, 8), 12, 96)), "rows of 32 numbers, Q4_K stores whole blocks of 256"),
        (table(TABLE, ("n", (288,), 14, 96)), "rows of 288 numbers, Q6_K stores whole blocks"),
        (table(NORM), "holds no language model: it has no matrix token_embd"),
        (table(("token_embd.weight", (32,), 0, 0)), "holds no language model"),
        (changed(general__architecture=None), "names no model: general.architecture is None"),
        (changed(general__architecture=(STRING, "../x")), "names no model"),
        (changed(split__count=(U32, 3)), "is one of 3 files of a model"),
        (changed(tokenizer__ggml__tokens=(ARRAY, (STRING, ["a"]))), "has 1 tokens, .* has 4 rows"),
        (changed(tokenizer__ggml__tokens=None), "has 0 tokens"),
        (changed(tokenizer__ggml__scores=(ARRAY, (U32, [1]))), "scores has 1 items for 4 tokens"),
        (changed(llama__block_count=(U32, 1 << 31)), "block_count is 2147483648, the tensors have 1"),
        (changed(llama__embedding_length=(U32, 64)), "embedding_length is 64, the tensors have 32"),
        (changed(llama__expert_count=(U32, 0xFFFFFFFF)), "expert_count is 4294967295, which"),
        (table(TABLE, ("blk.7.attn_norm.weight", (32,), 0, 96)), "tensors of layers are missing"),
    ],
)  # fmt: skip
def test_what_lies_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_gguf_header(path)


def test_a_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    entry = string("general.name") + struct.pack("<I", STRING) + string("x")
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + 2 * entry)
    with pytest.raises(ModelError, match=r"'general\.name' occurs twice"):
        read_gguf_header(path)


def test_a_file_that_is_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.gguf", gguf()
    for count in range(len(whole)):
        path.write_bytes(whole[:count])
        with pytest.raises(ModelError, match="no valid GGUF file"):
            read_gguf_header(path)


def test_any_byte_may_be_another(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.gguf", gguf()
    for at in range(len(whole) - BYTES):
        for value in (0, 0x7F, 0xFF):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                header = read_gguf_header(path)
            except ModelError:
                continue
            for tensor in header.tensors.values():
                assert tensor.begin + tensor.size <= len(whole)
                assert math.prod(tensor.shape) <= 1 << 12


def test_sizes_of_forms_are_those_of_gguf() -> None:
    gguf_package = pytest.importorskip("gguf")
    for number, form in FORMS.items():
        kind = gguf_package.GGMLQuantizationType(number)
        assert (form.name, (form.block, form.size)) == (
            kind.name,
            gguf_package.GGML_QUANT_SIZES[kind],
        )
