"""Translates an exported program to an ONNX graph that TensorRT's parser takes.

torch's own exporter does the translation. Behind it the graph is brought to one form: axes have the
model's names, nodes the names of the modules that they come from, constants are initializers, equal
initializers are one, and nothing tells of the machine that it was made on.
"""

from __future__ import annotations

import os
import re
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import edgecompile
from edgecompile.errors import (
    CompileError,
    ExportError,
    MissingDependencyError,
    UnsupportedOperatorError,
)
from edgecompile.export.guards import quiet_torch
from edgecompile.export.operators.boxes import describe_boxes
from edgecompile.export.operators.recurrence import KINDS
from edgecompile.onnx_files.graph import Array, OnnxGraph, Place, attribute
from edgecompile.onnx_files.tensorrt8 import OPSET, lower
from edgecompile.onnx_files.weights import load_graph
from edgecompile.runtime.format.sums import size_span

if TYPE_CHECKING:
    from edgecompile.export.program import ExportedModel


_SCOPES = "pkg.torch.onnx.name_scopes"
_TRACE = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+)')
_OWN = ("models/modules.py",)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: The gates in the order of ONNX, by their numbers in that of torch.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
#: The oldest opset that torch's exporter writes; what it writes in a newer one is converted from this.
_WRITTEN = OPSET + 1
_FAILED = re.compile(
    r"(?:When translating|when translating|While executing)(?: node)? %\w+ .*target=torch\.ops\.(?P<name>\w+\.\w+)"
)
_UNKNOWN = re.compile(r"No ONNX function found for <OpOverload\(op='(?P<name>[^']+)'")

# The oldest version of the file's form that has all operators of an opset (ONNX's own table,
# docs/Versioning.md of onnx/onnx); a newer one may be refused by an older parser.
_IR_VERSIONS = ((18, 8), (20, 9), (21, 10), (22, 10), (23, 11))


def need_onnx() -> None:
    """Raises a MissingDependencyError unless all that this needs is installed."""
    missing = []
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise MissingDependencyError(
            f"ONNX needs {', '.join(missing)}, which can't be imported here",
            hint="pip install 'edgecompile[jetson]'",
        )


def export_onnx(
    exported: ExportedModel, opset: int, scratch: Path, *, least: int = OPSET
) -> OnnxGraph:
    """Translates a program, as it is: in float32, for its whole range.

    The graph has the oldest opset that expresses it, 17 for most models: TensorRT's parsers know the names
    of old opsets best (opset 20 calls GridSample's mode "linear", which they compute as nearest), and 8.6
    reads no newer one.

    Args:
        exported: the program.
        opset: the newest version of ONNX's operators that may be used.
        scratch: a folder for files that the graph's arrays are mapped from: they have to stay as
            long as the graph.
        least: the oldest opset that has what is to be put into the graph later.

    Raises:
        CompileError: the model makes more writes at indices that may repeat than can be compared.
        ExportError: the program has operators on boxes; or torch's exporter refuses it, or gives a newer opset or other inputs or
            outputs than asked for.
        UnsupportedOperatorError: ``opset`` is 17, which can't express some nodes; lists all.
    """
    _refuse_boxes(exported)
    scratch.mkdir(parents=True, exist_ok=True)
    graph = _translated(exported, scratch / "exported.onnx", opset)
    _inline(graph)
    graph.places = _take_places(graph)
    _lift_constants(graph)
    _name_axes(graph, exported)
    graph = _compare_truths(_add_at_elements(_count_in_floats(graph)))
    graph.drop_unused()
    if least <= OPSET:
        try:
            graph = lower(graph)
        except UnsupportedOperatorError:
            if opset <= OPSET:
                raise
    else:
        graph.raise_opset(least)
    graph.merge_equal_tensors()
    _name_nodes(graph)
    _strip(graph)
    _check(graph, exported, opset)
    return graph


def _refuse_boxes(exported: ExportedModel) -> None:
    """Raises an ExportError that names the program's operators on boxes: ONNX's own keep other boxes."""
    found = describe_boxes(exported.program.graph)
    if found:
        raise ExportError(
            f"the model '{exported.name}' can't be translated to ONNX, which has no {found} of torchvision",
            hint='`backend="triton"` has kernels for them; or let the model end before them',
        )


def _translated(exported: ExportedModel, path: Path, opset: int) -> OnnxGraph:
    """The exporter's graph, in the older opset of those that it writes if that one expresses the program."""
    failure: Exception | None = None
    for version in sorted({_WRITTEN, max(opset, _WRITTEN)}):
        try:
            translate(exported, path, version)
            return load_graph(path)
        except CompileError:
            raise
        except Exception as error:  # one class of its own, or whatever a translation raises
            failure = error
    raise ExportError(
        f"the model '{exported.name}' can't be translated to ONNX: "
        + _refusal(str(failure), exported),
        hint="write that part of the model with other operators, or build for the module's own "
        'cores (`target="jetson-orin-cpu"`); `details` shows all that the exporter says',
        details=str(failure),
    ) from failure


def _refusal(said: str, exported: ExportedModel) -> str:
    """The exporter's failure in a line: the operator and its place, if it says so."""
    text = _COLOUR.sub("", said).strip()
    unknown, failed = _UNKNOWN.search(text), _FAILED.search(text)
    if unknown is None and failed is not None:
        frames = list(_FRAME.finditer(text[failed.end() :].partition("Use tlparse")[0]))
        lines = [f"{os.path.basename(x['file'])}:{x['line']}" for x in frames][-1:]
        return f"torch's exporter fails at {failed['name']}" + "".join(f" ({x})" for x in lines)
    if unknown is None:
        return (text.splitlines() or ["it doesn't say why"])[0]
    name = unknown["name"]
    places = []
    for node in exported.program.graph.nodes:
        if str(node.target).rpartition(".")[0] == name:
            frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
            lines = [f"{os.path.basename(x['file'])}:{x['line']}" for x in frames]
            places += lines[-1:]
    where = f" ({', '.join(dict.fromkeys(places))})" if places else ""
    return f"torch's exporter has no translation of {name}{where}"


def translate(exported: ExportedModel, target: Path, opset: int | None) -> None:
    """Calls torch's exporter, with the model's names of inputs and outputs; raises what it raises.

    Args:
        exported: the program.
        target: the file; weights lie beside it in ``NAME.data``.
        opset: version of the operators; None: the exporter's default.
    """
    import torch

    from edgecompile.onnx_files.rewrites import rewritten

    with quiet_torch():
        program = torch.onnx.export(
            rewritten(exported.program),
            dynamo=True,
            input_names=[spec.name for spec in exported.inputs],
            output_names=[spec.name for spec in exported.outputs],
            opset_version=opset,
            optimize=True,
            verbose=False,
            custom_translation_table={torch.ops.edgecompile.recurrence.default: _recurrence},
        )
        assert program is not None
        program.save(str(target), external_data=True)


def _recurrence(
    gates: Any, w: Any, bias: Any, h0: Any, c0: Any, kind: int, reverse: bool
) -> tuple[Any, Any, Any]:
    """One layer in one direction as ONNX's LSTM, GRU or RNN; arguments are those of ``PLAIN``.

    The operators multiply the inputs with weights themselves, so they take those of the linear layer
    that made ``gates``.
    """
    from onnxscript import opset18

    op: Any = opset18
    name = next(name for name, code in KINDS.items() if code == kind)
    hidden = int(h0.shape[1])
    order = _GATES.get(name, (0,))
    rows = [gate * hidden + row for gate in order for row in range(hidden)]
    linear, first = gates.producer(), None
    if linear.op_type == "Add":
        first = linear.inputs[1]
        linear = linear.inputs[0].producer()
    assert linear.op_type == "MatMul", linear.op_type
    x, transposed = linear.inputs
    matrices = (op.Transpose(transposed, perm=[1, 0]), w)
    inputs = [x, *(op.Unsqueeze(op.Gather(item, rows, axis=0), [0]) for item in matrices), None]
    if first is not None:
        both = [op.Gather(item, rows, axis=0) for item in (first, bias)]
        inputs[3] = op.Unsqueeze(op.Concat(*both, axis=0), [0])
    inputs += [None, op.Unsqueeze(h0, [0])]
    how: dict[str, Any] = {"hidden_size": hidden, "direction": "reverse" if reverse else "forward"}
    if name == "lstm":
        y, h, c = op.LSTM(*inputs, op.Unsqueeze(c0, [0]), **how)
        return op.Squeeze(y, [1]), op.Squeeze(h, [0]), op.Squeeze(c, [0])
    if name == "gru":
        y, h = op.GRU(*inputs, **how, linear_before_reset=1)
    else:
        y, h = op.RNN(*inputs, **how, activations=["Relu" if name == "rnn_relu" else "Tanh"])
    return op.Squeeze(y, [1]), op.Squeeze(h, [0]), op.Slice(h0, [0], [0])


def _inline(graph: OnnxGraph) -> None:
    """Functions of the model's own are no operators for TensorRT's list; their bodies are."""
    if graph.proto.functions:
        import onnx.inliner

        graph.proto = onnx.inliner.inline_local_functions(graph.proto)


def _take_places(graph: OnnxGraph) -> dict[str, Place]:
    """Places by node's name; nodes that the exporter added take those of the nodes around them."""
    _make_names_unique(graph)
    places: dict[str, Place] = {}
    for node in graph.nodes:
        entries = {entry.key: entry.value for entry in node.metadata_props}
        if _SCOPES in entries or _TRACE in entries:
            places[node.name] = _place(entries)
    producers, consumers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        if node.name not in places:
            near = [user.name for name in node.output for user in consumers.get(name, ())]
            near += [producers[name].name for name in node.input if name in producers]
            place = next((places[name] for name in near if name in places), None)
            if place is not None:
                places[node.name] = Place(place.module, place.line)
    return places


def _place(entries: Mapping[str, str]) -> Place:
    try:
        scopes = literal_eval(entries.get(_SCOPES, "[]"))
    except (SyntaxError, ValueError):
        scopes = []
    # The last is the node's own name, the first the whole model.
    modules = [scope for scope in scopes[:-1] if scope] if isinstance(scopes, list) else []
    module = str(modules[-1]) if modules else ""
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(entries.get(_TRACE, ""))]
    own = [f for f in frames if f"{os.sep}torch{os.sep}" not in f[0] and not f[0].endswith(_OWN)]
    line = f"{os.path.basename(own[-1][0])}:{own[-1][1]}" if own else ""
    return Place(module.removeprefix("model.") if module != "model" else "", line)


def _make_names_unique(graph: OnnxGraph) -> None:
    seen: set[str] = set()
    for index, node in enumerate(graph.nodes):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}#{index}"
        seen.add(node.name)


def _lift_constants(graph: OnnxGraph) -> None:
    """Constants are initializers, so that there is one kind of them."""
    import onnx

    others = []
    for node in graph.nodes:
        value = node.attribute[0] if node.op_type == "Constant" and node.attribute else None
        array: Array | None = None
        if value is not None and value.name == "value":
            array = onnx.numpy_helper.to_array(value.t)
        elif value is not None and value.name in (
            "value_float",
            "value_floats",
            "value_int",
            "value_ints",
        ):
            dtype = np.float32 if "float" in value.name else np.int64
            array = np.asarray(onnx.helper.get_attribute_value(value), dtype)
        if array is None or node.output[0] in graph.outputs:
            others.append(node)
        else:
            graph.tensors[node.output[0]] = array
    if len(others) < len(graph.nodes):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in others]
        del graph.proto.graph.node[:]
        graph.proto.graph.node.extend(nodes)


def _count_in_floats(graph: OnnxGraph) -> OnnxGraph:
    """TensorRT's CumSum takes floats alone; numbers of true entries are exact in float32 to 2**24."""
    import onnx

    if not any(node.op_type == "CumSum" for node in graph.nodes):
        return graph
    dtypes, producers = graph.dtypes(), graph.producers()
    result = graph.without_nodes()
    for old in graph.nodes:
        source, output = old.input[:1], old.output[0]
        while source and source[0] in producers and producers[source[0]].op_type == "Cast":
            source = producers[source[0]].input[:1]
        result.nodes.append(old)
        whole = old.op_type == "CumSum" and dtypes.get(old.input[0]) in ("int32", "int64")
        if not whole or dtypes.get(source[0]) != "bool":
            continue
        place, node = graph.place(old.name), result.nodes.pop()
        node.input[0], node.output[0] = f"{output}/entries", f"{output}/count"
        result.add("Cast", [old.input[0]], node.input[0], place, to=onnx.TensorProto.FLOAT)
        result.nodes.append(node)
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtypes[output]))
        result.add("Cast", [node.output[0]], output, place, to=kind)
    return result


def _add_at_elements(graph: OnnxGraph) -> OnnxGraph:
    """TensorRT's ScatterND has no reductions, ScatterElements has: where rows are picked by one number each,
    the number is repeated for every element of its row."""
    import onnx

    def reduces(node: Any) -> bool:
        return bool(
            node.op_type == "ScatterND" and attribute(node, "reduction", b"none") != b"none"
        )

    if not any(reduces(node) for node in graph.nodes):
        return graph
    values, producers = graph.infer(), graph.producers()
    result = graph.without_nodes()
    for old in graph.nodes:
        result.nodes.append(old)
        if not reduces(old):
            continue
        data, picked, updates = old.input
        (_, rank), (_, picks) = values.get(data, ("", None)), values.get(picked, ("", None))
        source = producers.get(picked)
        if rank is None or picks != 2 or not _is_column(graph, picked, source):
            continue
        place, node = graph.place(old.name), result.nodes.pop()
        name = f"{old.output[0]}/at"
        result.tensors[f"{name}/axes"] = np.array([1] if rank == 1 else range(2, rank), np.int64)
        column = picked
        if rank != 2:
            column = f"{name}/column"
            kind = "Squeeze" if rank == 1 else "Unsqueeze"
            result.add(kind, [picked, f"{name}/axes"], column, place)
        result.add("Shape", [updates], f"{name}/sizes", place)
        result.add("Expand", [column, f"{name}/sizes"], f"{name}/all", place)
        reduction = onnx.helper.make_attribute("reduction", attribute(node, "reduction"))
        node.op_type, node.input[1] = "ScatterElements", f"{name}/all"
        del node.attribute[:]
        node.attribute.extend([reduction, onnx.helper.make_attribute("axis", 0)])
        result.nodes.append(node)
    return result


def _compare_truths(graph: OnnxGraph) -> OnnxGraph:
    """TensorRT's Equal takes no truth values; they are equal where not just one of them is true."""
    dtypes = graph.dtypes()
    if not any(
        node.op_type == "Equal" and dtypes.get(node.input[0]) == "bool" for node in graph.nodes
    ):
        return graph
    result = graph.without_nodes()
    for node in graph.nodes:
        if node.op_type == "Equal" and dtypes.get(node.input[0]) == "bool":
            place, apart = graph.place(node.name), f"{node.output[0]}/apart"
            result.add("Xor", list(node.input), apart, place)
            result.add("Not", [apart], node.output[0], place)
        else:
            result.nodes.append(node)
    return result


def _is_column(graph: OnnxGraph, name: str, producer: Any) -> bool:
    """Whether an array of two dimensions is known to have one column."""
    if name in graph.tensors:
        return bool(graph.tensors[name].shape[-1] == 1)
    if producer is None or producer.op_type != "Unsqueeze":
        return False
    axes = graph.tensors.get(producer.input[1])
    return axes is not None and [int(axis) for axis in axes.reshape(-1)] in ([-1], [1])


def _name_axes(graph: OnnxGraph, exported: ExportedModel) -> None:
    """Dimensions of inputs and outputs have the model's axes' names; others are unnamed."""
    inputs = {spec.name: spec.shape for spec in exported.inputs}
    outputs = {spec.name: spec.shape for spec in exported.outputs}
    for values, shapes in ((graph.proto.graph.input, inputs), (graph.proto.graph.output, outputs)):
        for value in values:
            shape = shapes.get(value.name)
            dims = value.type.tensor_type.shape.dim
            if shape is None or len(shape) != len(dims):
                continue  # _check tells of it
            for dim, size in zip(dims, shape, strict=True):
                dim.Clear()
                if isinstance(size, int):
                    dim.dim_value = size
                elif size is not None:
                    low, high = size_span(size, exported.ranges)
                    if low == high:
                        dim.dim_value = low
                    else:
                        dim.dim_param = size


def _name_nodes(graph: OnnxGraph) -> None:
    """MODULE/Operator, numbered where there are several: what profilers and errors show."""
    counts: dict[str, int] = {}
    places: dict[str, Place] = {}
    for node in graph.nodes:
        place = graph.place(node.name)
        base = f"{place.module}/{node.op_type}" if place.module else node.op_type
        counts[base] = counts.get(base, 0) + 1
        node.name = base if counts[base] == 1 else f"{base}_{counts[base]}"
        places[node.name] = place
    graph.places = places


def _strip(graph: OnnxGraph) -> None:
    """Takes out what depends on the machine or the exporter: traces, shapes of inner values."""
    proto = graph.proto
    del proto.graph.value_info[:]
    del proto.graph.metadata_props[:]
    del proto.metadata_props[:]
    proto.doc_string = proto.graph.doc_string = ""
    proto.graph.name = "edgecompile"
    proto.producer_name = "edgecompile"
    proto.producer_version = edgecompile.__version__
    proto.ir_version = next((ir for top, ir in _IR_VERSIONS if graph.opset <= top), 11)
    for value in (*proto.graph.input, *proto.graph.output):
        value.doc_string = ""
        del value.metadata_props[:]
    _strip_nodes(proto.graph)


def _strip_nodes(graph: Any) -> None:
    from edgecompile.onnx_files.graph import inner_graphs

    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for inner in inner_graphs(node):
            del inner.value_info[:]
            _strip_nodes(inner)


def _check(graph: OnnxGraph, exported: ExportedModel, opset: int) -> None:
    problems = []
    if graph.opset > opset:
        problems.append(f"opset {graph.opset} came out, {opset} is the newest that may be used")
    for kind, actual, expected in (
        ("inputs", graph.inputs, {spec.name: spec.dtype for spec in exported.inputs}),
        ("outputs", graph.outputs, {spec.name: spec.dtype for spec in exported.outputs}),
    ):
        if actual != expected or list(actual) != list(expected):
            problems.append(
                f"the {kind} are {_listed(actual)}, the model's are {_listed(expected)}"
            )
    if problems:
        raise ExportError(
            f"torch's ONNX exporter gave another graph than '{exported.name}': "
            + "; ".join(problems)
        )


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in values.items()) or "none"
