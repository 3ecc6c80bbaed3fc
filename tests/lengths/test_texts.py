from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from edgecompile.errors import LengthsError, MissingDependencyError, ModelError
from edgecompile.lengths import texts
from edgecompile.lengths.texts import read_text_lengths
from tests.factories.folders import write_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer")


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "texts.txt"
    path.write_bytes(data)
    return path


def test_lengths_count_special_tokens_and_ignore_truncation(
    tmp_path: Path, tokenizer: Path
) -> None:
    path = write(tmp_path, b"the cat\nthe cat sat on a mat and purred quietly all day\ncat\n")
    found = read_text_lengths(path, tokenizer)
    # One token per word and two special ones; the tokenizer.json itself asks for 4 at most.
    assert dict(zip(found.lengths, found.counts, strict=True)) == {3: 1, 4: 1, 13: 1}
    assert str(path) in found.source


@pytest.mark.parametrize(
    "data",
    [
        b"the cat\n\n   \n\t\ncat sat on",
        b"the cat\r\n\r\ncat sat on\r\n",
        b"\xef\xbb\xbfthe cat\ncat sat on\n",
    ],
)
def test_blank_lines_line_ends_and_byte_order_marks_do_not_count(
    tmp_path: Path, tokenizer: Path, data: bytes
) -> None:
    found = read_text_lengths(write(tmp_path, data), tokenizer)
    assert (found.lengths, found.counts) == ((4, 5), (1, 1))


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.JSON"])
def test_json_is_not_counted_as_if_it_were_the_texts(
    tmp_path: Path, tokenizer: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text('{"text": "the cat"}\n')
    with pytest.raises(LengthsError, match="brackets and keys") as caught:
        read_text_lengths(path, tokenizer)
    assert "one per line" in str(caught.value.hint)


def test_standard_input(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
    found = read_text_lengths("-", tokenizer)
    assert found.lengths == (4,) and "standard input" in found.source


def test_many_lines_pass_through_in_batches(tmp_path: Path, tokenizer: Path) -> None:
    lines = b"".join(b"cat " * (1 + index % 7) + b"\n" for index in range(7 * 700))
    found = read_text_lengths(write(tmp_path, lines), tokenizer)
    assert found.lengths == tuple(range(3, 10)) and set(found.counts) == {700}


def test_lengths_agree_with_the_transformers_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    lines = ["the cat", "naïve – ☃ words, unknown!", "a mat"]
    found = read_text_lengths(write(tmp_path, "\n".join(lines).encode()), tokenizer)
    wanted = sorted(len(other(line, truncation=False, padding=False).input_ids) for line in lines)
    have = [n for n, count in zip(found.lengths, found.counts, strict=True) for _ in range(count)]
    assert have == wanted


def test_text_is_lowered_where_the_model_asks_for_it(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path, b"CAT\n")
    encoder = texts.load_tokenizer(tokenizer)
    assert encoder.encode("CAT").ids != encoder.encode("cat").ids
    (tokenizer.parent / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert read_text_lengths(path, tokenizer).lengths == (3,)
    assert texts.wants_lower_case(tokenizer.parent)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no text"),
        (b"\n \n", "holds no text"),
        (b"fine\nbro\xffken\nfine\n\xfe\n", r"line 2: byte 4 isn't UTF-8; line 4: byte 1"),
        (b"a\0b\n", "line 1 holds a NUL"),
        (b"\xff\n" * 50, r"(line \d+: byte 1 isn't UTF-8(; )?){10}$"),
    ],
)
def test_what_is_no_text_is_refused(
    tmp_path: Path, tokenizer: Path, data: bytes, message: str
) -> None:
    with pytest.raises(LengthsError) as failure:
        read_text_lengths(write(tmp_path, data), tokenizer)
    assert pytest.approx(failure.value.exit_code) == 30
    assert __import__("re").search(message, failure.value.message)


def test_a_line_without_end_is_refused(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_LINE_BYTES", 100)
    assert read_text_lengths(write(tmp_path, b"cat " * 24 + b"cat\n"), tokenizer).lengths == (27,)
    with pytest.raises(LengthsError, match="line 2 has over 100 bytes"):
        read_text_lengths(write(tmp_path, b"fine\n" + b"x" * 101), tokenizer)


def test_missing_files_are_named(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(LengthsError, match=r"none\.txt: can't be read: No such file"):
        read_text_lengths(tmp_path / "none.txt", tokenizer)
    with pytest.raises(LengthsError, match="directory"):
        read_text_lengths(tmp_path, tokenizer)
    with pytest.raises(ModelError, match="no fast tokenizer") as failure:
        read_text_lengths(write(tmp_path, b"cat"), tmp_path / "tokenizer.json")
    assert "save_pretrained" in (failure.value.hint or "")


def test_a_model_without_texts_is_told_from_one_without_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ModelError, match="reads images or sounds") as failure:
        texts.load_tokenizer(tmp_path / "tokenizer.json")
    assert str(failure.value.hint).startswith("leave `texts` out")


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text('{"version": "1.0"')
    with pytest.raises(ModelError, match="is no tokenizer that can be read"):
        read_text_lengths(write(tmp_path, b"cat"), broken)


def test_without_tokenizers_the_cure_is_named(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError) as failure:
        read_text_lengths(write(tmp_path, b"cat"), tokenizer)
    assert "`lengths`" in (failure.value.hint or "")
