"""Weights that a graph changes in place aren't folded, however it reaches them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from edgecompile.backends.lowering.constants import fold_constant
from edgecompile.backends.lowering.in_place import is_changed

aten = torch.ops.aten


def graph_of(build: Callable[[Graph], Node]) -> tuple[GraphModule, Node]:
    """A graph that ``build`` fills, with the node that it gives; ``w`` and ``tied`` have one memory."""
    owner = torch.nn.Module()
    owner.register_buffer("w", torch.arange(6.0).reshape(2, 3))
    owner.register_buffer("tied", owner.w[1])
    owner.register_buffer("other", torch.ones(2, 3))
    graph = Graph()
    node = build(graph)
    graph.output(())
    return GraphModule(owner, graph), node


def another_node(graph: Graph) -> Node:
    node = graph.get_attr("w")
    graph.call_function(aten.add_.Tensor, (graph.get_attr("w"), 1.0))
    return node


def tied(graph: Graph) -> Node:
    node = graph.get_attr("w")
    graph.call_function(aten.add_.Tensor, (graph.get_attr("tied"), 1.0))
    return node


def listed(graph: Graph) -> Node:
    node = graph.get_attr("w")
    graph.call_function(aten._foreach_add_.Scalar, ([graph.get_attr("other"), node], 1.0))
    return node


def by_name(graph: Graph) -> Node:
    node = graph.get_attr("w")
    view = graph.call_function(aten.view.default, (), {"self": node, "size": [6]})
    graph.call_function(aten.add_.Tensor, (view, 1.0))
    return node


def unsaid(operator: Callable[..., object], *more: object) -> Callable[[Graph], Node]:
    def build(graph: Graph) -> Node:
        node = graph.get_attr("w")
        graph.call_function(aten.add_.Tensor, (graph.call_function(operator, (node, *more)), 1.0))
        return node

    return build


@pytest.mark.parametrize(
    "build",
    [
        another_node, tied, listed, by_name, unsaid(aten._unsafe_view.default, [6]),
        unsaid(aten.dropout.default, 0.5, False), unsaid(aten.atleast_1d.default),
    ],
)  # fmt: skip
def test_changes_by_other_ways_are_found(build: Callable[[Graph], Node]) -> None:
    module, node = graph_of(build)
    assert is_changed(node)
    assert fold_constant(module, node) is None


def test_changes_of_results_and_of_other_weights_are_none() -> None:
    def build(graph: Graph) -> Node:
        node = graph.get_attr("w")
        graph.call_function(aten.add_.Tensor, (graph.get_attr("other"), 1.0))
        graph.call_function(aten.relu_.default, (graph.call_function(aten.neg.default, (node,)),))
        return node

    module, node = graph_of(build)
    folded = fold_constant(module, node)
    assert folded is not None and folded.plain


def test_the_key_of_a_long_derivation_is_short() -> None:
    def build(graph: Graph) -> Node:
        node = graph.get_attr("w")
        for _ in range(50):
            node = graph.call_function(aten.neg.default, (node,))
        return node

    module, node = graph_of(build)
    folded = fold_constant(module, node)
    assert folded is not None and torch.equal(folded.tensor, module.w)
    assert len(str(folded.key)) < 100
