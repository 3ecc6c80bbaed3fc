"""JSON as bytes: with orjson where it is installed, else with the standard library, to one result."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from edgecompile.server.errors import BadRequest, no_memory

orjson: Any = None
with contextlib.suppress(ImportError):
    import orjson


def load_object(body: bytes | memoryview) -> dict[str, Any]:
    """The object that a body holds.

    Raises:
        BadRequest: it is no JSON object in UTF-8, or one of too many levels.
        NotReady: there isn't the memory to read it.
    """
    try:
        value = orjson.loads(body) if orjson is not None else _loads(bytes(body))
    except RecursionError:
        raise BadRequest("the body's JSON has too many levels") from None
    except ValueError as error:  # of both libraries, and of a wrong encoding
        if str(error).startswith("Not enough memory"):  # orjson's, which isn't about the body
            raise no_memory() from None
        raise BadRequest(f"the body isn't JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, not {kind(value)}")
    return value


def required(document: Mapping[str, Any], key: str) -> Any:
    """The value of a key.

    Raises:
        BadRequest: it is missing, or null.
    """
    value = document.get(key)
    if value is None:
        raise BadRequest(f"{key} is missing")
    return value


def _loads(body: bytes) -> Any:
    return json.loads(body.decode("utf-8"), parse_constant=_refuse, parse_float=_read_float)


def _read_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is more than a double holds")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't a number of JSON")


def dump(value: Any) -> bytes:
    """``value`` as JSON; arrays of numbers, contiguous, as lists. NaN and infinities become null."""
    if orjson is not None:
        encoded: bytes = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        return encoded
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # The shortest digits that give a float32 back, not those of its double.
        if value.dtype == np.float32:
            flat = [float(str(item)) for item in value.ravel()]
            return _plain(np.array(flat, np.float64).reshape(value.shape).tolist())
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def kind(value: Any) -> str:
    """JSON's name of a value's type, with its article."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def shown(value: Any) -> str:
    """A value in a message as a client wrote it, cut."""
    return f"{json.dumps(value, ensure_ascii=False):.50}"
