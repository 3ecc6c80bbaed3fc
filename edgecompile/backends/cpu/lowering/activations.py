"""Activations that the runtime's products can apply to their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from edgecompile.backends.operators import ops

aten = torch.ops.aten

#: Activations that change their operand, with those that don't. Where the operand has no other
#: reader, they are the same.
OUT_OF_PLACE: Mapping[Any, Any] = {
    aten.relu_.default: aten.relu.default,
    aten.gelu_.default: aten.gelu.default,
    aten.silu_.default: aten.silu.default,
    aten.tanh_.default: aten.tanh.default,
    aten.sigmoid_.default: aten.sigmoid.default,
    aten.relu6_.default: aten.relu6.default,
    aten.hardtanh_.default: aten.hardtanh.default,
    aten.clamp_.default: aten.clamp.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.hardsigmoid_.default: aten.hardsigmoid.default,
}
_SIMPLE = {
    aten.relu.default: "relu",
    aten.silu.default: "silu",
    aten.tanh.default: "tanh",
    aten.sigmoid.default: "sigmoid",
    aten.relu6.default: "relu6",
    aten.hardswish.default: "hardswish",
    aten.hardsigmoid.default: "hardsigmoid",
}
#: Those that are relu6 with these bounds.
_CLIPPING = {aten.hardtanh.default, aten.clamp.default}


def activation_of(node: Node) -> tuple[Node, int] | None:
    """The activation that is the only reader of ``node``, with its code."""
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    if user.op != "call_function" or user.args[0] is not node:
        return None
    target = OUT_OF_PLACE.get(user.target, user.target)
    if target is aten.gelu.default:
        kind = user.kwargs.get("approximate", user.args[1] if len(user.args) > 1 else "none")
        return user, ops.ACTIVATIONS["gelu_tanh" if kind == "tanh" else "gelu_erf"]
    if target in _CLIPPING and (*user.args[1:], *user.kwargs.values()) == (0, 6):
        return user, ops.ACTIVATIONS["relu6"]
    name = _SIMPLE.get(target)
    return None if name is None else (user, ops.ACTIVATIONS[name])
