"""A graph as a torch module: its forward computes the nodes one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from edgecompile.errors import ModelError
from edgecompile.onnx_import import table
from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.inner_graphs import compute_inner, has_inner_graphs
from edgecompile.onnx_import.known_values import compute_known
from edgecompile.onnx_import.sizes import Known, as_tensor

Values = dict[str, Any]


class ImportedModule(nn.Module):
    """Computes a graph.

    Args:
        inputs: the names of its inputs, in the order in which forward takes them.
        outputs: the names of what it returns.
        nodes: the nodes in order.
        constants: values that are known: numbers, or tensors, which become parameters and buffers.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        nodes: Sequence[Node],
        constants: Mapping[str, Known | torch.Tensor],
    ) -> None:
        super().__init__()
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._nodes = tuple(nodes)
        self._known = {n: value for n, value in constants.items() if isinstance(value, Known)}
        self._states: dict[str, str] = {}
        for name, value in constants.items():
            if isinstance(value, torch.Tensor):
                self._states[name] = self._register(name, value)
        #: Exports keep torch's recurrent functions whole where a module has this.
        self.calls_recurrences = any(
            inner.operator in ("LSTM", "GRU", "RNN")
            for node in nodes
            for inner in (node, *_inner(node))
        )
        self._last = _last_uses(self._nodes, {*self._outputs, *constants})

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are computed, in order."""
        return self._nodes

    def _register(self, name: str, tensor: torch.Tensor) -> str:
        plain = "w_" + re.sub(r"\W", "_", name)[:80]
        taken, number = plain, 1
        while hasattr(self, taken):
            number += 1
            taken = f"{plain}_{number}"
        if tensor.is_floating_point():
            self.register_parameter(taken, nn.Parameter(tensor, requires_grad=False))
        else:
            self.register_buffer(taken, tensor)
        return taken

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for the inputs."""
        values: Values = dict(self._known)
        values.update((name, getattr(self, state)) for name, state in self._states.items())
        values.update(zip(self._inputs, inputs, strict=True))
        for node, done in zip(self._nodes, self._last, strict=True):
            run_node(node, values)
            for name in done:
                values.pop(name, None)
        return tuple(as_tensor(values[name]) for name in self._outputs)


def run_nodes(nodes: Iterable[Node], values: Values) -> None:
    """Computes nodes; their results join ``values``."""
    for node in nodes:
        run_node(node, values)


def run_node(node: Node, values: Values) -> None:
    """Computes a node; its results join ``values``.

    Raises:
        ModelError: it can't be computed with these inputs; says where. While a model is traced, torch's own
            errors pass, as those who trace read them.
    """
    try:
        results = _compute(node, values)
    except ModelError:
        raise
    except Exception as error:
        if torch.compiler.is_compiling():
            raise
        shapes = [_shape(values.get(name)) for name in node.inputs]
        raise ModelError(
            f"the ONNX node {node} fails for inputs of the shapes {', '.join(shapes)}: {error}"
        ) from error
    for name, result in zip(node.outputs, results, strict=False):
        if name:
            values[name] = result


def _compute(node: Node, values: Values) -> Sequence[Any]:
    if has_inner_graphs(node):
        return compute_inner(node, values, run_nodes)
    inputs = [values[name] if name else None for name in node.inputs]
    known = compute_known(node, inputs)
    if known is not None:
        return known
    entry = table.find(node)
    assert entry is not None  # checked before
    given: list[Any] = []
    ranks = [value.dim() for value in inputs if isinstance(value, torch.Tensor)]
    for place, value in enumerate(inputs):
        if value is not None and place in entry.numbers:
            if not isinstance(value, Known):
                raise ModelError(
                    f"the ONNX node {node} takes '{node.inputs[place]}' as sizes or axes, which depends on "
                    "values of inputs",
                    hint="only what follows from constants and shapes of inputs can be a size",
                )
            given.append(value.numbers)
        elif isinstance(value, Known) and place not in entry.known:
            alone = place in entry.scalars and value.array.size == 1 and bool(ranks)
            use = alone and value.array.ndim <= max(ranks)
            given.append(value.numbers[0] if use else value.tensor())
        else:
            given.append(value)
    result = entry.compute(node, *given)
    return result if isinstance(result, (tuple, list)) else (result,)


def _inner(node: Node) -> Iterable[Node]:
    for graph in node.graphs.values():
        yield from graph.walk()


def _last_uses(nodes: Sequence[Node], kept: set[str]) -> list[list[str]]:
    """The values that nobody takes behind each node."""
    last: dict[str, int] = {}
    for place, node in enumerate(nodes):
        taken = {*node.inputs, *node.outputs}
        for graph in node.graphs.values():
            taken |= graph.taken
        last.update(dict.fromkeys(taken, place))
    result: list[list[str]] = [[] for _ in nodes]
    for name, place in last.items():
        if name and name not in kept:
            result[place].append(name)
    return result


def _shape(value: Any) -> str:
    if value is None:
        return "–"
    return str(list(value.array.shape if isinstance(value, Known) else value.shape))
