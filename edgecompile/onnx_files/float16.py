"""Narrows a float32 graph to float16, but for nodes that don't bear it.

What the graph says is what TensorRT calculates: strongly typed, or in 8.x by constraints on each layer.
So weights and values become float16 in the graph itself, and where a node stays in float32, Casts stand
around it.
Inputs and outputs keep their dtypes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgecompile.onnx_files.fills import Fill
from edgecompile.onnx_files.graph import (
    OnnxGraph,
    Place,
    inner_graphs,
    rename_inputs,
    retarget,
    schema_of,
    taken,
)
from edgecompile.onnx_files.report import KeptNode


@dataclass(frozen=True)
class Narrowed:
    """A graph in float16.

    Attributes:
        graph: the graph with Casts.
        kept: nodes that stayed in float32.
    """

    graph: OnnxGraph
    kept: tuple[KeptNode, ...]


def narrow(graph: OnnxGraph, reasons: Mapping[str, str], fills: Mapping[str, Fill]) -> Narrowed:
    """Makes every float32 value float16 but those of the nodes that ``reasons`` names.

    Args:
        graph: the graph in float32; isn't changed.
        reasons: the reasons for what stays float32, by node's name.
        fills: constants to cut down, from :func:`edgecompile.onnx_files.fills.find_fills`.
    """
    return _Narrowing(graph, reasons, fills).run()


class _Narrowing:
    """One pass over the nodes in their order."""

    def __init__(
        self, graph: OnnxGraph, reasons: Mapping[str, str], fills: Mapping[str, Fill]
    ) -> None:
        self.old = graph
        self.reasons = reasons
        self.fills = fills
        self.dtypes = graph.dtypes()
        self.result = graph.without_nodes({})
        # What each float value is in the new graph, as float16 and as float32.
        self.halves: dict[str, str] = {}
        self.singles: dict[str, str] = {name: name for name in graph.inputs}
        self.taken = graph.values()
        self.outputs = [n for n, dtype in graph.outputs.items() if dtype == "float32"]

    def run(self) -> Narrowed:
        import onnx

        kept_nodes = []
        for old in self.old.nodes:
            node = copy.deepcopy(old)
            floats = [n for n in (*old.input, *old.output) if self.dtypes.get(n) == "float32"]
            stays = old.name in self.reasons and bool(floats)
            if stays:
                place = self.old.place(old.name)
                kept_nodes.append(KeptNode(old.name, old.op_type, place, self.reasons[old.name]))
            self._take(node, stays)
            self._give(node, stays)
            self.result.nodes.append(node)
        for name in self.outputs:
            if name in self.singles:
                continue
            self._cast(self.halves[name], name, onnx.TensorProto.FLOAT, Place())
        self.result.drop_unused()
        return Narrowed(self.result, tuple(kept_nodes))

    def _take(self, node: Any, stays: bool) -> None:
        import onnx

        place = self.old.place(node.name)
        if inner_graphs(node):
            self._take_outer(node, place)
            return
        fixed = _single_inputs(node, self.old.opset)
        for index, name in enumerate(node.input):
            if self.dtypes.get(name) != "float32":
                if name in self.old.tensors:
                    self.result.tensors[name] = self.old.tensors[name]
                continue
            wide = stays or index in fixed
            node.input[index] = self._in(name, place, half=not wide)
        if not stays:
            retarget(node, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)

    def _take_outer(self, node: Any, place: Place) -> None:
        """Keeps the values that a node with an inner graph takes from outside."""
        names = {}
        for name in taken(node):
            if self.dtypes.get(name) == "float32":
                names[name] = self._in(name, place, half=False)
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

    def _in(self, name: str, place: Place, *, half: bool) -> str:
        """The name of a value in float16 or float32, which is made where there is none yet."""
        import onnx

        own, other = (self.halves, self.singles) if half else (self.singles, self.halves)
        if name not in own:
            array = self.old.tensors.get(name)
            is_new = array is None or name in other
            own[name] = self._fresh(f"{name}/fp{16 if half else 32}") if is_new else name
            if array is None:
                kind = onnx.TensorProto.FLOAT16 if half else onnx.TensorProto.FLOAT
                self._cast(other[name], own[name], kind, place)
            else:
                fill = self.fills.get(name) if half else None
                array = array if fill is None else fill.apply(array)
                self.result.tensors[own[name]] = array.astype(np.float16) if half else array
        return own[name]

    def _cast(self, source: str, target: str, to: int, place: Place) -> None:
        self.result.add("Cast", [source], target, place, to=to)

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _single_inputs(node: Any, opset: int) -> set[int]:
    """Inputs that ONNX wants in float32 whatever the others are (Resize's scales)."""
    schema = schema_of(node, opset)
    if schema is None:
        return set()
    formals = list(schema.inputs)
    return {i for i, f in enumerate(formals[: len(node.input)]) if f.type_str == "tensor(float)"}
