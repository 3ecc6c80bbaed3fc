"""JSON documents of the protocols, with orjson and with the standard library alone."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from edgecompile.server.errors import BadRequest, Unprocessable
from edgecompile.server.protocol import documents
from edgecompile.server.protocol.v2 import format_answer, read_request
from tests.server.http.test_tensors import MOST, ONE, request


def test_the_standard_library_reads_and_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    if documents.orjson is None:
        pytest.skip("orjson isn't installed")
    value = {
        "a": np.array([0.1, 1e-8, 3.0], np.float32),
        "b": [1, None, True, "ä"],
        "c": np.array([1, 2]),
    }
    fast = documents.dump(value)
    monkeypatch.setattr(documents, "orjson", None)
    slow = documents.dump(value)
    assert json.loads(fast) == json.loads(slow)
    assert documents.load_object(fast) == json.loads(fast)
    for body in (b"NaN", b'{"a": NaN}', b"[" * 100_000, b"\xff", b"{", b"\xef\xbb\xbf{}"):
        with pytest.raises(BadRequest):
            documents.load_object(body)
    assert math.isclose(json.loads(slow)["a"][0], 0.1)


@pytest.mark.parametrize("fast", [True, False])
def test_numbers_that_json_lacks(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    if not fast:
        monkeypatch.setattr(documents, "orjson", None)
    asked = read_request(request(id="null"), None, MOST)
    good = np.array([1.5, -2.0], np.float32)
    assert b"[1.5,-2.0]" in format_answer("null", "1", asked, {"null": good})[0]
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(Unprocessable, match="y holds NaN or infinities"):
            format_answer("m", "1", asked, {"x": good, "y": np.array([1, value], np.float32)})


@pytest.mark.parametrize("fast", [True, False])
def test_numbers_and_keys_that_parsers_read_in_their_own_way(
    monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    if not fast:
        monkeypatch.setattr(documents, "orjson", None)
    for number in ("1e999", "-1e999", "1" + "0" * 400):
        body = request(inputs=[{**ONE, "datatype": "FP64", "data": [7, 2]}]).replace(
            b"[7, 2]", b"[%s, 2]" % number.encode()
        )
        with pytest.raises(BadRequest):
            read_request(body, None, MOST)
    with pytest.raises(BadRequest):
        read_request(request().replace(b"[1, 2]", b"[1, 18446744073709551617]"), None, MOST)
    # Of equal keys the last one counts; of keys that nobody knows, however many, the first is told.
    twice = b'{"inputs": 3, ' + request()[1:]
    many = b"{" + b"".join(b'"k%d":0,' % n for n in range(10**6)) + request()[1:]
    assert read_request(twice, None, MOST).inputs["a"].tolist() == [1, 2]
    with pytest.raises(Unprocessable, match="k0 isn't supported"):
        read_request(many, None, MOST)
