"""Tensors of the protocol's messages as arrays, and arrays as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompile.server.errors import BadRequest, TooLarge
from edgecompile.server.protocol.datatypes import BYTES, DTYPES, NAMES
from edgecompile.server.protocol.tensors import split_strings, to_texts

#: The field of InferTensorContents that has a datatype's values. FP16 has none.
FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
#: Inputs of a request.
_MOST = 1024
#: Dimensions of an input.
_RANK = 32


def read_inputs(request: Any, elements: float = math.inf) -> dict[str, NDArray[Any]]:
    """The inputs of a ModelInferRequest by name; raw ones are views of its bytes, of BYTES strings.

    Args:
        request: the message.
        elements: the largest number of elements of all inputs together.

    Raises:
        BadRequest: lists every input that is malformed.
        TooLarge: they have more elements.
    """
    most = sum(math.prod(t.shape[:_RANK]) for t in request.inputs[:_MOST])
    if most > elements:
        raise TooLarge(f"the inputs have {most} elements, at most {elements}")
    raw = request.raw_input_contents
    problems = []
    arrays: dict[str, NDArray[Any]] = {}
    if len(request.inputs) > _MOST:
        problems.append(f"{len(request.inputs)} inputs, at most {_MOST}")
    elif raw and len(raw) != len(request.inputs):
        problems.append(f"{len(raw)} raw contents for {len(request.inputs)} inputs")
    else:
        for index, tensor in enumerate(request.inputs):
            try:
                if tensor.name in arrays:
                    raise ValueError("is given twice")
                arrays[tensor.name] = _read(tensor, raw[index] if raw else None)
            except ValueError as error:
                problems.append(f"input {tensor.name!r:.80} {error}")
    if problems:
        raise BadRequest("; ".join(problems))
    return arrays


def _read(tensor: Any, raw: bytes | None) -> NDArray[Any]:
    datatypes = (*DTYPES, BYTES)
    if tensor.datatype not in datatypes:
        raise ValueError(f"has datatype {tensor.datatype!r:.40}, not one of {', '.join(datatypes)}")
    shape = tuple(tensor.shape)
    if len(shape) > _RANK or any(size < 0 for size in shape):
        raise ValueError(
            f"has shape {list(shape[:_RANK])}; sizes aren't negative, and at most {_RANK}"
        )
    if raw is None:
        return _from_contents(tensor, shape)
    if tensor.HasField("contents"):
        raise ValueError("has contents, beside the raw ones")
    if tensor.datatype == BYTES:
        return to_texts(split_strings(memoryview(raw)), shape)
    dtype = DTYPES[tensor.datatype]
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise ValueError(f"has {len(raw)} bytes; {list(shape)} of {tensor.datatype} are {expected}")
    values = np.frombuffer(raw, dtype).reshape(shape)
    if dtype == np.bool_ and values.view(np.uint8).max(initial=0) > 1:
        raise ValueError("has a byte that is neither 0 nor 1 as BOOL")
    return values


def _from_contents(tensor: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    field, count = FIELDS.get(tensor.datatype), math.prod(shape)
    if field is None:
        raise ValueError(f"is {tensor.datatype}, which has raw contents alone")
    names = [item.name for item, _ in tensor.contents.ListFields()]
    if count and names != [field]:
        raise ValueError(f"is {tensor.datatype}: its values belong in {field}, not in {names}")
    values = getattr(tensor.contents, field)
    if len(values) != count:
        raise ValueError(f"has {len(values)} values; {list(shape)} are {count}")
    if tensor.datatype == BYTES:
        return to_texts(values, shape)
    dtype = DTYPES[tensor.datatype]
    wide = np.fromiter(values, _WIDE.get(field, dtype), count)
    if count and tensor.datatype in _NARROW:
        limits = np.iinfo(dtype)
        if wide.min() < limits.min or wide.max() > limits.max:
            raise ValueError(f"has values outside {tensor.datatype}, {limits.min} to {limits.max}")
    return wide.astype(dtype, copy=False).reshape(shape)


#: The fields whose values may not fit the tensor's own type.
_WIDE = {"int_contents": "int32", "uint_contents": "uint32"}
_NARROW = ("INT8", "INT16", "UINT8", "UINT16")


def write_outputs(response: Any, arrays: Mapping[str, NDArray[Any]], *, raw: bool) -> None:
    """Adds arrays to a ModelInferResponse.

    Args:
        response: the message that gets them.
        arrays: the arrays by name, in any layout.
        raw: send bytes, not typed contents; half precision always is, and then all are.
    """
    raw = raw or any(array.dtype == np.float16 for array in arrays.values())
    for name, array in arrays.items():
        datatype = NAMES[array.dtype.name]
        tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if raw:
            response.raw_output_contents.append(little.tobytes())
        else:
            getattr(tensor.contents, FIELDS[datatype]).extend(little.ravel().tolist())
