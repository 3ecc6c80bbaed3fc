"""Operators of torch that have no C interface: compiled code asks for them to be called here.

The program holds a list of such calls, a JSON text that the builder wrote (backends/torch/calls.py).
Tensors and integers come with each run, in the order of the arguments; all else is in the list.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.format.document import shorten

from .container import Container, OperatorCall
from .handles import new_handle, take_tensor

#: The program's symbol with the list.
SYMBOL = "ec_torch_calls"


class Operator(NamedTuple):
    """One call: what is called, and how its arguments and results are laid out."""

    name: str
    function: Any
    arguments: Sequence[Mapping[str, Any]]
    returns: Sequence[Mapping[str, Any]]


def read_operators(text: bytes, label: str) -> list[Operator]:
    """The calls of a program.

    Raises:
        NativeError: torch here lacks operators, all of which are listed, or the text is no list.
    """
    operators, missing = [], []
    try:
        for entry in json.loads(text):
            name = entry["operator"]
            function = _find(name)
            if function is None:
                missing.append(name)
            operators.append(Operator(name, function, entry["arguments"], entry["returns"]))
    except (ValueError, KeyError, TypeError) as error:
        raise NativeError(f"{label}: its list of operators can't be read: {error}") from None
    if missing:
        raise NativeError(
            f"{label}: torch here has no operator {', '.join(sorted(set(missing)))}",
            "import the package that registers it before open_bundle",
        )
    return operators


def _find(name: str) -> Any:
    """The operator ``namespace::name.overload``, or None."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError):
        return None


class OperatorCalls:
    """Calls the operators of a program; ``entry`` is what the program is given.

    Args:
        container: whose handles come and go.
        operators: the operators by the number that the program uses.
    """

    def __init__(self, container: Container, operators: Sequence[Operator]) -> None:
        self._container = container
        self._operators = operators
        self._failed = threading.local()
        self.entry = OperatorCall(self._call)

    def forget_failure(self) -> None:
        """Before a run."""
        self._failed.text = None

    @property
    def failure(self) -> str | None:
        """The failure on this thread since; None: none."""
        text: str | None = getattr(self._failed, "text", None)
        return text

    def _call(self, number: int, n_ints: int, ints: Any, n_tensors: int, handles: Any) -> int:
        # Nothing may be raised into native code.
        name = f"call {number}"
        try:
            operator = self._operators[number]
            name = operator.name
            self._run(operator, iter(ints[:n_ints]), iter(handles[:n_tensors]))
            return 0
        except BaseException as error:
            self._failed.text = f"{name}: {type(error).__name__}: {shorten(error, 1000)}"
            return 1

    def _run(self, operator: Operator, ints: Iterator[int], handles: Iterator[int]) -> None:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for argument in operator.arguments:
            value = self._argument(argument, ints, handles)
            if argument["keyword"]:
                named[argument["name"]] = value
            else:
                positional.append(value)
        with torch.no_grad():
            result = operator.function(*positional, **named)
        results = (result,) if len(operator.returns) == 1 else result or ()
        for layout, item in zip(operator.returns, results, strict=True):
            if layout["kind"] == "tensor":
                self._give(item, next(handles))
            elif layout["kind"] == "tensors":
                if len(item) != layout["count"]:
                    raise ValueError(f"gave {len(item)} tensors instead of {layout['count']}")
                for tensor in item:
                    self._give(tensor, next(handles))

    def _argument(
        self, argument: Mapping[str, Any], ints: Iterator[int], handles: Iterator[int]
    ) -> Any:
        kind = argument["kind"]
        value: Any = argument.get("value")
        if kind == "tensor":
            return self._tensor(next(handles))
        if kind == "tensors":
            # Of optional ones, those that are absent.
            return [self._tensor(next(handles)) if there else None for there in value]
        if kind == "int":
            return next(ints)
        if kind == "ints":
            return [next(ints) for _ in range(value)]
        if kind == "torch":  # a dtype, layout or memory format
            return getattr(torch, value)
        if kind == "device":
            return torch.device(value)
        return value

    def _tensor(self, handle: int) -> torch.Tensor:
        # The program keeps its own handle.
        copy = ctypes.c_void_p()
        self._container.call("aoti_torch_new_tensor_handle", handle, ctypes.byref(copy))
        return take_tensor(int(copy.value or 0))

    def _give(self, tensor: torch.Tensor, target: int) -> None:
        """Lets the program's handle ``target`` stand for ``tensor``."""
        source = new_handle(tensor)
        try:
            self._container.call("aoti_torch_assign_tensors", source, target)
        finally:
            self._container.free([source])
