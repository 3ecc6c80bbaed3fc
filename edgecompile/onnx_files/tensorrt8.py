"""Writes a graph as TensorRT 8.6 takes it: in opset 17, and in float32's types.

Its builder chooses types itself. A graph that says float16 leaves it none, and then it has no kernel for what
it fuses (docs/benchmarks/gpu-tensorrt.md); of one that says float32 it makes float16, where allowed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from edgecompile.errors import UnsupportedOperatorError
from edgecompile.onnx_files.graph import (
    OnnxGraph,
    attribute,
    inner_graphs,
    rename_inputs,
    retarget,
    schema_of,
)
from edgecompile.onnx_files.operators import Violation

OPSET = 17

#: Attributes that opset 18 added, with the value that means the same as none in opset 17.
_ADDED = {"antialias": 0, "keep_aspect_ratio_policy": b"stretch", "noop_with_empty_axes": 0}

#: Their float32 says nothing of what TensorRT may compute in.
_ANY_TYPE = ("Cast", "QuantizeLinear", "DequantizeLinear")


def lower(graph: OnnxGraph) -> OnnxGraph:
    """The same calculation in opset 17; ``graph`` isn't changed.

    Opset 17 has the attributes ``start`` and ``end`` of Shape, but TensorRT 8.6 ignores them and
    gives all sizes. So a Gather behind it picks the sizes.

    Raises:
        UnsupportedOperatorError: opset 17 can't express some nodes; lists all, with their places.
        ExportError: the graph contradicts ONNX's rules.
    """
    values = graph.infer()
    result = graph.without_nodes()
    del result.proto.opset_import[:]
    result.proto.opset_import.add(domain="", version=OPSET)
    violations = []
    for old in graph.nodes:
        node, place = copy.deepcopy(old), graph.place(old.name)
        sizes = None
        if node.op_type == "Shape" and node.attribute:
            _, rank = values.get(node.input[0], ("", None))
            if rank is not None:
                start, end = _pop(node, "start"), _pop(node, "end")
                sizes = np.arange(rank, dtype=np.int64)[start:end]
                node.output[0] = f"{old.output[0]}/all"
        for part in _with_inner(node):
            problem = _lower_node(part, graph)
            if problem:
                violations.append(Violation(old.name, part.op_type, str(place), problem))
        result.nodes.append(node)
        if sizes is not None:
            picked = f"{old.output[0]}/picked"
            result.tensors[picked] = sizes
            result.add("Gather", [node.output[0], picked], old.output[0], place, axis=0)
    if violations:
        count = len(violations)
        raise UnsupportedOperatorError(
            f"TensorRT 8.6 takes opset {OPSET} of ONNX, which can't express {count} "
            f"{'part' if count == 1 else 'parts'} of the model:\n"
            + "\n".join(f"  {item}" for item in violations),
            hint="write these parts with other operations, or build for a newer TensorRT, "
            "such as JetPack 6.2's",
        )
    return result


def widen(graph: OnnxGraph) -> tuple[OnnxGraph, tuple[str, ...]]:
    """The same calculation with every float16 value declared float32; ``graph`` isn't changed.

    Weights stay float16 in the file, each behind a Cast: they are rounded as they were.

    Returns:
        The graph, and the values in it that were float32 before.
    """
    import onnx

    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    dtypes, outputs = graph.dtypes(), set(graph.outputs)
    floats = ("float16", "float32")
    result = graph.without_nodes()
    names: dict[str, str] = {}  # by value: the one that it is now
    stays: list[str] = []
    for name, array in graph.tensors.items():
        if array.dtype == np.float16:
            names[name] = f"{name}/single"
            result.add("Cast", [name], names[name], to=single)
    for old in graph.nodes:
        node = copy.deepcopy(old)
        rename_inputs(node, names)
        for part in _with_inner(node):
            retarget(part, half, single)
        if (
            node.op_type == "Cast"
            and dtypes[old.input[0]] in floats
            and attribute(node, "to") == single
        ):
            if node.output[0] not in outputs:
                names[node.output[0]] = node.input[0]
                continue
            del node.attribute[:]
            node.op_type = "Identity"
        elif node.op_type not in _ANY_TYPE:
            stays += [name for name in node.output if dtypes.get(name) == "float32"]
        result.nodes.append(node)
    result.drop_unused()
    return result, tuple(stays)


def without_quantized(graph: OnnxGraph, values: tuple[str, ...]) -> tuple[str, ...]:
    """The values that no operator makes of dequantized ones: TensorRT computes the others in int8."""
    quantized = {n.output[0] for n in graph.nodes if n.op_type == "DequantizeLinear"}
    products = {name for node in graph.nodes if quantized & {*node.input} for name in node.output}
    return tuple(name for name in values if name not in products)


def _with_inner(node: Any) -> Iterator[Any]:
    """A node and those of the graphs that it holds."""
    yield node
    for graph in inner_graphs(node):
        for inner in graph.node:
            yield from _with_inner(inner)


def _lower_node(node: Any, graph: OnnxGraph) -> str:
    """Rewrites a node in its place; returns the reason why that can't be done, or ""."""
    import onnx

    schema = schema_of(node, OPSET)
    if schema is None:
        return f"opset {OPSET} has no such operator"
    if node.op_type == "Shape" and node.attribute:
        return "it gives some sizes of a value whose rank isn't known"
    if node.op_type == "Split":
        _pop(node, "num_outputs")  # without sizes it splits evenly in both opsets
    if len(node.input) > schema.max_input and node.op_type.startswith("Reduce"):
        axes = graph.tensors.get(node.input[1])
        if node.input[1] and axes is None:
            return "its axes are calculated, they must be constants"
        del node.input[1:]
        if axes is not None and axes.size:
            node.attribute.append(onnx.helper.make_attribute("axes", axes.reshape(-1).tolist()))
    for name, value in _ADDED.items():
        if attribute(node, name) == value:
            _pop(node, name)
    added = [item.name for item in node.attribute if item.name not in schema.attributes]
    if added:
        return f"opset {OPSET} has no attribute {', '.join(added)} of it"
    if len(node.input) > schema.max_input:
        return f"opset {OPSET} has {schema.max_input} inputs of it, not {len(node.input)}"
    return ""


def _pop(node: Any, name: str) -> Any:
    """Takes an attribute out; returns its value, None where there is none."""
    for index, item in enumerate(node.attribute):
        if item.name == name:
            value = attribute(node, name)
            del node.attribute[index]
            return value
    return None
