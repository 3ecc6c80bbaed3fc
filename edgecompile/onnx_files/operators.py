"""Every operator of a graph against what the target's TensorRT takes.

What it takes is data: ``tensorrt_operators.toml``, with its sources. TensorRT itself would say the
same on the device, one operator at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edgecompile.errors import OpsetError, TargetError, UnsupportedOperatorError
from edgecompile.onnx_files.graph import OnnxGraph, attribute, inner_graphs, schema_of
from edgecompile.targets.schema import read_toml

_FILE = Path(__file__).with_name("tensorrt_operators.toml")


@dataclass(frozen=True)
class OnnxTarget:
    """The target of an ONNX file.

    Attributes:
        tensorrt: release as major.minor, such as 10.3.
        opset: the newest version of ONNX's operators that may be used.
    """

    tensorrt: str = "10.3"
    opset: int = 20


@dataclass(frozen=True)
class Violation:
    """One thing that TensorRT wouldn't take.

    Attributes:
        node: the node's name; empty: the network's input or output, or the whole graph.
        operator: its operator.
        place: its origin in the model.
        problem: the problem.
    """

    node: str
    operator: str
    place: str
    problem: str

    def __str__(self) -> str:
        where = f" in {self.place}" if self.place else ""
        return f"{self.operator or 'network'}{where}: {self.problem}"


@dataclass(frozen=True)
class OpsReport:
    """The result of a comparison with a release.

    Attributes:
        tensorrt: the release.
        opset: the opset of the graph.
        operators: the number of uses of each.
        violations: all of them.
        warnings: the operators that it takes, but doesn't calculate as ONNX does.
        source: the known facts about the release.
    """

    tensorrt: str
    opset: int
    operators: Mapping[str, int]
    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    source: str

    def check(self) -> None:
        """Raises an UnsupportedOperatorError that lists every violation, if there is any."""
        if not self.violations:
            return
        lines = [f"  {item}" for item in self.violations]
        count = len(lines)
        raise UnsupportedOperatorError(
            f"TensorRT {self.tensorrt} doesn't take {count} "
            f"{'part' if count == 1 else 'parts'} of the model:\n" + "\n".join(lines),
            hint="write these parts with other operations, or build for the CPU of the device "
            '(`target="jetson-orin-cpu"`)',
        )


def known_releases() -> tuple[str, ...]:
    """The TensorRT releases that something is known of, oldest first."""
    return tuple(sorted(_table()["releases"], key=_order))


def check_operators(graph: OnnxGraph, target: OnnxTarget) -> OpsReport:
    """Compares every node, those of inner graphs too, with the target's list.

    Raises:
        OpsetError: the graph's opset is newer than the target takes.
        TargetError: nothing is known of the target's TensorRT.
    """
    release = _release(target.tensorrt)
    most = min(target.opset, int(release["opset"]))
    if not int(release["least_opset"]) <= graph.opset <= most:
        raise OpsetError(
            f"the ONNX graph has opset {graph.opset}, TensorRT {target.tensorrt} may be given "
            f"{release['least_opset']} to {most}",
            hint="export with an opset that it takes, or build for a newer JetPack (`jetpack`)",
        )
    checker = _Checker(graph, target.tensorrt)
    violations = [*checker.network(), *checker.nodes(graph.proto.graph, None)]
    return OpsReport(
        tensorrt=target.tensorrt,
        opset=graph.opset,
        operators=dict(sorted(checker.counts.items())),
        violations=tuple(violations),
        warnings=tuple(checker.warnings),
        source=str(release["source"]),
    )


class _Checker:
    """One graph against one release."""

    def __init__(self, graph: OnnxGraph, tensorrt: str) -> None:
        self.graph = graph
        self.tensorrt = tensorrt
        self.table = _table()
        self.values = graph.infer()
        self.counts: Counter[str] = Counter()
        self.warnings: list[Violation] = []
        self.constants = {*graph.tensors, *_inner_constants(graph.proto.graph)}
        self.used = {*graph.outputs, *graph.consumers()}

    def network(self) -> Iterator[Violation]:
        """Problems of inputs and outputs."""
        allowed = self.table["network"]["types"]
        for kind, values in (("input", self.graph.inputs), ("output", self.graph.outputs)):
            for name, dtype in values.items():
                if dtype not in allowed:
                    yield Violation("", "", "", f"the {kind} '{name}' is {dtype}")
        if not self._is_later(self.table["network"]["int64_since"]):
            return
        users = self.graph.consumers()
        most = np.iinfo(np.int32).max
        for name, array in self.graph.tensors.items():
            if (
                array.dtype != np.int64
                or not array.size
                or -most <= array.min() <= array.max() <= most
            ):
                continue
            # The ends of a Slice only mean "up to the end".
            for node in (user for user in users.get(name, ()) if user.op_type != "Slice"):
                problem = (
                    f"its constant '{name}' is beyond 32 bits, in which TensorRT calculates int64"
                )
                yield Violation(node.name, node.op_type, str(self.graph.place(node.name)), problem)

    def nodes(self, proto: Any, outer: str | None) -> Iterator[Violation]:
        """Problems of nodes; ``outer`` is the node whose inner graph they are in."""
        for node in proto.node:
            self.counts[node.op_type] += 1
            where = node.name if outer is None else outer
            place = str(self.graph.place(where))
            for problem in self._problems(node):
                yield Violation(node.name, node.op_type, place, problem)
            for rule in self._rules("inexact", node.op_type):
                if self.values.get(node.input[0], (None, None))[0] in rule["types"]:
                    self.warnings.append(Violation(node.name, node.op_type, place, rule["problem"]))
            for inner in inner_graphs(node):
                yield from self.nodes(inner, where)

    def _problems(self, node: Any) -> Iterator[str]:
        operator = node.op_type
        if node.domain not in ("", "ai.onnx"):
            yield f"is an operator of '{node.domain}', not one of ONNX"
            return
        types = _types().get(operator)
        if types is None:
            yield f"TensorRT {self.tensorrt} has no such operator"
            return
        since = self.table["since"].get(operator)
        if self._is_later(since):
            yield f"TensorRT has it from {since} on"
            return
        yield from self._type_problems(node, types)
        yield from self._rule_problems(node)

    def _type_problems(self, node: Any, types: Sequence[str]) -> Iterator[str]:
        for rule in self._rules("narrower", node.op_type):
            types = rule["types"]
        types = [name for name in types if not self._is_later(self.table["types_since"].get(name))]
        names = list(node.input[:1])
        if node.op_type in ("Cast", "CastLike", "ConstantOfShape", "OneHot", "Where"):
            names += list(node.output[:1])
        for name in names:
            dtype, rank = self.values.get(name, (None, None))
            if dtype is not None and dtype not in types:
                yield f"'{name}' is {dtype}; it takes {', '.join(types)}"
            if rank is not None and rank > self.table["network"]["most_dims"]:
                yield f"'{name}' has {rank} dimensions"

    def _rule_problems(self, node: Any) -> Iterator[str]:
        operator = node.op_type
        for rule in self._rules("constants", operator):
            if self._computed(node, rule["input"]):
                yield f"its {rule['name']} are calculated, they must be constants"
        for rule in self._rules("attributes", operator):
            value = attribute(node, rule["name"])
            value = value.decode() if isinstance(value, bytes) else value
            if value is not None and "values" in rule and value not in rule["values"]:
                yield f"its attribute {rule['name']} is {value!r}, not one of {rule['values']}"
            if value is not None and rule.get("without", "\0") in str(value):
                yield f"its attribute {rule['name']} is {value!r}, with '{rule['without']}'"
        for rule in self._rules("unread", operator):
            for name in rule["names"]:
                value = attribute(node, name)
                if value is not None and value != self._default(node, name):
                    yield f"its attribute {name} is {value!r}, which its parser doesn't read"
        for rule in self._rules("inputs", operator):
            if len(node.input) > rule["most"]:
                yield f"it has {len(node.input)} inputs, {rule['most']} are taken"
        for rule in self._rules("outputs", operator):
            used = sum(1 for name in node.output[rule["most"] :] if name in self.used)
            if used:
                yield f"only its first {rule['most']} of {len(node.output)} outputs may be used"
        for rule in self._rules("ranks", operator):
            _, rank = self.values.get(node.input[0], (None, None))
            if rank is not None and rank not in rule["ranks"]:
                yield f"its input has {rank} dimensions, not {rule['ranks']}"
        for rule in self._rules("zeros", operator):
            if rule["input"] < len(node.input) and node.input[rule["input"]]:
                array = self.graph.tensors.get(node.input[rule["input"]])
                if array is None or array.any():
                    yield f"its {rule['name']} isn't zero"
        if operator == "Einsum" and self._is_later("10.12"):
            terms = attribute(node, "equation", b"").decode().replace("->", ",").split(",")
            twice = [t for t in terms if len(set(t.strip())) < len(t.strip()) and "..." not in t]
            if twice:
                yield f"a letter stands twice in {', '.join(twice)}"

    def _default(self, node: Any, name: str) -> Any:
        """The value that ONNX gives an attribute that isn't there; None: none."""
        import onnx

        schema = schema_of(node, self.graph.opset)
        known = schema.attributes.get(name) if schema is not None else None
        if known is None or not known.default_value.name:
            return None
        return onnx.helper.get_attribute_value(known.default_value)

    def _rules(self, kind: str, operator: str) -> Iterator[Mapping[str, Any]]:
        for rule in self.table[kind]:
            until = rule.get("until")
            if operator in rule["operators"] and (until is None or self._is_later(until)):
                yield rule

    def _is_later(self, release: str | None) -> bool:
        """Whether a release came after the target's; None: it didn't."""
        return release is not None and _order(self.tensorrt) < _order(release)

    def _computed(self, node: Any, index: int) -> bool:
        if index >= len(node.input) or not node.input[index]:
            return False
        return node.input[index] not in self.constants


def _inner_constants(proto: Any) -> Iterator[str]:
    """Names of constants in inner graphs."""
    for node in proto.node:
        for inner in inner_graphs(node):
            yield from (tensor.name for tensor in inner.initializer)
            yield from (n.output[0] for n in inner.node if n.op_type == "Constant")
            yield from _inner_constants(inner)


def _release(tensorrt: str) -> Mapping[str, Any]:
    """The facts about a release: those of the newest known one that isn't newer.

    Raises:
        TargetError: it is older than all of them.
    """
    releases = [name for name in known_releases() if _order(name) <= _order(tensorrt)]
    if not releases:
        raise TargetError(
            f"nothing is known of the operators of TensorRT {tensorrt}",
            hint="known are " + ", ".join(known_releases()),
        )
    release: Mapping[str, Any] = _table()["releases"][releases[-1]]
    return release


@cache
def _table() -> Mapping[str, Any]:
    return read_toml(_FILE)


@cache
def _types() -> Mapping[str, tuple[str, ...]]:
    """The element types that each operator takes."""
    table = _table()
    return {
        operator: tuple(table["types"][kind])
        for kind, operators in table["operators"].items()
        for operator in operators
    }


def _order(release: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in release.split("."))
    except ValueError:
        raise TargetError(
            f"'{release}' is no TensorRT release", hint="a release looks like 10.3"
        ) from None
