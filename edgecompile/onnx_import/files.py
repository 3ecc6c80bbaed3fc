"""Reads an ONNX file as a :class:`Graph`; whatever is wrong with the file is said here.

A file may come from anywhere: nothing in it is believed before it is compared with what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgecompile.errors import MissingDependencyError, ModelError
from edgecompile.onnx_import.elements import (
    FOUR_BITS,
    check_elements,
    dtype_of,
    read_tensor,
    tensor_bytes,
)
from edgecompile.onnx_import.graph import Graph, Node, Value
from edgecompile.onnx_import.sizes import is_small, of_tensor
from edgecompile.onnx_import.table import MICROSOFT, NEWEST

#: Of the largest models that people export, a tenth.
MOST_NODES = 200_000
OLDEST = 7
_WIDE = (10, 11, 16)
#: Attributes that name an element type.
_TYPES = ("to", "dtype", "output_dtype")


def read_graph(path: Path, *, plain: bool = False) -> Graph:
    """The graph of an ONNX file, its weights in memory.

    Args:
        path: the file; weights beside it are read from its folder only.
        plain: every type of floating-point numbers becomes float32.

    Raises:
        ModelError: the file isn't what it should be; says what is wrong.
        MissingDependencyError: the package onnx isn't installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError(
            "ONNX files need the package onnx, which can't be imported here",
            hint="pip install 'edgecompile[onnx]'",
        ) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise ModelError(f"'{path}' can't be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf's error has another class in every version
        raise ModelError(
            f"'{path}' is no ONNX file, or only a part of one", hint="copy or export it again"
        ) from error
    return _Reader(path, plain).read(model)


class _Reader:
    def __init__(self, path: Path, plain: bool) -> None:
        self._path = path
        self._plain = plain
        self._folder = path.resolve().parent
        self._opsets: dict[str, int] = {}
        self._files: dict[str, Path] = {}
        self._packed: set[str] = set()

    def read(self, model: Any) -> Graph:
        if not model.graph.node and not model.graph.output:
            raise ModelError(f"'{self._path}' is no ONNX file, or has no graph")
        self._opsets = {_domain(item.domain): int(item.version) for item in model.opset_import}
        opset = self._opsets.get("", 0)
        if not OLDEST <= opset <= NEWEST:
            raise ModelError(
                f"'{self._path}' has the opset {opset}; those from {OLDEST} to {NEWEST} are read",
                hint="onnx.version_converter.convert_version(model, 17) makes another",
            )
        if model.functions:
            model = self._inlined(model)
        count = _count(model.graph, MOST_NODES)
        if count > MOST_NODES:
            raise ModelError(f"'{self._path}' has more than {MOST_NODES} nodes")
        graph = self._graph(model.graph, frozenset())
        files = tuple(sorted(self._files))
        return Graph(graph.inputs, graph.outputs, graph.nodes, graph.tensors, files)

    def _inlined(self, model: Any) -> Any:
        """The model with its functions' nodes in place of their calls."""
        import onnx.inliner

        if _expanded(model, MOST_NODES) > MOST_NODES:
            raise ModelError(f"'{self._path}' has functions that call each other without an end")
        try:
            return onnx.inliner.inline_local_functions(model)
        except Exception as error:  # onnx's errors share no class
            raise ModelError(f"'{self._path}' has functions that onnx can't inline") from error

    def _graph(self, proto: Any, outer: Set[str], *, inner: bool = False) -> Graph:
        if proto.sparse_initializer:
            raise ModelError(f"'{self._path}' has sparse initializers, which aren't supported")
        tensors: dict[str, torch.Tensor] = {}
        for tensor in proto.initializer:
            self._check_texts(tensor.name)
            if tensor.name in tensors:
                raise ModelError(f"'{self._path}' has two initializers '{tensor.name}'")
            if tensor.data_type in FOUR_BITS:
                self._packed.add(tensor.name)
            tensors[tensor.name] = self._tensor(tensor, f"the initializer '{tensor.name}'")
        inputs = tuple(self._value(v, inner) for v in proto.input if v.name not in tensors)
        known = {*outer, *tensors}
        for value in inputs:
            if value.name in known:
                raise ModelError(f"'{self._path}' has two values '{value.name}'")
            known.add(value.name)
        nodes = []
        for place, node in enumerate(proto.node):
            nodes.append(self._node(node, place, known))
        outputs = tuple(value.name for value in proto.output)
        self._check_texts(*outputs)
        for name in outputs:
            if name not in known:
                raise ModelError(f"'{self._path}': no node gives the output '{name}'")
        return Graph(inputs, outputs, tuple(nodes), tensors)

    def _check_texts(self, *texts: Any) -> None:
        """Refuses names that are no UTF-8: protobuf gives them as bytes."""
        wrong = next((text for text in texts if not isinstance(text, str)), None)
        if wrong is not None:
            raise ModelError(f"'{self._path}' has a name that is no UTF-8: {wrong!r}")

    def _node(self, proto: Any, place: int, known: set[str]) -> Node:
        self._check_texts(proto.op_type, proto.name, proto.domain, *proto.input, *proto.output)
        self._check_texts(*(attribute.name for attribute in proto.attribute))
        domain = _domain(proto.domain)
        label = proto.name or f"{proto.op_type}_{place}"
        lost = [name for name in proto.input if name and name not in known]
        if lost:
            raise ModelError(
                f"'{self._path}': the node '{label}' takes '{lost[0]}', which nothing before it gives: the "
                "value is missing, or nodes form a cycle"
            )
        if proto.op_type != "DequantizeLinear" and not self._packed.isdisjoint(proto.input):
            raise ModelError(
                f"'{self._path}': the node '{label}' takes numbers of four bits, which only DequantizeLinear may"
            )
        opset = self._opsets.get(domain, 1 if domain == MICROSOFT else 0)
        attributes = {a.name: self._attribute(a, label, known) for a in proto.attribute}
        for name in proto.output:
            if name and name in known:
                raise ModelError(f"'{self._path}' has two values '{name}'")
            known.add(name)
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        if self._plain:
            attributes.update((n, 1) for n in _TYPES if attributes.get(n) in _WIDE)
        return Node(proto.op_type, domain, opset, label, inputs, outputs, attributes)

    def _attribute(self, proto: Any, label: str, outer: Set[str]) -> Any:
        import onnx

        kinds = onnx.AttributeProto
        if proto.type == kinds.TENSOR:
            tensor = self._tensor(proto.t, f"the attribute '{proto.name}' of '{label}'")
            return of_tensor(tensor) if is_small(tensor) else tensor
        if proto.type == kinds.GRAPH:
            return self._graph(proto.g, outer, inner=True)
        if proto.type in (kinds.FLOAT, kinds.INT):
            return proto.f if proto.type == kinds.FLOAT else proto.i
        if proto.type == kinds.STRING:
            return proto.s.decode("utf-8", "replace")
        if proto.type in (kinds.FLOATS, kinds.INTS):
            return list(proto.floats if proto.type == kinds.FLOATS else proto.ints)
        if proto.type == kinds.STRINGS:
            return [text.decode("utf-8", "replace") for text in proto.strings]
        raise ModelError(
            f"'{self._path}': the attribute '{proto.name}' of the node '{label}' has a kind that isn't supported"
        )

    def _value(self, proto: Any, inner: bool) -> Value:
        self._check_texts(proto.name)
        what = f"the input '{proto.name}'"
        if inner and not proto.type.tensor_type.HasField("shape"):
            # Whoever gives the value gives its type and shape.
            return Value(proto.name, torch.float32, ())
        if proto.type.WhichOneof("value") != "tensor_type":
            raise ModelError(f"{what} of '{self._path}' is no tensor")
        kind = proto.type.tensor_type
        if not kind.HasField("shape"):
            raise ModelError(f"{what} of '{self._path}' has no shape: not even its rank is known")
        shape: list[int | str | None] = []
        for dim in kind.shape.dim:
            self._check_texts(dim.dim_param)
            # Paddle's converter writes -1 and "?", others 0.
            fixed = int(dim.dim_value) if dim.dim_value > 0 else None
            named = dim.dim_param if dim.dim_param.strip("? ") else None
            shape.append(fixed if fixed is not None else named)
        check_elements((size for size in shape if isinstance(size, int)), what)
        return Value(
            proto.name, dtype_of(int(kind.elem_type), what, plain=self._plain), tuple(shape)
        )

    def _tensor(self, proto: Any, what: str) -> torch.Tensor:
        import onnx

        what = f"{what} of '{self._path}'"
        raw = None
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            raw = self._external(proto, what)
        tensor = read_tensor(proto, what, raw)
        if self._plain and tensor.is_floating_point() and tensor.dtype != torch.float32:
            return _narrow(tensor)
        return tensor

    def _external(self, proto: Any, what: str) -> bytes:
        for entry in proto.external_data:
            self._check_texts(entry.key, entry.value)
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        if proto.data_type not in FOUR_BITS:
            dtype_of(int(proto.data_type), what)
        wanted = tensor_bytes(int(proto.data_type), check_elements(proto.dims, what))
        try:
            begin, size = int(entries.get("offset", 0)), int(entries.get("length", wanted))
        except ValueError as error:
            raise ModelError(f"{what} has an offset or length that is no number") from error
        if location not in self._files:
            self._files[location] = self._inside(location, what)
        path = self._files[location]
        there = path.stat().st_size
        if size != wanted or begin < 0 or begin + size > there:
            raise ModelError(
                f"{what} needs {wanted} bytes; it names {size} from {begin} on of '{location}', which has {there}"
            )
        data: bytes = np.fromfile(path, np.uint8, size, offset=begin).tobytes()
        return data

    def _inside(self, location: str, what: str) -> Path:
        path = self._folder / location
        try:
            real = path.resolve(strict=True)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{what} lies in '{location}', which isn't beside the model",
                hint="keep the file of weights in the model's folder",
            ) from error
        if not location or not real.is_relative_to(self._folder) or not real.is_file():
            raise ModelError(
                f"{what} lies in '{location}', outside the model's folder, or no file",
                hint="copy the file of weights itself into the model's folder; links that leave it aren't followed",
            )
        return path


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers as float32; finite ones stay finite, as a mask's lowest number."""
    if tensor.dtype == torch.float64:
        top = torch.finfo(torch.float32).max
        finite = torch.isfinite(tensor)
        tensor = torch.where(finite, tensor.clamp(-top, top), tensor)
    return tensor.to(torch.float32)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _inner(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _count(graph: Any, most: int) -> int:
    """The number of nodes, with those of inner graphs; counting ends beyond ``most``."""
    total = len(graph.node)
    if total > most:
        return total
    for inner in _inner(graph.node):
        total += _count(inner, most)
        if total > most:
            break
    return total


def _expanded(model: Any, most: int) -> int:
    """The number of nodes when functions are put in place of their calls; endless ones count ``most`` + 1."""
    functions: Mapping[Any, Any] = {(_domain(f.domain), f.name): f for f in model.functions}
    sizes: dict[Any, int] = {}
    open_calls: set[Any] = set()

    def size(nodes: Iterable[Any]) -> int:
        total = 0
        for node in nodes:
            key = (_domain(node.domain), node.op_type)
            total += called(key) if key in functions else 1
            total += sum(size(inner.node) for inner in _inner([node]))
            if total > most:
                return most + 1
        return total

    def called(key: Any) -> int:
        if key in open_calls or len(open_calls) > 100:
            return most + 1
        if key not in sizes:
            open_calls.add(key)
            sizes[key] = size(functions[key].node)
            open_calls.discard(key)
        return sizes[key]

    return size(model.graph.node)
