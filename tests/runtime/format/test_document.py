"""document: strict JSON and the collecting of problems."""

from __future__ import annotations

import time

import pytest

from edgecompile.runtime.base.errors import BundleError, DamagedBundleError
from edgecompile.runtime.format.document import Problems, join, json_type, parse_json, shorten


def test_plain_json() -> None:
    text = '{"a": [1, -2.5, "\\u00e9\\"[{", null, true], "b": {"c": {}}}'
    assert parse_json(text.encode(), "x", 1000) == {
        "a": [1, -2.5, 'é"[{', None, True],
        "b": {"c": {}},
    }


def test_brackets_in_strings_are_not_nesting() -> None:
    text = '{"a": "' + "[{" * 1000 + '"}'
    assert parse_json(text.encode(), "x", 10_000)["a"] == "[{" * 1000


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": "' + b'\\"' * 1_000_000,
        b"[" * 2_000_000,
        b'{"a": ' + b"9" * 2_000_000 + b"}",
        b'{"a": 1e' + b"9" * 2_000_000 + b"}",
        b'{"a": "' + b"\\" * 2_000_001,
    ],
)
def test_hostile_text_is_refused_quickly(data: bytes) -> None:
    started = time.process_time()
    with pytest.raises(BundleError):
        parse_json(data, "x", 4 << 20)
    assert time.process_time() - started < 2.0


def test_integers_of_64_bits() -> None:
    assert parse_json(b'{"a": -9223372036854775808}', "x", 99)["a"] == -(2**63)
    with pytest.raises(BundleError, match=r"9223372036854775808 doesn't fit"):
        parse_json(b'{"a": 9223372036854775808}', "x", 99)


def test_problems_name_source_place_and_rule() -> None:
    problems = Problems("file")
    problems.raise_if_any()
    problems.add("a-b", "x.y", "is bad")
    with pytest.raises(BundleError) as caught:
        problems.raise_if_any(DamagedBundleError, "do this")
    assert caught.type is DamagedBundleError
    assert str(caught.value) == "file: x.y: is bad [a-b]\nhint: do this"


def test_text_for_people() -> None:
    assert shorten("a" * 100) == "a" * 57 + "..."
    assert shorten("a\x1b[31mb\n") == "a?[31mb?"
    assert join("", "a") == "a" and join("a", "b") == "a.b"
    names = [json_type(item) for item in (None, True, 1, 1.5, "", [], {})]
    assert names == ["null", "true/false", "integer", "number", "string", "list", "object"]
