"""Putting what a Python function computes into a graph, in place of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from edgecompile.backends.lowering.constants import constant_of, value_of


def inline(
    gm: GraphModule,
    before: Node,
    function: Callable[..., Any],
    arguments: Sequence[Node],
    *,
    symbolic: bool = False,
    composite: bool = True,
) -> list[Node]:
    """Traces ``function`` on the arguments' recorded values and copies its operators.

    Args:
        gm: changed in place.
        before: the node before which they are put; they count as part of its module.
        function: a function that takes tensors and returns a tensor or a tuple of them.
        arguments: nodes whose values export recorded (tensors, or sizes if ``symbolic``), or constants.
        symbolic: let ``function`` compute with sizes that only a run knows.
        composite: keep operators whole that torch makes of others, such as ``linear``.

    Returns:
        The nodes of its results.
    """
    values = [fake_value(gm, node, before) for node in arguments]
    mode: Literal["symbolic", "real"] = "symbolic" if symbolic else "real"
    trace = make_fx(
        function, tracing_mode=mode, pre_dispatch=composite, _allow_non_fake_inputs=symbolic
    )
    traced = trace(*values)
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    mapping = dict(zip(inputs, arguments, strict=True))
    for node in [n for n in traced.graph.nodes if n.op == "get_attr"]:
        # Constants of the trace (a table of cosines) get names of their own.
        constant = constant_of(traced, node)
        name = f"_{before.name}_{node.target}"
        gm.register_buffer(name, constant, persistent=False)
        node.target = name
    with gm.graph.inserting_before(before):
        results: Any = gm.graph.graph_copy(traced.graph, mapping)
    for node in mapping.values():
        node.meta.setdefault("nn_module_stack", before.meta.get("nn_module_stack"))
    return list(results) if isinstance(results, (tuple, list)) else [results]


def fake_value(gm: GraphModule, node: Node, near: Node) -> Any:
    """The value that export recorded for a node; for a constant, a stand-in of the same kind."""
    if isinstance(node.meta.get("val"), torch.SymInt):
        return node.meta["val"]
    value = value_of(node)
    if _mode_of(value) is not None:
        assert value is not None
        return value
    constant = constant_of(gm, node) if value is None else value
    modes = (_mode_of(value_of(other)) for other in (near, *near.all_input_nodes))
    mode = next(candidate for candidate in modes if candidate is not None)
    fake: Tensor = mode.from_tensor(constant)
    return fake


def _mode_of(value: Tensor | None) -> Any:
    return getattr(value, "fake_mode", None)
