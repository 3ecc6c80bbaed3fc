"""A graph's constants and the values that export recorded for its nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node


def constant_of(gm: GraphModule, node: Any) -> Tensor | None:
    """The tensor behind a ``get_attr`` node, or None if ``node`` is something else."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else None


def value_of(node: Any) -> Tensor | None:
    """The fake tensor that export recorded for ``node``, or None."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def drop_unused_constants(gm: GraphModule) -> None:
    """Removes the parameters and buffers that no node of the graph reads."""
    used = {str(n.target) for n in gm.graph.nodes if n.op == "get_attr"}
    for name in _constant_names(gm):
        if name not in used:
            owner, _, leaf = name.rpartition(".")
            delattr(gm.get_submodule(owner) if owner else gm, leaf)


def _constant_names(gm: GraphModule) -> list[str]:
    """Names of all parameters and buffers, those of tied ones included."""
    parameters = [name for name, _ in gm.named_parameters(remove_duplicate=False)]
    return parameters + [name for name, _ in gm.named_buffers(remove_duplicate=False)]


def make_constants_contiguous(gm: GraphModule) -> None:
    """Gives every constant that the graph reads a row-major memory of its own.

    The weights file holds nothing else, and what Inductor notes of a constant are the strides and
    the size of the memory behind it, which may be that of a larger tensor.
    """
    # By the old one's id, beside the old one, whose id no other tensor may get meanwhile.
    fresh: dict[int, tuple[Tensor, Tensor]] = {}
    for name in sorted({str(n.target) for n in gm.graph.nodes if n.op == "get_attr"}):
        owner, _, leaf = name.rpartition(".")
        module = gm.get_submodule(owner) if owner else gm
        tensor = getattr(module, leaf)
        if not isinstance(tensor, Tensor):
            continue  # a submodule
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        if whole and tensor.is_contiguous():
            continue
        if id(tensor) not in fresh:
            copy = tensor.detach().clone(memory_format=torch.contiguous_format)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            fresh[id(tensor)] = (
                tensor,
                torch.nn.Parameter(copy, requires_grad=False) if is_parameter else copy,
            )
        setattr(module, leaf, fresh[id(tensor)][1])  # tied constants stay tied
