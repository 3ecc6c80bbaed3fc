"""The messages' tensors and arrays: there and back, and whatever doesn't fit is refused."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.server.errors import BadRequest, TooLarge
from edgecompile.server.grpc.messages import METHODS, message
from edgecompile.server.grpc.tensors import read_inputs, write_outputs
from edgecompile.server.protocol.datatypes import DTYPES as TYPES


@st.composite
def tensors(draw: st.DrawFn, typed: bool = False) -> np.ndarray[Any, Any]:
    name = draw(st.sampled_from([name for name in TYPES if not (typed and name == "FP16")]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * TYPES[name].itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    array = (data & 1 if name == "BOOL" else data).view(TYPES[name]).reshape(shape)
    return array.T if draw(st.booleans()) else array


def exchange(given: dict[str, Any], *, raw: bool) -> tuple[Any, dict[str, Any]]:
    """Arrays written as outputs, and read again as the inputs of a request of the same bytes."""
    response = message("ModelInferResponse")()
    write_outputs(response, given, raw=raw)
    response = type(response).FromString(response.SerializeToString())
    request = message("ModelInferRequest")(raw_input_contents=response.raw_output_contents)
    for tensor in response.outputs:
        request.inputs.add().ParseFromString(tensor.SerializeToString())
    return response, read_inputs(type(request).FromString(request.SerializeToString()))


@given(st.dictionaries(st.text(max_size=5), tensors(), min_size=1, max_size=3))
def test_raw_tensors_come_back(given: dict[str, Any]) -> None:
    response, found = exchange(given, raw=True)
    assert len(response.raw_output_contents) == len(given)
    for name, array in given.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()


@given(st.dictionaries(st.text(max_size=5), tensors(typed=True), min_size=1, max_size=3))
def test_typed_tensors_come_back(given: dict[str, Any]) -> None:
    response, found = exchange(given, raw=False)
    assert not response.raw_output_contents
    for name, array in given.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)  # NaN equals NaN here


def test_half_precision_is_always_raw() -> None:
    given = {"a": np.ones(3, np.float16), "b": np.ones(2, np.float32)}
    response, found = exchange(given, raw=False)
    assert len(response.raw_output_contents) == 2
    assert found["a"].dtype == np.float16 and found["b"].tolist() == [1, 1]


def test_raw_inputs_are_not_copied() -> None:
    _, found = exchange({"a": np.arange(6)}, raw=True)
    assert isinstance(found["a"].base, np.ndarray) and not found["a"].flags.writeable


@given(st.binary(max_size=200), st.sampled_from(METHODS))
def test_any_bytes_are_a_message_or_none(data: bytes, method: str) -> None:
    kind = message(f"{method}Request")
    try:
        found = kind.FromString(data)
    except DecodeError:
        return
    assert kind.FromString(found.SerializeToString()) == found


@given(
    st.lists(
        st.tuples(
            st.text(max_size=3),
            st.sampled_from([*TYPES, "BYTES", "fp32", ""]),
            st.lists(st.integers(-2, 5) | st.sampled_from([2**62, -(2**63)]), max_size=4),
            st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6),
            st.sampled_from(["int_contents", "int64_contents", "fp32_contents", "bytes_contents"]),
        ),
        max_size=3,
    ),
    st.lists(st.binary(max_size=50), max_size=3),
)
def test_any_tensors_are_arrays_as_they_say_or_refused(given: list[Any], raw: list[bytes]) -> None:
    request = message("ModelInferRequest")(raw_input_contents=raw)
    for name, datatype, shape, values, field in given:
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        texts = field == "bytes_contents"
        getattr(tensor.contents, field).extend(map(b"%d".__mod__, values) if texts else values)
    try:
        found = read_inputs(request)
    except BadRequest as error:
        assert error.message
        return
    assert [*found] == [name for name, *_ in given]
    for name, datatype, shape, _, _ in given:
        dtype = TYPES.get(datatype, np.dtype(object))
        assert found[name].dtype == dtype and list(found[name].shape) == shape
        assert found[name].size == math.prod(shape)


def one(raw: list[bytes] | None = None, **fields: Any) -> Any:
    contents = fields.pop("contents", None)
    request = message("ModelInferRequest")(raw_input_contents=raw or ())
    tensor = request.inputs.add(**{"name": "x", "datatype": "INT64", "shape": [2], **fields})
    for name, values in (contents or {}).items():
        getattr(tensor.contents, name).extend(values)
    return request


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (one([b"1234567"]), "has 7 bytes; .2. of INT64 are 16"),
        (one([b"1" * 17]), "has 17 bytes"),
        (one([b"", b""]), "2 raw contents for 1 inputs"),
        (one([b"1" * 16], contents={"int64_contents": [1]}), "beside the raw ones"),
        (one(), "belong in int64_contents, not in .."),
        (one(contents={"int64_contents": [1, 2, 3]}), "has 3 values; .2. are 2"),
        (
            one(contents={"fp32_contents": [1, 2]}),
            "belong in int64_contents, not in .'fp32_contents'",
        ),
        (one(contents={"int64_contents": [1, 2], "bool_contents": [True]}), "belong in"),
        (one(shape=[-1]), "aren't negative"),
        (one([b""], shape=[2**62, 4]), "has 0 bytes; .* are 147573952589676412928"),
        (one([b""], shape=[1] * 33), "at most 32"),
        (one(datatype="INT65"), "has datatype 'INT65', not one of BOOL"),
        (one(datatype="BYTES"), "belong in bytes_contents, not in .."),
        (one(datatype="BYTES", contents={"bytes_contents": [b"a"]}), "has 1 values"),
        (one([b"\1\0\0\0a"], datatype="BYTES"), "has 1 elements of BYTES, shape .2. 2"),
        (one([b"\1\0\0\0a\2\0\0\0b"], datatype="BYTES"), "element of BYTES that is cut off"),
        (one([b"\1\0\0\0a\2\0"], datatype="BYTES"), "a length of BYTES that is cut off"),
        (one(datatype="BYTES", contents={"bytes_contents": [b"a", b"\xff"]}), "isn't UTF-8"),
        (one([b"\0\0\0\0\1\0\0\0\xff"], datatype="BYTES"), "isn't UTF-8"),
        (one(datatype="FP16", contents={"fp32_contents": [1, 2]}), "has raw contents alone"),
        (one(datatype="INT8", contents={"int_contents": [1, 128]}), "outside INT8, -128 to 127"),
        (one(datatype="UINT8", contents={"uint_contents": [1, 256]}), "outside UINT8, 0 to 255"),
        (one([b"\0\2"], datatype="BOOL"), "neither 0 nor 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(request_: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=f"^input 'x' .*{words}|^{words}"):
        read_inputs(request_)


@given(st.lists(st.text(max_size=5), max_size=4), st.booleans())
def test_texts_come_as_strings(texts: list[str], raw: bool) -> None:
    words = [text.encode() for text in texts]
    data = b"".join(struct.pack("<I", len(word)) + word for word in words)
    given = {"raw": [data]} if raw else {"contents": {"bytes_contents": words}}
    found = read_inputs(one(datatype="BYTES", shape=[len(texts), 1], **given))["x"]
    assert found.shape == (len(texts), 1) and found.ravel().tolist() == texts


def test_all_that_is_wrong_is_told_and_names_are_given_once() -> None:
    request = one(contents={"int64_contents": [1, 2]})
    request.inputs.add().CopyFrom(request.inputs[0])
    request.inputs.add(name="y", datatype="?")
    with pytest.raises(BadRequest, match="'x' is given twice; input 'y' has datatype"):
        read_inputs(request)
    many = message("ModelInferRequest")()
    for _ in range(2000):
        many.inputs.add()
    with pytest.raises(BadRequest, match="2000 inputs, at most 1024"):
        read_inputs(many)


def test_more_elements_than_are_taken_are_refused_before_anything_is_made_of_them() -> None:
    request = one([b""], shape=[3, 2**40])
    with pytest.raises(TooLarge, match="have 3298534883328 elements, at most 100"):
        read_inputs(request, 100)
