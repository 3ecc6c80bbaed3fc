"""The steps that graph rewrites share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.lowering.rewriting import arguments_of, replace, write_checks

aten = torch.ops.aten


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return torch.relu(y.neg())


def test_arguments_have_the_schema_s_names_and_defaults() -> None:
    x = torch.ones(1, 2, 3, 4)
    graph = torch.export.export(Attention(), (x,)).module()
    (node,) = (n for n in graph.graph.nodes if "attention" in str(n.target))
    bound = arguments_of(node)
    assert bound["is_causal"] is True and bound["query"] is bound["key"] is bound["value"]
    assert (bound["attn_mask"], bound["dropout_p"], bound["scale"]) == (None, 0.0, None)
    assert bound["enable_gqa"] is False


def test_a_call_takes_the_place_of_a_chain() -> None:
    x = torch.randn(1, 2, 3, 4)
    graph = torch.export.export(Attention(), (x,)).module()
    (first,) = (n for n in graph.graph.nodes if n.target is aten.neg.default)
    (last,) = (n for n in graph.graph.nodes if n.target is aten.relu.default)
    source = first.args[0]
    meta = dict(last.meta)
    new = replace(graph, first, aten.abs.default, [source], last)
    graph.graph.lint()
    graph.recompile()
    assert new.meta == meta
    left = {n.target for n in graph.graph.nodes}
    assert aten.neg.default not in left and aten.relu.default not in left
    attended = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert torch.equal(graph(x), attended.abs())


class Checked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all(x >= 0)
        return x.sqrt()


def test_checks_of_values_become_plain_operators() -> None:
    graph = torch.export.export(Checked(), (torch.ones(3),)).module()
    assert aten._is_all_true.default in {node.target for node in graph.graph.nodes}
    write_checks(graph)
    targets = {node.target for node in graph.graph.nodes}
    assert aten.all.default in targets and aten._is_all_true.default not in targets
    graph.recompile()
    assert graph(torch.full((3,), 4.0)).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="assertion failed"):
        graph(torch.full((3,), -4.0))
