"""An ONNX graph whose weights lie apart, and where in the model each of its nodes comes from.

A ModelProto with weights inside ends at 2 GB and is copied at every step; here it holds the graph
alone, and the initializers are numpy arrays by name, mostly views of one mapped file.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgecompile.errors import ExportError

if TYPE_CHECKING:
    import onnx


Array = npt.NDArray[Any]

#: Initializers of more bytes than this are in the weights file, smaller ones in the graph.
EXTERNAL_ABOVE = 1024


@dataclass(frozen=True)
class Place:
    """The origin of a node in the model.

    Attributes:
        module: path of the torch module, as in its state's names; empty: the outermost one.
        line: the line of the model's code, ``file.py:12``; empty where the exporter doesn't say.
    """

    module: str = ""
    line: str = ""

    def __str__(self) -> str:
        module = self.module or "the model"
        return f"{module} ({self.line})" if self.line else module


@dataclass
class OnnxGraph:
    """A graph and its initializers.

    Attributes:
        proto: the model; its graph's list of initializers is empty.
        tensors: the initializers, by name.
        places: the places of the nodes, by their names.
    """

    proto: onnx.ModelProto
    tensors: dict[str, Array]
    places: dict[str, Place] = field(default_factory=dict)

    @property
    def nodes(self) -> Any:
        """The graph's nodes, each behind those that it takes values of."""
        return self.proto.graph.node

    @property
    def inputs(self) -> dict[str, str]:
        """numpy's name of each input's dtype."""
        return {value.name: _dtype(value) for value in self.proto.graph.input}

    @property
    def outputs(self) -> dict[str, str]:
        """numpy's name of each output's dtype."""
        return {value.name: _dtype(value) for value in self.proto.graph.output}

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return next(int(o.version) for o in self.proto.opset_import if o.domain in ("", "ai.onnx"))

    def raise_opset(self, opset: int) -> None:
        """Declares a newer opset: 19 only adds to what 18 has (tensorrt_operators.toml lists it)."""
        if self.opset < opset:
            del self.proto.opset_import[:]
            self.proto.opset_import.add(domain="", version=opset)

    def place(self, node: str) -> Place:
        """The origin of a node."""
        return self.places.get(node, Place())

    def copy(self) -> OnnxGraph:
        """A copy that shares the arrays."""
        result = self.without_nodes()
        result.nodes.extend(self.nodes)
        return result

    def values(self) -> set[str]:
        """Every name of a value."""
        names = {*self.inputs, *self.tensors}
        for node in self.nodes:
            names.update(name for name in (*node.input, *node.output) if name)
        return names

    def producers(self) -> dict[str, Any]:
        """The node that makes each value."""
        return {name: node for node in self.nodes for name in node.output if name}

    def consumers(self) -> dict[str, list[Any]]:
        """The nodes that take each value, those with it in an inner graph among them."""
        users: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(taken(node)):
                users.setdefault(name, []).append(node)
        return users

    @property
    def large(self) -> dict[str, Array]:
        """The initializers that are stored in a file of weights."""
        return {n: array for n, array in self.tensors.items() if array.nbytes > EXTERNAL_ABOVE}

    def without_nodes(self, tensors: Mapping[str, Array] | None = None) -> OnnxGraph:
        """A graph of the same inputs and outputs that has no nodes yet, with its own initializers
        or with ``tensors``."""
        result = OnnxGraph(
            copy.deepcopy(self.proto),
            dict(self.tensors if tensors is None else tensors),
            dict(self.places),
        )
        del result.nodes[:]
        return result

    def add(
        self,
        operator: str,
        inputs: list[str],
        output: str,
        place: Place | None = None,
        *,
        name: str = "",
        **attributes: Any,
    ) -> None:
        """Appends a node with one output."""
        import onnx

        name = name or f"{output}/{operator}"
        self.nodes.append(
            onnx.helper.make_node(operator, inputs, [output], name=name, **attributes)
        )
        if place is not None:
            self.places[name] = place

    def dtypes(self) -> dict[str, str]:
        """numpy's name of the dtype of every value that ONNX's rules tell one of."""
        return {name: dtype for name, (dtype, _) in self.infer().items()}

    def infer(self) -> dict[str, tuple[str, int | None]]:
        """The dtype of every value by ONNX's own rules, and its rank where they tell it.

        Raises:
            ExportError: the graph contradicts the rules.
        """
        import onnx

        # The rules read small initializers (axes, shapes) alone; others need not be there.
        external = dict.fromkeys(self.large, ("none", 0))
        try:
            proto = onnx.shape_inference.infer_shapes(
                self.model(external), check_type=True, strict_mode=True
            )
        except Exception as error:  # the rules' errors have no common class
            raise ExportError(f"the ONNX graph breaks ONNX's rules: {error}") from error
        values: dict[str, tuple[str, int | None]] = {
            name: (array.dtype.name, array.ndim) for name, array in self.tensors.items()
        }
        for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            kind = value.type.tensor_type
            if kind.elem_type:
                rank = len(kind.shape.dim) if kind.HasField("shape") else None
                values[value.name] = _dtype(value), rank
        return values

    def drop_unused(self) -> None:
        """Takes out nodes and initializers that no output depends on."""
        needed = set(self.outputs)
        live = []
        for node in reversed(self.nodes):
            if any(name in needed for name in node.output):
                live.append(node)
                needed.update(taken(node))
        if len(live) < len(self.nodes):
            live.reverse()
            nodes = [copy.deepcopy(node) for node in live]
            del self.proto.graph.node[:]
            self.proto.graph.node.extend(nodes)
        self.tensors = {name: array for name, array in self.tensors.items() if name in needed}
        names = {node.name for node in self.nodes}
        self.places = {name: place for name, place in self.places.items() if name in names}

    def merge_equal_tensors(self) -> None:
        """Keeps one of the initializers that are equal bit for bit: tied weights are stored once."""
        first: dict[tuple[object, ...], str] = {}
        renamed: dict[str, str] = {}
        outputs = set(self.outputs)
        for name in sorted(self.tensors):
            array = self.tensors[name]
            key = content_key(array)
            if name in outputs or first.setdefault(key, name) == name:
                continue
            renamed[name] = first[key]
        if renamed:
            for node in self.nodes:
                rename_inputs(node, renamed)
            self.tensors = {k: v for k, v in self.tensors.items() if k not in renamed}

    def model(self, external: Mapping[str, tuple[str, int]] | None = None) -> onnx.ModelProto:
        """The whole model.

        Args:
            external: file's name and offset of the initializers that are in a file; the others'
                bytes are in the model.
        """
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        for name in sorted(self.tensors):
            array = self.tensors[name]
            tensor = model.graph.initializer.add()
            tensor.name = name
            tensor.dims.extend(array.shape)
            tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            if external is None or name not in external:
                tensor.raw_data = np.ascontiguousarray(array).tobytes()
                continue
            location, offset = external[name]
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (
                ("location", location),
                ("offset", str(offset)),
                ("length", str(array.nbytes)),
            ):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, value
        return model


def taken(node: Any) -> Iterator[str]:
    """The values that a node takes, also those that an inner graph takes from outside."""
    for name in node.input:
        if name:
            yield name
    for graph in inner_graphs(node):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        for inner in graph.node:
            for name in taken(inner):
                if name not in own:
                    yield name
            own.update(inner.output)
        for value in graph.output:
            if value.name not in own:
                yield value.name


def schema_of(node: Any, opset: int) -> Any:
    """ONNX's definition of a node's operator in an opset; None if it has none."""
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, max_inclusive_version=opset, domain=node.domain)
    except Exception:  # the class of the error differs between versions of onnx
        return None


def inner_graphs(node: Any) -> list[Any]:
    """The graphs that a node holds (If, Loop, Scan)."""
    import onnx

    graphs = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graphs.append(attribute.g)
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            graphs.extend(attribute.graphs)
    return graphs


def rename_inputs(node: Any, names: Mapping[str, str]) -> None:
    """Renames what a node takes, in its inner graphs too."""
    for index, name in enumerate(node.input):
        if name in names:
            node.input[index] = names[name]
    for graph in inner_graphs(node):
        for inner in graph.node:
            rename_inputs(inner, names)
        for value in graph.output:
            if value.name in names:
                value.name = names[value.name]


def retarget(node: Any, old: int, new: int) -> None:
    """Attributes that name one of ONNX's element types, or hold a value of it, have another."""
    import onnx

    for item in node.attribute:
        named = item.name == "dtype" or (node.op_type == "Cast" and item.name == "to")
        if named and item.i == old:
            item.i = new
        if node.op_type == "ConstantOfShape" and item.name == "value" and item.t.data_type == old:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(new)
            array = onnx.numpy_helper.to_array(item.t).astype(dtype)
            item.t.CopyFrom(onnx.numpy_helper.from_array(array, item.t.name))


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """The value of a node's attribute."""
    import onnx

    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


def content_key(array: Array) -> tuple[object, ...]:
    """The key that arrays share if they are equal bit for bit."""
    return array.dtype.name, array.shape, _digest(array)


def _digest(array: Array) -> str:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.sha256(flat.data if flat.size else b"").hexdigest()


def _dtype(value: Any) -> str:
    import onnx

    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)
