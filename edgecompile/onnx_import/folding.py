"""Computes what a graph knows already, takes the branches that are settled, and rearranges weights."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from edgecompile.errors import ModelError
from edgecompile.onnx_import import table
from edgecompile.onnx_import.graph import Graph, Node
from edgecompile.onnx_import.module import run_node
from edgecompile.onnx_import.operators import fused, linear, recurrent
from edgecompile.onnx_import.sizes import MOST, Known, as_tensor, of_tensor, stored
from edgecompile.onnx_import.table import MICROSOFT, OWN

Constants = dict[str, Known | torch.Tensor]

#: What may give far more than it takes.
_GROWING = ("ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "Upsample", "OneHot")
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
#: What combines elements one by one.
_ONE_BY_ONE = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "PRelu")
#: Elements that a result may have.
_MOST_PRODUCT = 1 << 24
#: Nodes whose constant weights are stored in another order.
_PREPARED: Mapping[tuple[str, str], Callable[[Node, list[Any]], Any]] = {
    ("", "MatMul"): linear.as_linear,
    ("", "Gemm"): linear.as_linear,
    ("", "LSTM"): recurrent.as_prepared,
    ("", "GRU"): recurrent.as_prepared,
    ("", "RNN"): recurrent.as_prepared,
    (MICROSOFT, "MatMulNBits"): fused.as_linear,
}


def fold(graph: Graph) -> tuple[list[Node], Constants]:
    """The nodes that are left to compute, and the constants that they and the outputs take.

    Raises:
        ModelError: a node can't be computed or prepared; says which.
    """
    constants: Constants = {name: stored(tensor) for name, tensor in graph.tensors.items()}
    kept = _fold_nodes(graph.nodes, constants, {}, _all_names(graph))
    outputs = set(graph.outputs)
    used = outputs.union(*(_taken(node) for node in kept))
    return kept, {name: value for name, value in constants.items() if name in used}


def _fold_nodes(
    nodes: Iterable[Node],
    constants: Constants,
    shared: dict[tuple[Any, ...], str],
    names: set[str],
) -> list[Node]:
    kept: list[Node] = []
    waiting = deque(nodes)
    while waiting:
        node = waiting.popleft()
        try:
            inlined = _settled(node, constants, names)
            if inlined is not None:
                waiting.extendleft(reversed(inlined))
            elif not node.graphs and _foldable(node, constants):
                _compute(node, constants)
            elif node.graphs:
                graphs = {
                    name: _folded_inside(node, graph, constants, shared, names)
                    for name, graph in node.graphs.items()
                }
                kept.append(replace(node, attributes={**node.attributes, **graphs}))
            else:
                kept.append(_prepare(node, constants, shared, names))
        except ModelError:
            raise
        except Exception as error:  # whatever a wrong file may cause
            raise ModelError(f"the ONNX node {node} can't be imported: {error}") from error
    return kept


def _folded_inside(
    node: Node,
    graph: Graph,
    constants: Constants,
    shared: dict[tuple[Any, ...], str],
    taken: set[str],
) -> Graph:
    """An inner graph that takes its constants from outside, under names of their own."""
    own = [*graph.tensors, *(value.name for value in graph.inputs)]
    own += [name for inner in graph.nodes for name in inner.outputs if name]
    names = {name: _new_name(f"{node.label}/{name}", taken) for name in own}
    added = {names[name]: stored(tensor) for name, tensor in graph.tensors.items()}
    tried, prepared = {**constants, **added}, dict(shared)
    try:
        nodes = _fold_nodes([_renamed(n, names) for n in graph.nodes], tried, prepared, taken)
    except ModelError:
        if node.operator == "If":
            return graph  # it may be the branch that is never taken
        raise
    constants.update(tried)
    shared.update(prepared)
    return Graph(
        tuple(replace(value, name=names[value.name]) for value in graph.inputs),
        tuple(names.get(name, name) for name in graph.outputs),
        tuple(nodes),
    )


def _all_names(graph: Graph) -> set[str]:
    """The names of all values, those of inner graphs too."""
    names = {value.name for value in graph.inputs}.union(graph.tensors)
    for node in graph.nodes:
        names.update(node.outputs)
        names.update(*(_all_names(inner) for inner in node.graphs.values()))
    return names


def _new_name(wanted: str, names: set[str]) -> str:
    """The wanted name, or one like it that no value has; nodes' labels needn't differ."""
    name, number = wanted, len(names)
    while name in names:
        name, number = f"{wanted}_{number}", number + 1
    names.add(name)
    return name


def _compute(node: Node, constants: Constants) -> None:
    values: dict[str, Any] = {n: constants[n] for n in node.inputs if n}
    with torch.no_grad():
        run_node(node, values)
    for name in filter(None, node.outputs):
        constants[name] = stored(values[name])


def _settled(node: Node, constants: Constants, names: set[str]) -> list[Node] | None:
    """The nodes of the branch that an If takes; None: it is no If, or its condition isn't known."""
    if node.operator != "If" or node.domain:
        return None
    condition = constants.get(node.inputs[0])
    if condition is None:
        return None
    branch = "then_branch" if bool(as_tensor(condition).reshape(-1)[0]) else "else_branch"
    if branch not in node.graphs:
        raise ValueError(f"it has no {branch}")
    return _inline(node, node.graphs[branch], constants, names)


def _taken(node: Node) -> set[str]:
    names = set(node.inputs)
    for inner in node.graphs.values():
        names |= inner.taken
    return names


def _foldable(node: Node, constants: Mapping[str, Any]) -> bool:
    names = [name for name in node.inputs if name]
    if node.operator in _RANDOM or table.find(node) is None:
        return False
    if any(name not in constants for name in names):
        return False
    if node.domain in ("", MICROSOFT) and node.operator == "DequantizeLinear":
        return True
    tensors = [constants[n] for n in names if isinstance(constants[n], torch.Tensor)]
    if node.operator in _GROWING and not all(_few(constants[name]) for name in names):
        return False
    if len(tensors) <= 1 and node.operator not in _GROWING:
        return True
    return _result_size(node, [tensor.shape for tensor in tensors]) <= _MOST_PRODUCT


def _result_size(node: Node, shapes: Sequence[torch.Size]) -> int:
    """Elements that a result may have: as few as are known."""
    sizes = [math.prod(shape) for shape in shapes]
    if node.operator == "Concat":
        return sum(sizes)
    if node.operator in _ONE_BY_ONE:
        return math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    return math.prod(sizes)


def _few(value: Known | torch.Tensor) -> bool:
    """Whether a value, taken as a shape, stands for few elements."""
    if isinstance(value, torch.Tensor):
        return False
    return bool(math.prod(abs(number) + 1 for number in value.numbers) <= _MOST_PRODUCT)


def _inline(node: Node, graph: Graph, constants: Constants, taken: set[str]) -> list[Node]:
    """The nodes of a branch, under names of their own, and the results under the node's names."""
    if len(graph.outputs) != len(node.outputs):
        raise ValueError("its branch has another number of outputs")
    own = [*graph.tensors, *(name for inner in graph.nodes for name in inner.outputs if name)]
    names = {name: _new_name(f"{node.label}/{name}", taken) for name in own}
    constants.update((names[name], stored(tensor)) for name, tensor in graph.tensors.items())
    result = [_renamed(inner, names) for inner in graph.nodes]
    for name, output in zip(graph.outputs, node.outputs, strict=True):
        label = f"{node.label}/{output}"
        source = (names.get(name, name),)
        result.append(Node("Identity", "", node.opset, label, source, (output,), {}))
    return result


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    attributes = {
        key: _renamed_graph(value, names) if isinstance(value, Graph) else value
        for key, value in node.attributes.items()
    }
    inputs = tuple(names.get(name, name) for name in node.inputs)
    outputs = tuple(names.get(name, name) for name in node.outputs)
    return replace(node, inputs=inputs, outputs=outputs, attributes=attributes)


def _renamed_graph(graph: Graph, names: Mapping[str, str]) -> Graph:
    own = {value.name for value in graph.inputs}.union(graph.tensors)
    own.update(*(node.outputs for node in graph.nodes))
    outer = {name: new for name, new in names.items() if name not in own}
    nodes = tuple(_renamed(node, outer) for node in graph.nodes)
    return replace(graph, nodes=nodes, outputs=tuple(outer.get(n, n) for n in graph.outputs))


def _prepare(
    node: Node, constants: Constants, shared: dict[tuple[Any, ...], str], names: set[str]
) -> Node:
    entry = table.find(node)
    for place in () if entry is None else entry.numbers:
        value = constants.get(node.inputs[place]) if place < len(node.inputs) else None
        if isinstance(value, torch.Tensor) and value.numel() <= MOST:
            constants[node.inputs[place]] = of_tensor(value)
    prepare = _PREPARED.get((node.domain, node.operator))
    if prepare is None or entry is None:
        return node
    given = [as_tensor(constants[name]) if name in constants else None for name in node.inputs]
    made = prepare(node, given)
    if made is None:
        return node
    operator, parts = made
    inputs = []
    for place, part in enumerate(parts):
        if not isinstance(part, torch.Tensor):
            inputs.append("" if part is None else node.inputs[part])
            continue
        # Nodes that share their weights share the rearranged ones.
        key = (node.kind, place, node.inputs[1:], repr(sorted(node.attributes.items())))
        if key not in shared:
            shared[key] = _new_name(f"{node.label}/{place}", names)
            constants[shared[key]] = part
        inputs.append(shared[key])
    return replace(node, operator=operator, domain=OWN, inputs=tuple(inputs))
