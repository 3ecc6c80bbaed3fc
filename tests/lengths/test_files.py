from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.files import read_sizes
from tests.draws import examples

SAMPLES = {7: 1, 12: 3}


def write(folder: Path, content: bytes | str) -> Path:
    # The name says nothing on purpose: only the content may decide.
    path = folder / "lengths.dat"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def histogram(source: Path | str) -> dict[int, int]:
    """The samples by length."""
    found = read_sizes(source)
    assert isinstance(found, LengthDistribution)
    return dict(zip(found.lengths, found.counts, strict=True))


def npy(values: Any, dtype: Any = np.int64) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(values, dtype=dtype))
    return stream.getvalue()


GOOD = {
    "plain": "12\n7\n12\n12\n",
    "no newline at the end": "12\n7\n12\n12",
    "carriage returns": "12\r\n7\r\n12\r\n12\r\n",
    "comments and blanks": "# made by hand\n\n12 # twelve\n7\n\n12\n   12\n",
    "whole floats": "12.0\n7.\n+12\n1.2e1\n",
    "byte order mark": b"\xef\xbb\xbf12\n7\n12\n12\n",
    "two columns": "12,3\n7,1\n",
    "header": "length\n12\n7\n12\n12\n",
    "header and counts": "length,count\n12,3\n7,1\n",
    "header, other order, other columns": 'id,Count,text,Length\n1,3,"a, b",12\n2,1,x,7\n',
    "quoted cells": '"length","count"\n"12","3"\n"7","1"\n',
    "counts over several rows": "12,1\n7,1\n12,2\n",
    "JSON lines": '{"length": 12, "count": 3}\n{"length": 7}\n',
    "JSON lines of text with #": '{"length": 12, "text": "# a"}\n{"length": 7}\n'
    + '{"length": 12.0}\n' * 2,
    "numbers, then JSON lines": '12\n{"length": 12, "count": 2}\n7\n',
    "JSON list": "[12, 7, 12, 12]",
    "JSON list over lines": "[\n  12,\n  7,\n  12, 12.0\n]\n",
    "JSON list of rows": '[{"length": 12, "count": 3}, {"length": 7}]',
    "histogram": '{"12": 3, "7": 1}',
    "histogram over lines": '{\n "12": 2,\n "12.0": 1,\n "7": 1\n}',
    "own form": '{"lengths": [12, 7], "counts": [3, 1], "n": 4}',
    "lists without counts": '{"lengths": [12, 7, 12, 12]}',
    "int64 array": npy([12, 7, 12, 12]),
    "uint8 array": npy([12, 7, 12, 12], np.uint8),
    "float16 array": npy([12, 7, 12, 12], np.float16),
    "big-endian array": npy([12, 7, 12, 12], ">i4"),
}


@pytest.mark.parametrize("content", GOOD.values(), ids=GOOD.keys())
def test_reads_every_form(tmp_path: Path, content: bytes | str) -> None:
    assert histogram(write(tmp_path, content)) == SAMPLES


@pytest.mark.parametrize("content", GOOD.values(), ids=GOOD.keys())
def test_standard_input_reads_the_same(
    monkeypatch: pytest.MonkeyPatch, content: bytes | str
) -> None:
    data = content.encode() if isinstance(content, str) else content
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert histogram("-") == SAMPLES


# Content, and what the message has to say.
BAD: dict[str, tuple[bytes | str, list[str]]] = {
    "empty": ("", ["holds no lengths"]),
    "blanks and comments": ("\n# 12\n\n", ["holds no lengths"]),
    "empty list": ("[]", ["holds no lengths"]),
    "empty histogram": ("{}", ["holds no lengths"]),
    "header only": ("length,count\n", ["holds no lengths"]),
    "empty array": (npy([]), ["holds no lengths"]),
    "negative": ("12\n-3\n", ["1 problem", "line 2", '"-3"', "start at 1"]),
    "zero": ("0\n", ["line 1", '"0"', "start at 1"]),
    "fraction": ("12\n\n12.5\n", ["line 3", '"12.5"', "isn't a whole number"]),
    "NaN": ("12\nNaN\n", ["line 2", '"NaN"', "isn't a finite number"]),
    "infinity": ("inf\n", ["line 1", '"inf"', "isn't a finite number"]),
    "overflow to infinity": ("1e999\n", ["line 1", "isn't a finite number"]),
    "too long": ("2147483648\n", ["line 1", "over the largest length, 2147483647"]),
    "far too long": ("9" * 5000, ["line 1", "over the largest length, 2147483647"]),
    "word": ("12\nabc\n", ["line 2", '"abc"', "isn't a number"]),
    "first a word": ("abc\n12\n-1\n", ["2 problems", "line 1", '"abc"', "line 3", '"-1"']),
    "underscore": ("1_000\n", ["line 1", '"1_000"']),
    "other digits": ("١٢\n", ["line 1"]),
    "hexadecimal": ("12\n0x10\n", ["line 2", '"0x10"', "isn't a number"]),
    "two on a line": ("12 7\n", ["line 1", '"12 7"']),
    "zero count": ("12,0\n", ["line 1", 'the count "0"', "counts start at 1"]),
    "negative count": ("12,-2\n", ["line 1", 'the count "-2"']),
    "fraction of a count": ("12,1.5\n", ["line 1", 'the count "1.5"', "whole number"]),
    "empty count": ("12,3\n7,\n", ["line 2", "has no count"]),
    "more columns": ("12,3\n7\n", ["line 2", "has 1 columns where the first row has 2"]),
    "no header for three": ("12,1,3\n", ["line 1", "3 columns and no header"]),
    "header without length": ("size,count\n12,3\n", ["line 1", '"length" column']),
    "header twice": ("length,length\n12,3\n", ["line 1", '"length" column']),
    "JSON row without length": ('12\n{"count": 3}\n', ["line 2", "has no length"]),
    "broken JSON row": ('{"length": 3}\n{"length": \n', ["line 2", "isn't valid JSON"]),
    "JSON row of a word": ('{"length": "a"}\n{"length": 2}\n', ["line 1", "isn't a number"]),
    "JSON of true": ("[true]", ["element 0", '"true"', "isn't a number"]),
    "JSON of a string": ('[3, "4"]', ["element 1", '"4"', "isn't a number"]),
    "JSON of null": ("[null]", ["element 0", '"null"']),
    "JSON NaN": ("[NaN, 3, 0]", ["2 problems", "element 0", "element 2"]),
    "JSON huge": (f"[{'9' * 4000}]", ["element 0", "over the largest length"]),
    "JSON too many digits": (f"[{'9' * 5000}]", ["not valid JSON"]),
    "JSON cut off": ("[12, 7", ["not valid JSON"]),
    "JSON rows of texts": ('{"text": "a"}\n{"text": "b"}\n', ["line 1", "line 2", "has no length"]),
    "JSON twice": ("[12]\n[7]\n", ["not valid JSON"]),
    "JSON deep": ("[" * 100_000, ["nested too deep"]),
    "JSON repeated key": ('{"12": 1, "12": 2}', ["repeated keys", '"12"']),
    "histogram of words": ('{"12": 3, "x": 1}', ["histogram", '"x"', "isn't a number"]),
    "histogram of zero": ('{"12": 0}', ['"12" has the count "0"']),
    "list sizes": ('{"lengths": [1, 2], "counts": [1]}', ["2 lengths, but counts has 1"]),
    "counts no list": ('{"lengths": [1], "counts": 3}', ["counts has int"]),
    "row in lists": ('{"lengths": [{"length": 3}], "counts": [2]}', ["isn't a number"]),
    "too many samples": ('{"1": 9007199254740992, "2": 1}', ["9007199254740993 samples"]),
    "binary": (b"\x00\x01\x02", ["NUL bytes"]),
    "UTF-16": ("12\n7\n".encode("utf-16"), ["UTF-16"]),
    "Latin-1": (b"12\n\xe9\n", ["line 2"]),
    "archive": (b"PK\x03\x04\x00\x00", ["zip or .npz"]),
    "long line": ("1" * (2 << 20), ["longer than 65536 bytes"]),
    "array of fractions": (npy([1, 2.5], np.float64), ["element 1", '"2.5"', "whole number"]),
    "array of NaN": (npy([np.nan, 3], np.float64), ["element 0", "finite"]),
    "array of zero": (npy([3, 0]), ["element 1", '"0"', "start at 1"]),
    "array too long": (npy([2**40]), ["element 0", "over the largest length"]),
    "array of uint64": (npy([2**64 - 1], np.uint64), ["over the largest length"]),
    "array of two dimensions": (npy([[1, 2]]), ["shape (1, 2)", "one dimension"]),
    "array of text": (npy(["1"], "U1"), ["type <U1"]),
    "array of bool": (npy([True], bool), ["type bool"]),
    "array cut off": (npy([1, 2, 3])[:-8], ["not a readable .npy file"]),
    "array without data": (b"\x93NUMPY", ["not a readable .npy file"]),
    "array with a false size": (
        npy([1]).replace(b"(1,),", b"(9999999999999999,),"),
        ["not a readable .npy file"],
    ),
}


@pytest.mark.parametrize(("content", "wanted"), BAD.values(), ids=BAD.keys())
def test_refuses_and_names_what_is_wrong(
    tmp_path: Path, content: bytes | str, wanted: list[str]
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(LengthsError) as caught:
        read_sizes(path)
    message = caught.value.message
    assert str(path) in message
    assert [text for text in wanted if text not in message] == []
    assert caught.value.hint
    assert len(message) < 2000


def test_pickled_array_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as stream:
        np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(LengthsError, match=r"not a readable \.npy file"):
        read_sizes(path)


def test_every_problem_is_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "12\n" * 5 + "x\n" * 25 + "-1\n")
    with pytest.raises(LengthsError, match="26 problems") as caught:
        read_sizes(path)
    assert "line 6:" in caught.value.message
    assert "line 15:" in caught.value.message
    assert "line 16:" not in caught.value.message
    assert "and 16 more" in caught.value.message


def test_control_characters_are_shown_as_escapes(tmp_path: Path) -> None:
    with pytest.raises(LengthsError) as caught:
        read_sizes(write(tmp_path, "12\n\x1b[31m\n"))
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("kind", ["missing", "folder", "unreadable name"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    path = {
        "missing": str(tmp_path / "no"),
        "folder": str(tmp_path),
        "unreadable name": "a\0b",
    }[kind]
    with pytest.raises(LengthsError):
        read_sizes(path)


@pytest.mark.slow
def test_line_numbers_and_counts_hold_across_blocks(tmp_path: Path) -> None:
    # Rows of different widths, so that blocks end within rows; 2 MB in all.
    rng = random.Random(1)
    values = [rng.randint(1, 10**6) for _ in range(300_000)]
    path = write(tmp_path, "\n".join(map(str, values)))
    lengths, counts = np.unique(values, return_counts=True)
    expected = dict(zip(lengths.tolist(), counts.tolist(), strict=True))
    assert histogram(path) == expected
    path = write(tmp_path, "\n".join(map(str, [*values, "x"])))
    with pytest.raises(LengthsError, match=r'line 300001: "x"'):
        read_sizes(path)


def test_own_json_keeps_its_source(tmp_path: Path) -> None:
    value = {"lengths": [3], "counts": [2], "source": "docs"}
    found = read_sizes(write(tmp_path, json.dumps(value)))
    assert found == LengthDistribution((3,), (2,), "docs")


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=200))
@example(data=b'\x01\r"')
def test_junk_gives_lengths_or_the_error(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "x"
    for prefix in (b"", b"\x93NUMPY", npy([1, 2])[:64], b"12\n", b'{"length": 3}\n', b"[1,"):
        path.write_bytes(prefix + data)
        try:
            found = read_sizes(path)
        except LengthsError:
            continue
        assert found.counts and min(found.counts) >= 1
        if isinstance(found, LengthDistribution):
            assert found.min >= 1


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=50))
def test_all_forms_agree(tmp_path_factory: Any, values: list[int]) -> None:
    folder = tmp_path_factory.mktemp("forms")
    lengths, counts = np.unique(values, return_counts=True)
    expected = dict(zip(lengths.tolist(), counts.tolist(), strict=True))
    forms = (
        "\n".join(map(str, values)),
        "length,count\n" + "\n".join(f"{k},{n}" for k, n in expected.items()),
        "\n".join(json.dumps({"length": value}) for value in values),
        json.dumps(values),
        json.dumps(expected),
        json.dumps({"lengths": list(expected), "counts": list(expected.values())}),
        npy(values),
    )
    for form in forms:
        assert histogram(write(folder, form)) == expected
