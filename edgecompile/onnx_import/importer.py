"""An ONNX file as a module: reads it, says what isn't taken, and names what varies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from edgecompile.errors import ModelError
from edgecompile.onnx_import import table
from edgecompile.onnx_import.elements import check_elements
from edgecompile.onnx_import.files import read_graph
from edgecompile.onnx_import.folding import Constants, fold
from edgecompile.onnx_import.fusing import fuse
from edgecompile.onnx_import.graph import Graph, Node, Value
from edgecompile.onnx_import.inner_graphs import has_inner_graphs
from edgecompile.onnx_import.module import ImportedModule
from edgecompile.onnx_import.operators import recurrent
from edgecompile.onnx_import.sizes import Known

_SHOWN = 5


@dataclass(frozen=True)
class Imported:
    """An imported model.

    Attributes:
        module: takes the inputs in order, gives a tuple of the outputs.
        inputs: the inputs, with the file's names.
        outputs: the outputs' names.
        rows: the number of rows of the tables of which an input has the row numbers, by input.
        lengths: the inputs that are lengths of recurrent layers' sequences.
        files: names of the files of weights beside the model.
        fixed: the inputs of the file that are constants here.
    """

    module: ImportedModule
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    rows: dict[str, int]
    lengths: frozenset[str]
    files: tuple[str, ...]
    fixed: dict[str, torch.Tensor]


def import_onnx(
    path: Path,
    *,
    plain: bool = True,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fixed: Mapping[str, int | float] | None = None,
) -> Imported:
    """Imports a file.

    Args:
        path: the file.
        plain: every type of floating-point numbers becomes float32, as builds start from.
        shapes: sizes of inputs in place of those that the file leaves open, by the inputs' names.
        fixed: numbers that inputs always are, by the inputs' names.

    Raises:
        ModelError: the file is broken, or has what isn't taken; lists all of it. Or no such input can have
            such sizes or such a number.
        MissingDependencyError: the package onnx isn't installed.
    """
    graph = read_graph(path, plain=plain)
    _refuse(path, graph.nodes)
    graph = _with_shapes(graph, shapes or {})
    constants = {name: _constant(graph, name, number) for name, number in (fixed or {}).items()}
    inputs = tuple(value for value in graph.inputs if value.name not in constants)
    graph = replace(graph, inputs=inputs, tensors={**graph.tensors, **constants})
    nodes, known = fold(graph)
    nodes = fuse(nodes, known, graph.outputs)
    _refuse(path, (node for top in nodes for node in _with_inner(top)))
    _check_scales(path, nodes, known)
    rows, lengths = _rows(graph, nodes, known), _lengths(graph, nodes)
    names = [value.name for value in graph.inputs]
    module = ImportedModule(names, graph.outputs, nodes, known)
    return Imported(
        module, graph.inputs, graph.outputs, rows, lengths, graph.folder_files, constants
    )


def _find(graph: Graph, name: str) -> Value:
    for value in graph.inputs:
        if value.name == name:
            return value
    given = ", ".join(value.name for value in graph.inputs)
    raise ModelError(f"the ONNX file has no input '{name}', only {given}")


def _with_shapes(graph: Graph, shapes: Mapping[str, Sequence[int | str]]) -> Graph:
    changed = {}
    for name, shape in shapes.items():
        value = _find(graph, name)
        fits = len(shape) == len(value.shape) and all(
            own in (None, size) or isinstance(own, str)
            for own, size in zip(value.shape, shape, strict=True)
        )
        if not fits:
            own = ", ".join("?" if size is None else str(size) for size in value.shape)
            raise ModelError(
                f"the input '{name}' can't have the sizes {', '.join(map(str, shape))}: the ONNX file says {own}"
            )
        changed[name] = replace(value, shape=tuple(shape))
    return replace(graph, inputs=tuple(changed.get(v.name, v) for v in graph.inputs))


def _constant(graph: Graph, name: str, number: int | float) -> torch.Tensor:
    value = _find(graph, name)
    sizes = [size for size in value.shape if isinstance(size, int)]
    if len(sizes) < len(value.shape):
        raise ModelError(
            f"the input '{name}' can't be fixed: its sizes vary", hint="give them by `input_shape`"
        )
    check_elements(sizes, f"the input '{name}'")
    try:
        tensor = torch.full((), number, dtype=value.dtype)
    except (OverflowError, RuntimeError):  # beyond the type's range
        tensor = None
    whole = not value.dtype.is_floating_point
    if tensor is None or (whole and tensor.item() != number) or not tensor.isfinite():
        raise ModelError(f"the input '{name}' is {value.dtype}, which {number} isn't")
    return tensor.expand(sizes).clone()


def _with_inner(node: Node) -> Iterable[Node]:
    yield node
    for inner in node.graphs.values():
        yield from inner.walk()


def _refuse(path: Path, nodes: Iterable[Node]) -> None:
    """Refuses operators that aren't taken, all in one list."""
    missing: dict[str, list[str]] = {}
    for node in nodes:
        if has_inner_graphs(node) or table.find(node) is not None:
            continue
        missing.setdefault(f"{node.kind} (opset {node.opset})", []).append(node.label)
    if missing:
        lines = []
        for kind, labels in sorted(missing.items()):
            more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
            lines.append(f"{kind}: {', '.join(labels[:_SHOWN])}{more}")
        raise ModelError(
            f"'{path}' has operators that aren't taken, by nodes: " + "; ".join(lines),
            hint="export the model with other operators, or start from the PyTorch model",
        )


_SCALES = {"QuantizeLinear": 1, "DequantizeLinear": 1, "Upsample": 1, "Resize": 2}


def _check_scales(path: Path, nodes: Iterable[Node], constants: Constants) -> None:
    for node in nodes:
        place = _SCALES.get(node.operator)
        if place is None:
            continue
        place = 1 if node.opset < 11 else place  # roi, before Resize's scales, came then
        value = constants.get(node.inputs[place]) if place < len(node.inputs) else None
        # Upsample had its scales as an attribute first.
        numbers = value.numbers if isinstance(value, Known) else node.get("scales") or []
        if isinstance(value, torch.Tensor):
            numbers = value.reshape(-1).tolist()
        if any(not math.isfinite(n) or n <= 0 for n in numbers if isinstance(n, (int, float))):
            raise ModelError(f"'{path}': the node {node} has a scale that isn't a number above 0")


def _rows(graph: Graph, nodes: list[Node], constants: Constants) -> dict[str, int]:
    """The rows of tables that inputs' values count, through casts; these Gathers become ``Embedding``."""
    origin = {value.name: value.name for value in graph.inputs}
    rows: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if node.operator in ("Cast", "Identity") and node.inputs[0] in origin:
            origin[node.outputs[0]] = origin[node.inputs[0]]
        pairs = [(0, 1)] if node.operator == "Gather" and not node.get("axis", 0) else []
        if node.operator == "EmbedLayerNormalization":
            pairs = [(2, 0), (4, 1), (3, 8)]
        for table_place, place in pairs:
            if max(table_place, place) >= len(node.inputs):
                continue
            source = origin.get(node.inputs[place])
            tensor = constants.get(node.inputs[table_place])
            if source is None or not isinstance(tensor, torch.Tensor):
                continue
            rows[source] = min(rows.get(source, tensor.shape[0]), int(tensor.shape[0]))
            if node.operator == "Gather" and tensor.dim() == 2 and tensor.is_floating_point():
                nodes[number] = replace(node, operator="Embedding", domain=table.OWN)
    return rows


def _lengths(graph: Graph, nodes: Iterable[Node]) -> frozenset[str]:
    """The inputs that recurrent layers take as lengths, through casts."""
    origin = {value.name: value.name for value in graph.inputs}
    found = set()
    for node in nodes:
        if node.operator in ("Cast", "Identity") and node.inputs[0] in origin:
            origin[node.outputs[0]] = origin[node.inputs[0]]
        place = recurrent.lengths_place(node)
        if place is not None and node.inputs[place] in origin:
            found.add(origin[node.inputs[place]])
    return frozenset(found)


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """A name for each that Python and a manifest take; names stay where they can."""
    result: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:80] or "value"
        plain = f"x_{plain}" if plain[0].isdigit() else plain
        unique, number = plain, 1
        while unique in result.values():
            number += 1
            unique = f"{plain}_{number}"
        result[name] = unique
    return result
