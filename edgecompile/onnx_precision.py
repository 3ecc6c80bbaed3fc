"""Narrows a float32 graph to float16, but for nodes that don't bear it.

TensorRT builds the network strongly typed: what the graph says is what is calculated. So weights and
values become float16 in the graph itself, and where a node stays in float32, Casts stand around it.
Inputs and outputs keep their dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgecompile.onnx_fills import Fill
from edgecompile.onnx_graph import OnnxGraph, Place, inner_graphs, rename_inputs, retarget, taken
from edgecompile.onnx_report import KeptNode
from edgecompile.onnx_scan import Scan
from edgecompile.onnx_values import value_dtypes

__all__ = ["LIMIT", "SENSITIVE", "Narrowed", "find_kept", "narrow"]

_TOP = 65504.0

#: What a value may reach to be calculated in float16, which ends at 65504: what is seen in a few runs
#: isn't the most that there will be.
LIMIT = _TOP / 4

#: What is kept in float32 beside where the outputs would differ too much otherwise.
SENSITIVE = (
    "Exp",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "Pow",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceMean",
    "ReduceSum",
    "ReduceSumSquare",
    "Reciprocal",
    "Softmax",
    "Sqrt",
)

#: A constant that float16 changes by more than this share of itself isn't that constant any more.
_CONSTANT_ERROR = 0.01

_SMALL = "its constant"
_DIVIDES = ("Div", "Reciprocal", "Log")
_HANDS_ON = (
    "Concat",
    "Expand",
    "Identity",
    "Reshape",
    "Slice",
    "Sqrt",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)

#: Operators that end a walk back from a delicate value: what goes into them isn't calculated from
#: positions and counts, and they bear rounding.
_ENDS = ("LayerNormalization", "Softmax", "LogSoftmax", "BatchNormalization", "Tanh", "Sigmoid")
_ROOTS = ("Sqrt",)
_MEANS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "GlobalAveragePool")
_UNDER_ROOTS = ("Add", "Max", "Clip", "Div", "Mul", "Pow", *_MEANS)


@dataclass(frozen=True)
class Narrowed:
    """A graph in float16.

    Attributes:
        graph: with Casts.
        kept: nodes that stayed in float32.
    """

    graph: OnnxGraph
    kept: tuple[KeptNode, ...]


def find_kept(graph: OnnxGraph, scan: Scan, fills: Mapping[str, Fill]) -> dict[str, str]:
    """The nodes that have to stay in float32, by name, with the first reason found for each.

    Args:
        graph: in float32.
        scan: of its values.
        fills: constants that will be cut down to fit.
    """
    reasons: dict[str, str] = {}
    dtypes = value_dtypes(graph)
    for node in graph.nodes:
        names = [n for n in (*node.input, *node.output) if dtypes.get(n) == "float32"]
        if not names:
            continue
        reason = (
            _form_problem(node)
            or _constant_problem(node, graph, fills)
            or _range_problem(node, names, scan)
        )
        if reason:
            reasons[node.name] = reason
    for name, reason in (*_delicate(graph, dtypes), *_divided(graph, reasons)):
        reasons.setdefault(name, reason)
    return reasons


def narrow(graph: OnnxGraph, kept: Mapping[str, str], fills: Mapping[str, Fill]) -> Narrowed:
    """Makes every float32 value float16 but those of the nodes in ``kept``.

    Args:
        graph: in float32; isn't changed.
        kept: reasons by node's name.
        fills: constants to cut down, from :func:`edgecompile.onnx_fills.find_fills`.
    """
    return _Narrowing(graph, kept, fills).run()


class _Narrowing:
    """One pass over the nodes in their order."""

    def __init__(
        self, graph: OnnxGraph, kept: Mapping[str, str], fills: Mapping[str, Fill]
    ) -> None:
        self.old = graph
        self.kept = kept
        self.fills = fills
        self.dtypes = value_dtypes(graph)
        self.result = OnnxGraph(_without_nodes(graph), {}, dict(graph.places))
        # What each float value is in the new graph, as float16 and as float32.
        self.halves: dict[str, str] = {}
        self.singles: dict[str, str] = {name: name for name in graph.inputs}
        self.taken = graph.values()
        self.outputs = {n for n, dtype in graph.outputs.items() if dtype == "float32"}

    def run(self) -> Narrowed:
        import onnx

        kept = []
        for old in self.old.nodes:
            node = onnx.NodeProto()
            node.CopyFrom(old)
            floats = [n for n in (*old.input, *old.output) if self.dtypes.get(n) == "float32"]
            stays = old.name in self.kept and bool(floats)
            if stays:
                place = self.old.place(old.name)
                kept.append(KeptNode(old.name, old.op_type, place, self.kept[old.name]))
            self._take(node, stays)
            self._give(node, stays)
            self.result.nodes.append(node)
        for name in self.outputs:
            if name in self.singles:
                continue
            self._cast(self.halves[name], name, onnx.TensorProto.FLOAT, Place())
        self.result.drop_unused()
        return Narrowed(self.result, tuple(kept))

    def _take(self, node: Any, stays: bool) -> None:
        import onnx

        place = self.old.place(node.name)
        if inner_graphs(node):
            self._take_outer(node, place)
            return
        fixed = _single_inputs(node)
        for index, name in enumerate(node.input):
            if self.dtypes.get(name) != "float32":
                if name in self.old.tensors:
                    self.result.tensors[name] = self.old.tensors[name]
                continue
            wide = stays or index in fixed
            node.input[index] = self._single(name, place) if wide else self._half(name, place)
        if not stays:
            retarget(node, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)

    def _take_outer(self, node: Any, place: Place) -> None:
        """What a node with an inner graph takes from outside stays as it was."""
        names = {}
        for name in taken(node):
            if self.dtypes.get(name) == "float32":
                names[name] = self._single(name, place)
            elif name in self.old.tensors:
                self.result.tensors[name] = self.old.tensors[name]
        rename_inputs(node, names)

    def _give(self, node: Any, stays: bool) -> None:
        wide = stays or bool(inner_graphs(node))
        for index, name in enumerate(node.output):
            if self.dtypes.get(name) != "float32":
                continue
            if wide:
                self.singles[name] = name
            elif name in self.outputs:
                # The output's own name is for its float32 form, which a Cast makes.
                self.halves[name] = node.output[index] = self._fresh(f"{name}/fp16")
            else:
                self.halves[name] = name

    def _half(self, name: str, place: Place) -> str:
        import onnx

        if name not in self.halves:
            if name in self.old.tensors:
                array = self.old.tensors[name]
                fill = self.fills.get(name)
                self.halves[name] = self._fresh(f"{name}/fp16") if name in self.singles else name
                array = array if fill is None else fill.apply(array)
                self.result.tensors[self.halves[name]] = array.astype(np.float16)
            else:
                self.halves[name] = self._fresh(f"{name}/fp16")
                self._cast(self.singles[name], self.halves[name], onnx.TensorProto.FLOAT16, place)
        return self.halves[name]

    def _single(self, name: str, place: Place) -> str:
        import onnx

        if name not in self.singles:
            if name in self.old.tensors:
                self.singles[name] = self._fresh(f"{name}/fp32") if name in self.halves else name
                self.result.tensors[self.singles[name]] = self.old.tensors[name]
            else:
                self.singles[name] = self._fresh(f"{name}/fp32")
                self._cast(self.halves[name], self.singles[name], onnx.TensorProto.FLOAT, place)
        return self.singles[name]

    def _cast(self, source: str, target: str, to: int, place: Place) -> None:
        import onnx

        name = f"{target}/Cast"
        self.result.nodes.append(
            onnx.helper.make_node("Cast", [source], [target], name=name, to=to)
        )
        self.result.places[name] = place

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _without_nodes(graph: OnnxGraph) -> Any:
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:]
    return proto


def _form_problem(node: Any) -> str:
    """Why an operator has no float16 form at all; empty if it has one."""
    if inner_graphs(node):
        return "it holds a graph of its own"
    schema = _schema(node)
    if schema is None:
        return "nothing is known of the operator"
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        # A variadic operand comes last and stands for all that follow.
        given = [formal for formal, name in zip(formals, names, strict=False) if name]
        for types in (allowed.get(formal.type_str) for formal in given):
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
    """What divides by a value that a tiny constant keeps from zero: rounded to float16 on its way it
    would be zero again."""
    users = graph.consumers()
    for start in graph.nodes:
        if not reasons.get(start.name, "").startswith(_SMALL):
            continue
        left = [(start, (start.name,))]
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
    mean, what becomes whole numbers, angles."""
    producers = graph.producers()
    for node in graph.nodes:
        if node.op_type in _ROOTS:
            above = list(_behind(node, producers, dtypes, graph, only=_UNDER_ROOTS))
            if any(found.op_type in _MEANS for found in above):
                yield from ((n.name, "a root is taken of the mean of it") for n in (node, *above))
        elif node.op_type in ("Sin", "Cos"):
            for found in (node, *_behind(node, producers, dtypes, graph)):
                yield found.name, "an angle that grows with the position is calculated"
        elif node.op_type == "Cast" and (
            dtypes.get(node.input[0]) == "float32"
            and dtypes.get(node.output[0]) in ("int64", "int32")
        ):
            for found in (node, *_behind(node, producers, dtypes, graph)):
                yield found.name, "whole numbers are made of it"


def _behind(
    node: Any,
    producers: Mapping[str, Any],
    dtypes: Mapping[str, str],
    graph: OnnxGraph,
    only: tuple[str, ...] | None = None,
) -> Iterator[Any]:
    """The nodes whose float values lead to ``node`` without a matrix of weights between."""
    seen = {node.name}
    left = [node]
    while left:
        for name in left.pop().input:
            found = producers.get(name)
            if found is None or found.name in seen or dtypes.get(name) != "float32":
                continue
            seen.add(found.name)
            if (only is not None and found.op_type not in only) or found.op_type in _ENDS:
                continue
            if any(_is_matrix(graph, operand) for operand in found.input):
                continue
            yield found
            left.append(found)


def _is_matrix(graph: OnnxGraph, name: str) -> bool:
    array = graph.tensors.get(name)
    return array is not None and sum(size > 1 for size in array.shape) > 1


def _single_inputs(node: Any) -> set[int]:
    """Inputs that ONNX wants in float32 whatever the others are (Resize's scales)."""
    schema = _schema(node)
    if schema is None:
        return set()
    formals = list(schema.inputs)
    return {i for i, f in enumerate(formals[: len(node.input)]) if f.type_str == "tensor(float)"}


def _schema(node: Any) -> Any:
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, max_inclusive_version=_OPSET, domain=node.domain)
    except Exception:  # the class of the error differs between versions of onnx
        return None


#: Schemas are asked for at the opset that graphs are made in; none of the operators lost a type.
_OPSET = 20
