"""The operators that AOTInductor's code can't call by torch's C interface, as a bundle lists them.

Inductor describes each such call in the form of a serialized graph; of that the loader
(``edgecompile/torch_runtime/calls.py``) needs the operator's name and what isn't handed over with
every run. Tensors and integers are, in the order of the arguments, results after arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgecompile.backends.inductor.compat.functions import torch_constant
from edgecompile.errors import CompileError

_PLAIN = ("as_float", "as_floats", "as_bool", "as_bools", "as_string", "as_strings")
_KEYWORD = 2


def list_calls(nodes: str) -> str:
    """The list that a program carries, as JSON.

    Args:
        nodes: the text that Inductor wrote beside the code; "" if there are no such calls.

    Raises:
        CompileError: a call has an argument or result of a kind that isn't supported; lists all.
    """
    calls, problems = [], []
    for item in json.loads(nodes)["nodes"] if nodes else []:
        node = item["node"]
        call: dict[str, Any] = {"operator": node["target"], "arguments": [], "returns": []}
        for entry in node["inputs"]:
            slot = _argument(entry["arg"])
            if slot is None:
                problems.append(f"{node['target']}: {entry['name']} is {_kind(entry['arg'])}")
                continue
            keyword = entry.get("kind") == _KEYWORD
            call["arguments"].append({"name": entry["name"], "keyword": keyword, **slot})
        for entry in node["outputs"]:
            slot = _result(entry)
            if slot is None:
                problems.append(f"{node['target']}: a result is {_kind(entry)}")
                continue
            call["returns"].append(slot)
        calls.append(call)
    if problems:
        raise CompileError(
            "these operators take or give what compiled code can't hand over: "
            + "; ".join(problems),
            hint="take them out of the compiled part of the model",
        )
    return json.dumps(calls, separators=(",", ":"))


def _kind(argument: Mapping[str, Any]) -> str:
    return next(iter(argument)).removeprefix("as_").replace("_", " ")


def _argument(argument: Mapping[str, Any]) -> dict[str, Any] | None:
    ((kind, value),) = argument.items()
    if kind == "as_none":
        return {"kind": "value", "value": None}
    if kind in _PLAIN:
        return {"kind": "value", "value": value}
    if kind == "as_tensor":
        return {"kind": "tensor"}
    if kind == "as_optional_tensor":
        return {"kind": "tensor"} if "as_tensor" in value else {"kind": "value", "value": None}
    if kind == "as_tensors":
        return {"kind": "tensors", "value": [True] * len(value)}
    if kind == "as_optional_tensors":
        return {"kind": "tensors", "value": ["as_tensor" in item for item in value]}
    if kind in ("as_int", "as_sym_int"):
        return {"kind": "int"}
    if kind in ("as_ints", "as_sym_ints"):
        return {"kind": "ints", "value": len(value)}
    if kind in ("as_scalar_type", "as_layout", "as_memory_format"):
        return {"kind": "torch", "value": torch_constant(kind, value)}
    if kind == "as_device":
        return {"kind": "device", "value": value["type"]}
    return None


def _result(result: Mapping[str, Any]) -> dict[str, Any] | None:
    ((kind, value),) = result.items()
    if kind == "as_tensor" or (kind == "as_optional_tensor" and "as_tensor" in value):
        return {"kind": "tensor"}
    if kind == "as_tensors":
        return {"kind": "tensors", "count": len(value)}
    if kind in ("as_none", "as_int", "as_optional_tensor"):
        return {"kind": "none"}
    return None
