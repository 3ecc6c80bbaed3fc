"""The kernels that generated code calls from outside, and which of them the native runtime has.

Inductor writes above each such call which nodes of the graph it stands for; so every call leads back
to the model's modules and lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from edgecompile.backends.native import native_sources

__all__ = ["PROXY", "ExternCall", "extern_calls", "runtime_kernels"]

#: What operators without a C interface in AOTInductor are called through.
PROXY = "aoti_torch_proxy_executor_call_function"

_PREFIX = "aoti_torch_cpu_"
_COMMENT = re.compile(r"// Topologically Sorted Source Nodes: \[(.*?)\], Original ATen: \[(.*?)\]")
_CALL = re.compile(rf"AOTI_TORCH_ERROR_CODE_CHECK\(({_PREFIX}\w+|{PROXY})\(")
_DEFINED = re.compile(rf"^AOTITorchError ec_({_PREFIX}\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class ExternCall:
    """One call.

    Attributes:
        symbol: the C function.
        name: it without its prefix; an operator's name for what has no C interface.
        nodes: names of the graph's nodes that it stands for, the operator itself last.
    """

    symbol: str
    name: str
    nodes: tuple[str, ...]

    @property
    def native(self) -> bool:
        """Whether the native runtime has it."""
        return self.symbol in runtime_kernels()


def extern_calls(wrapper: str) -> tuple[ExternCall, ...]:
    """The calls in Inductor's C++ of a model, in their order."""
    calls = []
    nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    for line in wrapper.splitlines():
        comment = _COMMENT.search(line)
        if comment is not None:
            nodes, operators = _listed(comment[1]), _listed(comment[2])
            continue
        for match in _CALL.finditer(line):
            symbol = match[1]
            # What only checks its inputs has no operator's name, but it stands for a node.
            proxied = [*nodes, *operators][-1] if nodes or operators else "an operator"
            name = proxied if symbol == PROXY else symbol.removeprefix(_PREFIX)
            calls.append(ExternCall(symbol, name, nodes))
    return tuple(calls)


@cache
def runtime_kernels() -> frozenset[str]:
    """The kernels for generated code that the native runtime's sources define."""
    sources = native_sources().glob("*.cpp")
    return frozenset(
        name for path in sources for name in _DEFINED.findall(path.read_text(encoding="utf-8"))
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())
