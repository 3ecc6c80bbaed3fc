"""What generated code calls from outside, and which kernels of it the native runtime has.

Inductor writes above each such call which nodes of the graph it stands for; so every call leads back
to the model's modules and lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from edgecompile.toolchain.native import runtime_sources

__all__ = ["PROXY", "ExternCall", "all_calls", "extern_calls", "runtime_kernels"]

#: What operators without a C interface in AOTInductor are called through.
PROXY = "aoti_torch_proxy_executor_call_function"

_PREFIX = "aoti_torch_cpu_"
#: Inductor writes such a line before each call: nodes of the graph and, where it knows them, operators.
_COMMENT = re.compile(
    r"// Topologically Sorted Source Nodes: \[(.*?)\](?:, Original ATen: \[(.*?)\])?"
)
_CALL = re.compile(r"\b(aoti_torch_\w+)\(")
_DEFINED = re.compile(rf"^AOTITorchError ec_({_PREFIX}\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class ExternCall:
    """One call.

    Attributes:
        symbol: the C function.
        nodes: names of the graph's nodes that it stands for, the operator itself last.
        operators: their operators, such as ``aten.addmm``.
    """

    symbol: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function without its prefix; an operator's name for what has no C interface."""
        if self.symbol != PROXY:
            return self.symbol.removeprefix(_PREFIX)
        # What only checks its inputs has no operator's name, but it stands for a node.
        return [*self.nodes, *self.operators][-1] if self.nodes or self.operators else "an operator"

    @property
    def native(self) -> bool:
        """Whether the native runtime has it."""
        return self.symbol in runtime_kernels()


def all_calls(wrapper: str) -> Iterator[ExternCall]:
    """The calls of AOTInductor's C interface in its C++ of a model, in their order."""
    nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    for line in wrapper.splitlines():
        comment = _COMMENT.search(line)
        if comment is not None:
            nodes, operators = _listed(comment[1]), _listed(comment[2] or "")
            continue
        code = line.partition("//")[0]
        if "extern " in code or code.lstrip().startswith("AOTITorchError "):
            continue  # a declaration
        for symbol in _CALL.findall(code):
            yield ExternCall(symbol, nodes, operators)


def extern_calls(wrapper: str) -> tuple[ExternCall, ...]:
    """Those of them that compute something: kernels, and what has no C interface."""
    calls = all_calls(wrapper)
    return tuple(x for x in calls if x.symbol == PROXY or x.symbol.startswith(_PREFIX))


@cache
def runtime_kernels() -> frozenset[str]:
    """The kernels for generated code that the native runtime's sources define."""
    return frozenset(
        name
        for path in runtime_sources().values()
        for name in _DEFINED.findall(path.read_text(encoding="utf-8"))
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())
