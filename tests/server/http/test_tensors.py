"""JSON lists and binary tensors to arrays and back, and whatever else somebody sends."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgecompile.runtime.format.dtypes import CACHE_NAMES, array_type
from edgecompile.server.errors import BadRequest, ServerError, TooLarge, Unprocessable
from edgecompile.server.protocol import v2
from edgecompile.server.protocol.datatypes import DTYPES, NAMES
from edgecompile.server.protocol.tensors import from_bytes, from_list, read_shape, to_bytes
from edgecompile.server.protocol.v2 import format_answer, read_request

MOST = 10_000
#: A machine may be slow at any time.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("dtype", CACHE_NAMES)
def test_inputs_have_the_datatype_of_their_arrays(dtype: str) -> None:
    assert DTYPES[NAMES[dtype]] == np.dtype(array_type(dtype))


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, np.ndarray]:
    datatype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    finite = {"allow_nan": False, "allow_infinity": False} if DTYPES[datatype].kind == "f" else {}
    return datatype, draw(
        hnp.arrays(DTYPES[datatype], shape, elements=hnp.from_dtype(DTYPES[datatype], **finite))
    )


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, tuple[str, np.ndarray, bool]]:
    """Inputs by name: datatype, array, whether binary."""
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    found = {}
    for name in names:
        datatype, array = draw(arrays())
        found[name] = (datatype, array, datatype == "FP16" or draw(st.booleans()))
    return found


def write_request(tensors: dict[str, tuple[str, np.ndarray, bool]]) -> tuple[bytes, int]:
    """A body as a client writes it, independently of the server's code, and its JSON's length."""
    entries, binary = [], b""
    for name, (datatype, array, is_binary) in tensors.items():
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if is_binary:
            entry["parameters"] = {"binary_data_size": array.nbytes}
            binary += array.tobytes()
        else:
            entry["data"] = array.tolist() if array.ndim else [array.item()]
        entries.append(entry)
    head = json.dumps({"inputs": entries}).encode()
    return head + binary, len(head)


@patient
@given(tensors())
def test_what_a_client_writes_is_read(given: dict[str, tuple[str, np.ndarray, bool]]) -> None:
    body, length = write_request(given)
    request = read_request(body, b"%d" % length, MOST)
    assert list(request.inputs) == list(given)
    for name, (datatype, array, _) in given.items():
        found = request.inputs[name]
        assert found.dtype == DTYPES[datatype] and found.flags.aligned
        np.testing.assert_array_equal(found, array)


@patient
@given(arrays(), st.booleans())
def test_what_is_written_is_read_by_a_client(drawn: tuple[str, np.ndarray], binary: bool) -> None:
    datatype, array = drawn
    binary |= datatype == "FP16"
    flag = json.dumps({"parameters": {"binary_data_output": binary}, "inputs": [ONE]}).encode()
    body, length = format_answer("m", "1", read_request(flag, None, MOST), {"x": array})
    document = json.loads(body[:length])
    (entry,) = document["outputs"]
    assert (entry["datatype"], entry["shape"]) == (datatype, list(array.shape))
    if binary:
        assert entry["parameters"]["binary_data_size"] == array.nbytes == len(body) - (length or 0)
        found = np.frombuffer(body[length:], DTYPES[datatype]).reshape(array.shape)
    else:
        assert length is None
        found = np.array(entry["data"], DTYPES[datatype]).reshape(array.shape)
    np.testing.assert_array_equal(found, array)


ONE = {"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]}


@patient
@given(st.binary(max_size=200), st.one_of(st.none(), st.binary(max_size=4)))
def test_rubbish_is_refused(body: bytes, length: bytes | None) -> None:
    with pytest.raises(ServerError) as caught:
        read_request(body, length, MOST)
    assert caught.value.status in (400, 413)


KEYS = st.sampled_from(["name", "shape", "datatype", "data", "parameters", "inputs"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@patient
@given(DOCUMENTS)
def test_any_json_is_answered(value: Any) -> None:
    for document in (
        value,
        {"inputs": value},
        {"inputs": [value]},
        {"inputs": [{**ONE, "data": value}]},
    ):
        try:
            read_request(json.dumps(document).encode(), None, MOST)
        except ServerError as error:
            assert error.status in (400, 413)


@patient
@given(st.lists(st.text(max_size=8), max_size=5))
def test_strings_go_there_and_back(texts: list[str]) -> None:
    texts = [text.encode(errors="replace").decode() for text in texts]
    array = np.empty(len(texts), object)
    array[:] = texts
    found = from_bytes(memoryview(to_bytes(array)), "BYTES", array.shape, "x")
    assert found.tolist() == texts


SHAPES: list[tuple[Any, type[ServerError]]] = [
    ([-1], BadRequest),
    ([2**63], TooLarge),
    ([2**62, 4], TooLarge),
    ([0, 2**62], TooLarge),
    ([1.0], BadRequest),
    ([True], BadRequest),
    ([None], BadRequest),
    (["1"], BadRequest),
    (None, BadRequest),
    (3, BadRequest),
    ([1] * 17, BadRequest),
    ([MOST + 1], TooLarge),
]


@pytest.mark.parametrize(("shape", "error"), SHAPES)
def test_shapes(shape: Any, error: type[ServerError]) -> None:
    with pytest.raises(error):
        read_shape(shape, "x", MOST)


DATA: list[tuple[Any, str, list[int], str]] = [
    ([1], "INT64", [2], "1 elements, shape"),
    ([1, 2, 3], "INT64", [2], "3 elements, shape"),
    ([[1, 2], [3]], "INT64", [2, 2], "nested"),
    ([[1], [2]], "INT64", [2], "nested"),
    ([[1, 2]], "INT64", [2, 1], "nested"),
    ([[1, 2], 3], "INT64", [2, 2], "nested"),
    ([1, [2]], "INT64", [2], "list"),
    ([1.5], "INT64", [1], "fraction"),
    ([1.0], "INT64", [1], "fraction"),
    ([True], "INT64", [1], "boolean"),
    ([1, True], "INT64", [2], "boolean"),
    (["1"], "INT64", [1], "string"),
    ([None], "FP32", [1], "null"),
    ([1], "BOOL", [1], "number"),
    ([256], "UINT8", [1], "outside 0..255"),
    ([-1], "UINT64", [1], "outside"),
    ([2**63], "INT64", [1], "outside"),
    ([1e300], "FP32", [1], "doesn't hold"),
    ([10**400], "FP64", [1], "doesn't hold"),
    ([1.0], "FP16", [1], "binary"),
    ([1], "BYTES", [1], "strings"),
    ({"0": 1}, "INT64", [1], "must be a list"),
    ("12", "INT64", [2], "must be a list"),
]


@pytest.mark.parametrize(("data", "datatype", "shape", "message"), DATA)
def test_data_that_does_not_fit(data: Any, datatype: str, shape: list[int], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        from_list(data, datatype, shape, "inputs[0]")


INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"datatype": "int64"}, "must be one of"),
    ({"datatype": "INT7"}, "must be one of"),
    ({"datatype": None}, "must be one of"),
    ({"datatype": ["INT64"]}, "must be one of"),
    ({"name": ""}, "name must be"),
    ({"name": 3}, "name must be"),
    ({"data": None}, "must be a list"),
    ({"parameters": 3}, "must be an object"),
    ({"parameters": {"binary_data_size": 16}}, "both data and"),
    ({"parameters": {"binary_data_size": 16.0}}, "must be an integer"),
    ({"parameters": {"binary_data_size": "16"}}, "must be an integer"),
    ({"parameters": {"binary_data_size": -1}}, "must be an integer"),
    ({"parameters": {"binary_data_size": True}}, "must be an integer"),
]


@pytest.mark.parametrize(("change", "message"), INPUTS)
def test_inputs_that_are_wrong(change: dict[str, Any], message: str) -> None:
    body = json.dumps({"inputs": [{**ONE, **change}]}).encode()
    with pytest.raises(BadRequest, match=message):
        read_request(body, None, MOST)


def request(**changes: Any) -> bytes:
    return json.dumps({"inputs": [ONE], **changes}).encode()


REQUESTS: list[tuple[bytes, str]] = [
    (b"", "isn't JSON"),
    (b"[]", "JSON object, not a list"),
    (b"{", "isn't JSON"),
    (request() + b"x", "isn't JSON"),
    (b"\xef\xbb\xbf" + request(), "isn't JSON"),
    (request().decode().encode("utf-16"), "isn't JSON"),
    (b'{"inputs": NaN}', "isn't JSON"),
    (b'{"inputs": Infinity}', "isn't JSON"),
    (b"[" * 100_000, "JSON"),
    (b'{"a":' * 100_000, "JSON"),
    (request(inputs=[]), "at least one tensor"),
    (request(inputs=[ONE, ONE]), "a second input"),
    (request(inputs=[3]), "must be an object"),
    (request(id=3), "id must be"),
    (request(parameters=[]), "parameters must be"),
    (request(parameters={"timeout": 0}), "timeout"),
    (request(parameters={"timeout": -1}), "timeout"),
    (request(parameters={"timeout": 1.5}), "timeout"),
    (request(parameters={"timeout": 2**63}), "timeout"),
    (request(parameters={"priority": -1}), "priority"),
    (request(parameters={"priority": 1 << 64}), "priority"),
    (request(parameters={"binary_data_output": 1}), "binary_data_output"),
    (request(outputs={}), "outputs must be"),
    (request(outputs=[{}]), "with a name"),
    (request(outputs=[{"name": "x", "parameters": {"binary_data": 1}}]), "binary_data"),
]


@pytest.mark.parametrize(("body", "message"), REQUESTS)
def test_requests_that_are_wrong(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read_request(body, None, MOST)


def test_heads_that_come_again_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2, "_heads", {})
    entry = {**ONE, "parameters": {"binary_data_size": 16}}
    del entry["data"]
    head = json.dumps({"inputs": [entry]}).encode()
    for values in ([1, 2], [3, 4]):
        body = head + np.array(values).tobytes()
        assert read_request(body, b"%d" % len(head), MOST).inputs["a"].tolist() == values
    assert len(v2._heads) == 1
    with pytest.raises(BadRequest, match="16 bytes of its binary tensor are missing"):
        read_request(head, b"%d" % len(head), MOST)
    with pytest.raises(TooLarge):  # another limit
        read_request(body, b"%d" % len(head), 1)
    # What doesn't come again isn't kept, nor are more than so many.
    monkeypatch.setattr(v2, "_KEPT_HEADS", 2)
    for n in range(5):
        for more in ({"id": str(n)}, {"model_name": str(n)}):
            head = json.dumps({"inputs": [entry], **more}).encode()
            read_request(head + bytes(16), b"%d" % len(head), MOST)
    assert len(v2._heads) == 2
    read_request(request(), b"%d" % len(request()), MOST)
    assert len(v2._heads) == 2


def test_parameters_are_read() -> None:
    body = request(
        id="7",
        parameters={"timeout": 2500, "priority": (1 << 64) - 1},
        outputs=[{"name": "a"}, {"name": "b"}],
    )
    found = read_request(body, None, MOST)
    assert read_request(request(model_name="x"), None, MOST).inputs["a"].tolist() == [1, 2]
    assert (found.id, found.timeout_s, found.priority) == ("7", 0.0025, (1 << 64) - 1)
    assert found.outputs == ("a", "b") and found.binary == frozenset()
    assert read_request(request(), None, MOST).outputs is None


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"output": []}, "^output isn't supported"),
    ({"raw_input_contents": []}, "^raw_input_contents isn't"),
    ({"parameters": {"temperature": 0.5}}, "^parameters.temperature isn't"),
    (
        {"parameters": {"content_type": "pd"}},
        'content_type isn\'t supported except as "np" or "str"',
    ),
    ({"inputs": [{**ONE, "dtype": "INT64"}]}, r"^inputs\[0\].dtype isn't"),
    (
        {"inputs": [{**ONE, "parameters": {"content_type": "base64"}}]},
        r"^inputs\[0\].parameters.co",
    ),
    ({"inputs": [{**ONE, "parameters": {"shared_memory_region": "r"}}]}, "shared_memory_region"),
    ({"outputs": [{"name": "a", "shape": [1]}]}, r"^outputs\[0\].shape isn't"),
    ({"outputs": [{"name": "a", "parameters": {"binary": True}}]}, r"^outputs\[0\].parameters.bin"),
]


@pytest.mark.parametrize(("changes", "message"), UNKNOWN)
def test_what_is_not_known_is_not_ignored(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unprocessable, match=message):
        read_request(request(**changes), None, MOST)


def test_what_asks_for_nothing_is_taken() -> None:
    """Of KServe's client, Triton's and MLServer's."""
    entry = {**ONE, "parameters": {"content_type": "np", "headers": None}}
    asked = {"sequence_id": 7, "sequence_start": True, "sequence_end": False, "headers": {}}
    body = request(
        id=None,
        model_name="a",
        model_version="1",
        inputs=[entry],
        parameters=asked,
        outputs=[{"name": "a", "parameters": {"content_type": "np", "classification": None}}],
    )
    assert read_request(body, None, MOST).inputs["a"].tolist() == [1, 2]


HEADER_LENGTHS: list[tuple[bytes, str]] = [
    (b"abc", "number of bytes"),
    (b"-1", "number of bytes"),
    (b"1.0", "number of bytes"),
    (b"9" * 30, "number of bytes"),
    (b"0", "raw bodies"),
    (b"99999", "the body has"),
    (b"5", "isn't JSON"),
]


@pytest.mark.parametrize(("length", "message"), HEADER_LENGTHS)
def test_header_lengths_that_are_wrong(length: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read_request(request(), length, MOST)


SIZES: list[tuple[int, int, str]] = [
    (16, 15, "1 bytes of its binary tensor are missing"),
    (16, 17, "1 bytes behind"),
    (15, 15, "15 bytes, shape"),
    (24, 24, "24 bytes, shape"),
    (2**62, 16, "are missing"),
]


@pytest.mark.parametrize(("size", "given", "message"), SIZES)
def test_binary_sizes_that_are_wrong(size: int, given: int, message: str) -> None:
    body, length = with_sizes(given, size)
    with pytest.raises(BadRequest, match=message):
        read_request(body, length, MOST)


def with_sizes(given: int, *sizes: Any) -> tuple[bytes, bytes]:
    """A body and the length of its JSON: an input of two INT64 with each of these sizes, and ``given`` bytes."""
    entries = [
        {**ONE, "name": name, "parameters": {"binary_data_size": size}}
        for name, size in zip("abc", sizes, strict=False)
    ]
    for entry in entries:
        del entry["data"]
    head = json.dumps({"inputs": entries}).encode()
    return head + bytes(given), b"%d" % len(head)


#: Sizes of several tensors that take each other's bytes, or would go back, and the bytes there are.
OVERLAPS: list[tuple[tuple[int, ...], int, str]] = [
    ((16, 16), 16, "16 bytes of its binary tensor are missing"),
    ((16, 16), 24, "8 bytes of its binary tensor are missing"),
    ((24, 8), 32, "24 bytes, shape"),
    ((8, 24), 32, "8 bytes, shape"),
    ((16, -16), 16, "from 0 on"),
    ((-16, 48), 32, "from 0 on"),
    ((16, 0), 16, "0 bytes, shape"),
    ((16, 2**63, 16), 48, "are missing"),
]


@pytest.mark.parametrize(("sizes", "given", "message"), OVERLAPS)
def test_binary_tensors_that_overlap(sizes: tuple[int, ...], given: int, message: str) -> None:
    body, length = with_sizes(given, *sizes)
    with pytest.raises(BadRequest, match=message):
        read_request(body, length, MOST)


def test_a_byte_of_bool_is_0_or_1() -> None:
    with pytest.raises(BadRequest, match="0 or 1"):
        from_bytes(memoryview(b"\x00\x02"), "BOOL", [2], "x")


def test_too_many_elements_of_several_inputs() -> None:
    half = {"name": "b", "shape": [MOST - 1], "datatype": "UINT8", "data": [0] * (MOST - 1)}
    with pytest.raises(TooLarge):
        read_request(json.dumps({"inputs": [ONE, half]}).encode(), None, MOST)
