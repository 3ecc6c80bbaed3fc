"""The Open Inference Protocol, version 2, over REST: requests to arrays, arrays to answers.

Sources: kserve/open-inference-protocol, specification/protocol/inference_rest.md and
open_inference_rest.yaml; Triton's docs/protocol/extension_binary_data.md and extension_parameters.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgecompile.runtime.format.manifest.schema import Manifest, TensorSpec
from edgecompile.server.errors import BadRequest, Unprocessable
from edgecompile.server.protocol.datatypes import BYTES, DATATYPES, DTYPES, NAMES
from edgecompile.server.protocol.documents import dump, kind, load_object, required
from edgecompile.server.protocol.fields import Fields
from edgecompile.server.protocol.tensors import from_bytes, from_list, read_shape, to_bytes

EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "model_configuration",
    "schedule_policy",
    "statistics",
)
#: KServe's client names the model in the body, too.
_REQUEST = Fields("id parameters inputs outputs", "model_name model_version")
_INPUT = Fields("name shape datatype parameters data")
_OUTPUT = Fields("name parameters")
#: MLServer's content types that are what a tensor of numbers or of BYTES is anyway.
_CONTENT = {"content_type": ("np", "str")}
#: The protocol defines no parameter; these are those of its servers. Those of sequences say nothing to a model that
#: keeps no state.
REQUEST_PARAMETERS = Fields(
    "binary_data_output timeout priority",
    "sequence_id sequence_start sequence_end triton_enable_empty_final_response headers",
    _CONTENT,
)
INPUT_PARAMETERS = Fields("binary_data_size", plain=_CONTENT)
OUTPUT_PARAMETERS = Fields("binary_data", plain=_CONTENT)
#: 2^63 microseconds.
_MAX_TIMEOUT = 1 << 63
_MAX_HEADER = 12  # digits


class InferRequest(NamedTuple):
    """A request, read.

    Attributes:
        inputs: arrays by name; of BYTES they hold strings.
        outputs: the outputs that are wanted, None: all.
        binary: the outputs to give as binary tensors; None: all of them.
        id: the id that the answer has to carry, or None.
        timeout_s: seconds in which the answer is of use, or None.
        priority: the request's, 0 without.
    """

    inputs: dict[str, NDArray[Any]]
    outputs: tuple[str, ...] | None
    binary: frozenset[str] | None
    id: str | None
    timeout_s: float | None
    priority: int


class _Tensor(NamedTuple):
    """An input as the JSON describes it: its elements are in ``data``, or ``size`` bytes behind the JSON."""

    where: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: Any


#: What the JSON of requests says: of all but the inputs, and of these.
_Head = tuple[tuple[Any, ...], tuple[_Tensor, ...]]
#: Requests with binary tensors often differ in these alone: so many heads are read once.
_KEPT_HEADS, _MOST_KEPT = 512, 2048  # the latter in bytes
_heads: dict[tuple[bytes, int], _Head] = {}


def read_request(body: bytes, header_length: bytes | None, most: int) -> InferRequest:
    """Reads a body.

    Args:
        body: JSON, or JSON and binary tensors behind it.
        header_length: the header Inference-Header-Content-Length, or None.
        most: elements of all inputs together.

    Raises:
        BadRequest: something is wrong with it.
        TooLarge: it has too many elements.
        Unprocessable: it asks for what isn't done here, as an output in another form.
    """
    cut = _header_length(header_length, len(body))
    if cut is None:
        params, tensors = _read_head(load_object(body), most)
        return InferRequest(_make_arrays(tensors, memoryview(b"")), *params)
    key = (body[:cut], most)
    head = _heads.get(key)
    if head is None:
        document = load_object(key[0])
        head = _read_head(document, most)
        # One with an id doesn't come again, and data would stay in memory.
        binary = all(tensor.size is not None for tensor in head[1])
        if binary and "id" not in document and cut <= _MOST_KEPT:
            if len(_heads) >= _KEPT_HEADS:
                _heads.clear()
            _heads[key] = head
    return InferRequest(_make_arrays(head[1], memoryview(body)[cut:]), *head[0])


def _read_head(document: Mapping[str, Any], most: int) -> _Head:
    parameters = _object(document, "parameters")
    identity = document.get("id")
    if identity is not None and not isinstance(identity, str):
        raise BadRequest(f"id must be a string, not {kind(identity)}")
    tensors = _read_tensors(required(document, "inputs"), most)
    _REQUEST.check(document)
    flag = timeout = None
    priority = 0
    if parameters:
        REQUEST_PARAMETERS.check(parameters, "parameters.")
        flag = _flag(parameters, "binary_data_output", "parameters")
        timeout = _timeout(parameters)
        if parameters.get("priority") is not None:
            priority = check_priority(parameters["priority"])
    outputs, binary = _read_outputs(document.get("outputs"), flag)
    return (outputs, binary, identity, timeout, priority), tensors


def _header_length(header: bytes | None, size: int) -> int | None:
    if header is None:
        return None
    name = "Inference-Header-Content-Length"
    if not header.isdigit() or len(header) > _MAX_HEADER:
        raise BadRequest(f"{name} must be a number of bytes")
    length = int(header)
    if length == 0:
        raise BadRequest(f"{name} is 0: raw bodies without JSON aren't taken")
    if length > size:
        raise BadRequest(f"{name} is {length}, but the body has {size} bytes")
    return length


def _read_tensors(entries: Any, most: int) -> tuple[_Tensor, ...]:
    if not isinstance(entries, list) or not entries:
        raise BadRequest("inputs must be a list of at least one tensor")
    tensors: dict[str, _Tensor] = {}
    total = 0
    for index, entry in enumerate(entries):
        where = f"inputs[{index}]"
        if not isinstance(entry, dict):
            raise BadRequest(f"{where} must be an object, not {kind(entry)}")
        name, datatype = entry.get("name"), entry.get("datatype")
        if not isinstance(name, str) or not name:
            raise BadRequest(f"{where}: name must be a string")
        if name in tensors:
            raise BadRequest(f"{where}: a second input {_short(name)}")
        if not isinstance(datatype, str) or (datatype not in DTYPES and datatype != BYTES):
            datatypes = ", ".join((*DTYPES, BYTES))
            raise BadRequest(f"{where}: datatype {_short(datatype)} must be one of {datatypes}")
        shape = read_shape(entry.get("shape"), where, most - total)
        size = _binary_size(entry, where)
        if size is None and "data" not in entry:
            raise BadRequest(f"{where} has neither data nor a binary tensor")
        if size is not None and "data" in entry:
            raise BadRequest(f"{where} has both data and a binary tensor")
        _INPUT.check(entry, f"{where}.")
        tensors[name] = _Tensor(where, name, datatype, shape, size, entry.get("data"))
        if len(entries) > 1:
            total += math.prod(shape)
    return (*tensors.values(),)


def _make_arrays(tensors: Sequence[_Tensor], rest: memoryview) -> dict[str, NDArray[Any]]:
    """The inputs; ``rest`` are the bytes behind the JSON."""
    arrays: dict[str, NDArray[Any]] = {}
    at = 0
    for where, name, datatype, shape, size, data in tensors:
        if size is None:
            arrays[name] = from_list(data, datatype, shape, where)
            continue
        if at + size > len(rest):
            missing = at + size - len(rest)
            raise BadRequest(f"{where}: {missing} bytes of its binary tensor are missing")
        arrays[name] = from_bytes(rest[at : at + size], datatype, shape, where)
        at += size
    if at != len(rest):
        raise BadRequest(f"{len(rest) - at} bytes behind the last binary tensor")
    return arrays


def _binary_size(entry: Mapping[str, Any], where: str) -> int | None:
    parameters = _object(entry, "parameters", where)
    INPUT_PARAMETERS.check(parameters, f"{where}.parameters.")
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise BadRequest(f"{where}: binary_data_size must be an integer from 0 on")
    return size


def _read_outputs(
    entries: Any, all_binary: bool | None
) -> tuple[tuple[str, ...] | None, frozenset[str] | None]:
    if entries is None:
        return None, None if all_binary else frozenset()
    if not isinstance(entries, list):
        raise BadRequest(f"outputs must be a list, not {kind(entries)}")
    names, binary = [], set()
    for index, entry in enumerate(entries):
        where = f"outputs[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadRequest(f"{where} must be an object with a name")
        names.append(entry["name"])
        _OUTPUT.check(entry, f"{where}.")
        parameters = _object(entry, "parameters", where)
        OUTPUT_PARAMETERS.check(parameters, f"{where}.parameters.")
        flag = _flag(parameters, "binary_data", where)
        if all_binary if flag is None else flag:
            binary.add(entry["name"])
    if not names:
        return None, None if all_binary else frozenset()
    return tuple(names), frozenset(binary)


def _object(entry: Mapping[str, Any], key: str, where: str = "") -> dict[str, Any]:
    value = entry.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        prefix = f"{where}: " if where else ""
        raise BadRequest(f"{prefix}{key} must be an object, not {kind(value)}")
    return value


def _flag(parameters: Mapping[str, Any], key: str, where: str) -> bool | None:
    value = parameters.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{where}: {key} must be true or false")
    return value


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    value = parameters.get("timeout")
    if value is None:
        return None
    if type(value) is not int or not 0 < value < _MAX_TIMEOUT:
        raise BadRequest("parameters: timeout must be microseconds, an integer from 1 on")
    return value / 1e6


def check_priority(value: Any) -> int:
    """A priority as Triton's extension "schedule_policy" has it.

    Raises:
        BadRequest: it is none.
    """
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise BadRequest("parameters: priority must be an integer from 0 on")
    return value


def _short(value: Any) -> str:
    return f"{value!r:.100}"


def format_answer(
    name: str, version: str, request: InferRequest, outputs: Mapping[str, NDArray[Any]]
) -> tuple[bytes, int | None]:
    """The body of an answer, and how many bytes of it are JSON if binary tensors follow.

    Raises:
        Unprocessable: an output can't be written as JSON.
    """
    entries: list[dict[str, Any]] = []
    tensors: list[bytes] = []
    for output, array in outputs.items():
        datatype = BYTES if array.dtype == object else DATATYPES[array.dtype]
        entry: dict[str, Any] = {
            "name": output,
            "datatype": datatype,
            "shape": list(array.shape),
        }
        if request.binary is None or output in request.binary:
            tensor = to_bytes(array)
            entry["parameters"] = {"binary_data_size": len(tensor)}
            tensors.append(tensor)
        else:
            if datatype == "FP16":
                raise Unprocessable(f"{output} is FP16: ask for a binary tensor")
            entry["data"] = array.ravel()
        entries.append(entry)
    document: dict[str, Any] = {"model_name": name, "model_version": version}
    if request.id is not None:
        document["id"] = request.id
    document["outputs"] = entries
    head = dump(document)
    if b"null" in head:  # what numbers that JSON lacks have become, or a word in a name
        _check_finite(entries)
    if not tensors:
        return head, None
    return b"".join((head, *tensors)), len(head)


def _check_finite(entries: Sequence[Mapping[str, Any]]) -> None:
    for entry in entries:
        array = entry.get("data")
        if array is not None and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Unprocessable(
                f"{entry['name']} holds NaN or infinities, which JSON lacks: ask for a binary tensor"
            )


def describe(name: str, versions: Sequence[str], manifest: Manifest) -> dict[str, Any]:
    """A model's metadata."""
    return {
        "name": name,
        "versions": list(versions),
        "platform": "edgecompile",
        "inputs": [_describe(item) for item in manifest.inputs],
        "outputs": [_describe(item) for item in manifest.outputs],
    }


def _describe(item: TensorSpec) -> dict[str, Any]:
    shape = [dim if isinstance(dim, int) else -1 for dim in item.shape]
    return {"name": item.name, "datatype": NAMES.get(item.dtype, item.dtype), "shape": shape}
