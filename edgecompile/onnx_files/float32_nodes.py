"""Finds the nodes of a float32 graph that have to stay in float32, with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgecompile.onnx_files.fills import Fill
from edgecompile.onnx_files.graph import OnnxGraph, attribute, inner_graphs, schema_of
from edgecompile.onnx_files.scan import Scan

_TOP = 65504.0

#: What a value may reach to be calculated in float16, which ends at 65504: what is seen in a few runs
#: isn't the most that there will be.
LIMIT = _TOP / 4

#: What is kept in float32 beside where the outputs would differ too much otherwise.
SENSITIVE = (
    *("Exp", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "Log"),
    *("LogSoftmax", "LpNormalization", "Pow", "ReduceL2", "ReduceLogSumExp", "ReduceMean"),
    *("ReduceSum", "ReduceSumSquare", "Reciprocal", "Softmax", "Sqrt"),
)

#: A constant that float16 changes by more than this share of itself isn't that constant any more.
_CONSTANT_ERROR = 0.01

_SMALL = "its constant"
_DIVIDES = ("Div", "Reciprocal", "Log")
_HANDS_ON = (
    *("Concat", "Expand", "Identity", "Reshape", "Slice", "Sqrt", "Squeeze", "Transpose"),
    "Unsqueeze",
)

#: Operators that end a walk back from a delicate value: what goes into them isn't calculated from
#: positions and counts, and they bear rounding.
_ENDS = ("LayerNormalization", "Softmax", "LogSoftmax", "BatchNormalization", "Tanh", "Sigmoid")
_ROOTS = ("Sqrt",)

#: Operators that choose by one of their inputs: a little rounding of it picks another value. With its number, and
#: what is made of it.
_CHOOSE = {
    "TopK": (0, "an order is made of it"),
    "ArgMax": (0, "an order is made of it"),
    "ArgMin": (0, "an order is made of it"),
    "GridSample": (1, "it makes the coordinates of samples"),
}
_MEANS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "GlobalAveragePool")
_UNDER_ROOTS = ("Add", "Max", "Clip", "Div", "Mul", "Pow", *_MEANS)


def find_float32_nodes(graph: OnnxGraph, scan: Scan, fills: Mapping[str, Fill]) -> dict[str, str]:
    """The nodes that have to stay in float32, by name, with the first reason found for each.

    Args:
        graph: the graph in float32.
        scan: the scan of its values.
        fills: constants that will be cut down to fit.
    """
    reasons: dict[str, str] = {}
    dtypes = graph.dtypes()
    for node in graph.nodes:
        names = [n for n in (*node.input, *node.output) if dtypes.get(n) == "float32"]
        if not names:
            continue
        reason = (
            _form_problem(node, graph.opset)
            or _constant_problem(node, graph, fills)
            or _range_problem(node, names, scan)
        )
        if reason:
            reasons[node.name] = reason
    delicate = (*_delicate(graph, dtypes), *_of_sizes(graph, dtypes), *_divided(graph, reasons))
    for name, reason in delicate:
        reasons.setdefault(name, reason)
    return reasons


def _form_problem(node: Any, opset: int) -> str:
    """The reason that an operator has no float16 form at all; empty if it has one."""
    if inner_graphs(node):
        return "it holds a graph of its own"
    schema = schema_of(node, opset)
    if schema is None:
        return "nothing is known of the operator"
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        # A variadic operand comes last and stands for all that follow.
        operands = [formal for formal, name in zip(formals, names, strict=False) if name]
        for types in (allowed.get(formal.type_str) for formal in operands):
            if types is None or "tensor(float)" not in types:
                continue
            if "tensor(float16)" not in types:
                return "ONNX has no float16 form of the operator"
    return ""


def _constant_problem(node: Any, graph: OnnxGraph, fills: Mapping[str, Fill]) -> str:
    for name in node.input:
        array = graph.tensors.get(name)
        if array is None or array.dtype != np.float32 or name in fills or not array.size:
            continue
        finite = np.abs(array[np.isfinite(array)])
        top = float(finite.max(initial=0.0))
        if top > _TOP:
            return f"its constant {name} has {top:.3g}, float16 ends at 65504"
        with np.errstate(over="ignore"):
            error = abs(float(np.float16(top)) - top)
        if top and error > _CONSTANT_ERROR * top:
            return f"{_SMALL} {name} is {top:.3g} at most, float16 makes it {np.float16(top):.3g}"
    return ""


def _divided(graph: OnnxGraph, reasons: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Divisions by a value that a tiny constant keeps from zero: rounded to float16 on its way it
    would be zero again."""
    users = graph.consumers()
    for start in graph.nodes:
        if not reasons.get(start.name, "").startswith(_SMALL):
            continue
        left: list[tuple[Any, tuple[str, ...]]] = [(start, (start.name,))]
        while left:
            node, path = left.pop()
            for user in (user for name in node.output for user in users.get(name, ())):
                if user.name in path:
                    continue
                if user.op_type in _DIVIDES:
                    yield from (
                        (n, "it is divided by what may be tiny") for n in (*path, user.name)
                    )
                elif user.op_type in _HANDS_ON:
                    left.append((user, (*path, user.name)))


def _range_problem(node: Any, names: list[str], scan: Scan) -> str:
    for name in names:
        top = scan.largest.get(name, 0.0)
        if top > LIMIT:
            side = "gives" if name in node.output else "takes"
            return f"it {side} values up to {top:.3g}, float16 ends at 65504"
    inner = scan.sums.get(node.name, 0.0)
    if inner > LIMIT:
        return f"it adds up to {inner:.3g} inside, float16 ends at 65504"
    return ""


def _delicate(graph: OnnxGraph, dtypes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Nodes whose rounding would show, though nothing overflows: what lies under a root behind a
    mean, what becomes whole numbers, angles, what an order or coordinates are made of, sums at places."""
    producers = graph.producers()
    for node in graph.nodes:
        if node.op_type in _ROOTS:
            above = list(_behind(node, producers, dtypes, graph, only=_UNDER_ROOTS))
            if any(source.op_type in _MEANS for source in above):
                yield from ((n.name, "a root is taken of the mean of it") for n in (node, *above))
        elif node.op_type in ("Sin", "Cos"):
            for source in (node, *_behind(node, producers, dtypes, graph)):
                yield source.name, "an angle that grows with the position is calculated"
        elif node.op_type in _CHOOSE:
            index, reason = _CHOOSE[node.op_type]
            names = [node.input[index]]
            behind = _behind(node, producers, dtypes, graph, names=names, products=True)
            yield from ((source.name, reason) for source in (node, *behind))
        elif (
            node.op_type.startswith("Scatter") and attribute(node, "reduction", b"none") != b"none"
        ):
            yield node.name, "several values meet at its places"
        elif node.op_type == "Cast" and (
            dtypes.get(node.input[0]) == "float32"
            and dtypes.get(node.output[0]) in ("int64", "int32")
        ):
            for source in (node, *_behind(node, producers, dtypes, graph)):
                yield source.name, "whole numbers are made of it"


def _of_sizes(graph: OnnxGraph, dtypes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Nodes that calculate with sizes and places alone, as a table of weights for resampling: float16 has no whole
    numbers beyond 2,048, nor halves beyond 1,024. Truth values, and what masks with large constants, bear it."""
    others, numbers = set(graph.inputs), set[str]()
    for node in graph.nodes:
        if node.op_type in ("Shape", "Size"):
            continue
        constants = [graph.tensors[name] for name in node.input if name in graph.tensors]
        exact = (
            len(constants) == len(node.input)
            or (node.op_type == "Cast" and dtypes.get(node.input[0]) == "bool")
            or (node.op_type == "Where" and len(constants) == 2)
            or any(a.dtype == np.float32 and a.size and np.abs(a).max() > LIMIT for a in constants)
        )
        if exact or inner_graphs(node) or not others.isdisjoint(node.input):
            others.update(node.output)
        elif node.op_type in ("Cast", "Range") or not numbers.isdisjoint(node.input):
            numbers.update(name for name in node.output if dtypes.get(name) == "float32")
            if not numbers.isdisjoint(node.output):
                yield node.name, "it is calculated of sizes alone"


def decisive(graph: OnnxGraph) -> Iterator[tuple[str, str]]:
    """Every node that leads to a choice, with the reason: for where rounding what lies next to it isn't too much."""
    dtypes, producers = graph.dtypes(), graph.producers()
    for node in graph.nodes:
        if node.op_type in _CHOOSE:
            index, reason = _CHOOSE[node.op_type]
            names = [node.input[index]]
            behind = _behind(node, producers, dtypes, graph, names=names, everything=True)
            yield from ((source.name, reason) for source in (node, *behind))


def _behind(
    node: Any,
    producers: Mapping[str, Any],
    dtypes: Mapping[str, str],
    graph: OnnxGraph,
    only: tuple[str, ...] | None = None,
    *,
    names: Sequence[str] | None = None,
    products: bool = False,
    everything: bool = False,
) -> Iterator[Any]:
    """The nodes whose float values lead to ``node`` without a matrix of weights between.

    Args:
        node, producers, dtypes, graph: the node at which the walk begins, and the data that it
            needs.
        only: the operators that it goes through; None: any.
        names: the inputs of ``node`` that it follows; None: all.
        products: ends at nothing but products with a matrix of weights, and gives these, too.
        everything: it ends at nothing.
    """
    seen = {node.name}
    left = [list(node.input if names is None else names)]
    while left:
        for name in left.pop():
            producer = producers.get(name)
            if producer is None or producer.name in seen or dtypes.get(name) != "float32":
                continue
            seen.add(producer.name)
            if everything:
                yield producer
                left.append(list(producer.input))
                continue
            if only is not None and producer.op_type not in only:
                continue
            if producer.op_type in _ENDS and not products:
                continue
            if any(_is_matrix(graph, operand) for operand in producer.input):
                if products:
                    yield producer
                continue
            yield producer
            left.append(list(producer.input))


def _is_matrix(graph: OnnxGraph, name: str) -> bool:
    array = graph.tensors.get(name)
    return array is not None and sum(size > 1 for size in array.shape) > 1
