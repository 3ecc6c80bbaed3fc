"""The operators that are taken: by domain, name and version, the function that computes each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from edgecompile.onnx_import.graph import Node

_MODULES = (
    "elementwise", "shapes", "indexing", "reductions", "linear", "convolutions", "norms", "resizing",
    "recurrent", "quantized", "fused", "attention",
)  # fmt: skip
NEWEST = 28
MICROSOFT = "com.microsoft"
#: Operators that the importer puts in for others whose weights it has rearranged.
OWN = "edgecompile"


@dataclass(frozen=True)
class Operator:
    """An operator.

    Attributes:
        compute: a function of the node and its inputs; an absent one is None.
        since, until: the first and the last version of the domain for which it holds.
        numbers: places of inputs that come as lists of numbers, known while the model is traced.
        scalars: places of inputs of which one known number comes as a Python number.
        known: places of inputs that come as :class:`Known` where they are.
    """

    compute: Callable[..., Any]
    since: int
    until: int
    numbers: tuple[int, ...]
    scalars: tuple[int, ...]
    known: tuple[int, ...]


_TABLE: dict[tuple[str, str], list[Operator]] = {}


def operator(
    *names: str,
    since: int = 1,
    until: int = 1000,
    numbers: tuple[int, ...] = (),
    scalars: tuple[int, ...] = (),
    known: tuple[int, ...] = (),
    domain: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function into the table; arguments as :class:`Operator` has them."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            rows = _TABLE.setdefault((domain, name), [])
            rows.append(Operator(function, since, until, numbers, scalars, known))
        return function

    return enter


@cache
def _load() -> None:
    for name in _MODULES:
        import_module(f"edgecompile.onnx_import.operators.{name}")


def names(domain: str = "") -> list[str]:
    """The operators of a domain that are taken."""
    _load()
    return sorted(name for where, name in _TABLE if where == domain)


def find(node: Node) -> Operator | None:
    """The entry of a node's operator; None: it isn't taken in this version."""
    _load()
    rows = _TABLE.get((node.domain, node.operator), ())
    return next((row for row in rows if row.since <= node.opset <= row.until), None)
