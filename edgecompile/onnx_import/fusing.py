"""Layers that exporters spell out, put together again: biases, GELU, layer normalization and attention.

Backends know each as one operator of torch, with kernels of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.sizes import Known
from edgecompile.onnx_import.table import MICROSOFT, OWN

_Values = Mapping[str, Known | torch.Tensor]

#: Numbers of inputs, where these aren't one alone; a broken file may have fewer or more.
_INPUTS = {
    "Where": (3,),
    "ReduceMean": (1, 2),
    **dict.fromkeys(("Add", "Div", "MatMul", "Mul", "Pow", "Sub", "Linear", "Reshape"), (2,)),
}


def fuse(nodes: Sequence[Node], constants: _Values, outputs: Sequence[str]) -> list[Node]:
    """The nodes, with one in place of each layer that was spelled out.

    Args:
        nodes: the nodes of the graph, in order.
        constants: the values that are known.
        outputs: the names of the graph's outputs.
    """
    for find in (_linear, _gelu, _layer_norm, _attention):
        graph = _Nodes(nodes, constants, outputs)
        nodes = _alive([find(graph, node) or node for node in nodes], outputs)
    return list(nodes)


def _alive(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """The nodes whose results something takes."""
    taken, kept = set(outputs), []
    for node in reversed(nodes):
        if taken.isdisjoint(node.outputs):
            continue
        taken.update(node.inputs)
        for inner in node.graphs.values():
            taken |= inner.taken
        kept.append(node)
    return kept[::-1]


class _Nodes:
    """The nodes of a graph by the values that they give, and the values that are known."""

    def __init__(self, nodes: Sequence[Node], constants: _Values, outputs: Sequence[str]) -> None:
        self.constants = constants
        self._makers = {node.outputs[0]: node for node in nodes if len(node.outputs) == 1}
        self._uses = Counter(outputs)
        for node in nodes:
            self._uses.update(node.inputs)
            for inner in node.graphs.values():
                self._uses.update(inner.taken)

    def maker(self, name: str, *operators: str) -> Node | None:
        """The node that gives a value, if it is one of these operators."""
        node = self._makers.get(name)
        if node is None or node.operator not in operators:
            return None
        return node if len(node.inputs) in _INPUTS.get(node.operator, (1,)) else None

    def only(self, name: str, *operators: str) -> Node | None:
        """As :meth:`maker`, where nothing else takes the value."""
        return self.maker(name, *operators) if self._uses[name] == 1 else None

    def number(self, name: str) -> float | None:
        """The one number that a value is; None: it isn't known, or has more."""
        value = self.constants.get(name)
        if not isinstance(value, Known) or value.array.size != 1:
            return None
        return float(value.numbers[0])

    def vector(self, name: str) -> torch.Tensor | None:
        """A constant of one dimension."""
        value = self.constants.get(name)
        return value if isinstance(value, torch.Tensor) and value.dim() == 1 else None

    def scaled(self, name: str) -> tuple[str, float]:
        """A value as another one times a number."""
        node = self.only(name, "Mul", "Div")
        for value, other in _pairs(node):
            factor = self.number(other)
            if factor and node is not None:
                return value, 1 / factor if node.operator == "Div" else factor
        return name, 1.0


def _pairs(node: Node | None) -> list[tuple[str, str]]:
    """The two inputs of a node, in both orders where their order doesn't matter."""
    if node is None or len(node.inputs) != 2:
        return []
    first, second = node.inputs
    one = [(first, second)]
    return one if node.operator in ("Div", "Sub", "Pow") else [*one, (second, first)]


def _near(number: float | None, wanted: float) -> bool:
    return number is not None and math.isclose(number, wanted, rel_tol=1e-5)


def _linear(graph: _Nodes, node: Node) -> Node | None:
    """A linear layer whose bias is added behind it."""
    for name, other in _pairs(node) if node.operator == "Add" else ():
        linear, bias = graph.only(name, "Linear"), graph.vector(other)
        if linear is None or bias is None:
            continue
        weight = graph.constants[linear.inputs[1]]
        if isinstance(weight, torch.Tensor) and bias.shape == weight.shape[:1]:
            return replace(linear, inputs=(*linear.inputs, other), outputs=node.outputs)
    return None


def _gelu(graph: _Nodes, node: Node) -> Node | None:
    """``x * 0.5 * (1 + erf(x / sqrt(2)))``, with its factors in any order."""
    for factors in _factors(graph, node) if node.operator == "Mul" else ():
        names = [name for name in factors if not _near(graph.number(name), 0.5)]
        for x, total in (names, names[::-1]) if len(names) == 2 else ():
            for name, one in _pairs(graph.only(total, "Add")):
                erf = graph.only(name, "Erf")
                if erf is None or graph.number(one) != 1:
                    continue
                source, factor = graph.scaled(erf.inputs[0])
                if source == x and _near(factor, math.sqrt(0.5)):
                    return replace(
                        node, operator="Gelu", domain=MICROSOFT, inputs=(x,), attributes={}
                    )
    return None


def _factors(graph: _Nodes, node: Node) -> Iterator[list[str]]:
    """The factors of a product of three, by which of its inputs is a product."""
    for name, other in _pairs(node):
        inner = graph.only(name, "Mul")
        if inner is not None:
            yield [*inner.inputs, other]


def _layer_norm(graph: _Nodes, node: Node) -> Node | None:
    """``(x - mean) / sqrt(mean((x - mean)²) + epsilon) * scale + bias`` over the last dimension."""
    for product, bias in _pairs(node) if node.operator == "Add" else ():
        for name, scale in _pairs(graph.only(product, "Mul")):
            normal = graph.only(name, "Div")
            vectors = [graph.vector(scale), graph.vector(bias)]
            if normal is None or any(vector is None for vector in vectors):
                continue
            found = _normalized(graph, normal)
            if found is not None and len({len(v) for v in vectors if v is not None}) == 1:
                x, epsilon = found
                attributes = {"epsilon": epsilon, "axis": -1}
                return replace(
                    node,
                    operator="LayerNormalization",
                    inputs=(x, scale, bias),
                    attributes=attributes,
                    opset=max(node.opset, 17),
                )
    return None


def _normalized(graph: _Nodes, normal: Node) -> tuple[str, float] | None:
    """``x`` and epsilon of a quotient that is normalized."""
    root = graph.maker(normal.inputs[1], "Sqrt")
    for name, number in _pairs(graph.maker(root.inputs[0], "Add")) if root else ():
        epsilon, variance = graph.number(number), graph.maker(name, "ReduceMean")
        square = graph.maker(variance.inputs[0], "Pow", "Mul") if variance else None
        if epsilon is None or variance is None or square is None or not _is_last(graph, variance):
            continue
        base, power = square.inputs
        if base != power if square.operator == "Mul" else graph.number(power) != 2:
            continue
        # One difference serves both, or each has its own.
        both = [graph.maker(value, "Sub") for value in (normal.inputs[0], base)]
        if None in both or len({each.inputs for each in both if each}) != 1:
            continue
        x, middle = both[0].inputs if both[0] else ("", "")
        mean = graph.maker(middle, "ReduceMean")
        if mean is not None and mean.inputs[0] == x and _is_last(graph, mean):
            return x, epsilon
    return None


def _is_last(graph: _Nodes, mean: Node) -> bool:
    """Whether a mean is one over the last dimension, which it keeps."""
    axes: object = mean.get("axes")
    if len(mean.inputs) > 1:
        known = graph.constants.get(mean.inputs[1])
        axes = known.numbers if isinstance(known, Known) else None
    return (
        bool(mean.get("keepdims", 1)) and isinstance(axes, (list, tuple)) and tuple(axes) == (-1,)
    )


def _attention(graph: _Nodes, node: Node) -> Node | None:
    """``softmax(q @ k * scale + mask) @ v``; see :func:`operators.attention.attend`."""
    if node.operator != "MatMul" or len(node.inputs) != 2:
        return None
    softmax, safe = _softmax(graph, node.inputs[0])
    if softmax is None:
        return None
    logits = softmax.inputs[0]
    for name, mask in [*_pairs(graph.only(logits, "Add")), (logits, "")]:
        product, scale = graph.scaled(name)
        matmul = graph.only(product, "MatMul")
        if matmul is None:
            continue
        (q, first), (k, second) = map(graph.scaled, matmul.inputs)
        condition = graph.maker(mask, "Where")
        ends = [graph.number(end) for end in condition.inputs[1:]] if condition else []
        boolean = ends == [0.0, -math.inf]
        mask = condition.inputs[0] if condition and boolean else mask
        inputs = (q, k, node.inputs[1], mask, *_unflattened(graph, k))
        attributes = {
            "scale": scale * first * second,
            "axis": softmax.get("axis", -1),
            "safe": safe,
        }
        return replace(
            node,
            operator="Attention",
            domain=OWN,
            inputs=inputs,
            attributes=attributes,
            opset=softmax.opset,
        )
    return None


def _softmax(graph: _Nodes, name: str) -> tuple[Node | None, bool]:
    """A softmax that is over the last of four dimensions, and whether rows that are no numbers become 0."""
    where = graph.only(name, "Where")
    if where is None:
        node = graph.only(name, "Softmax")
    else:
        condition, zero, name = where.inputs
        wrong = graph.only(condition, "IsNaN")
        if wrong is None or wrong.inputs[0] != name or graph.number(zero) != 0:
            return None, False
        node = graph.maker(name, "Softmax")
    if node is None or node.get("axis", -1 if node.opset >= 13 else 1) not in (-1, 3):
        return None, False
    return node, where is not None


def _unflattened(graph: _Nodes, name: str) -> tuple[str, str]:
    """The key of which a value is the transpose, taken through three dimensions, and what it is there."""
    last = graph.maker(name, "Reshape")
    turned = graph.maker(last.inputs[0], "Transpose") if last else None
    first = graph.maker(turned.inputs[0], "Reshape") if turned else None
    if first is None or turned is None or turned.get("perm") != [0, 2, 1]:
        return "", ""
    return first.inputs[0], first.outputs[0]
