"""Divisions whose quotients decide something: they become exact, as torch's are on a CPU.

Triton multiplies by an approximate reciprocal, and so does Inductor where it knows the divisor. Then 21 / 7 can be
more than 3, and its ``ceil`` is 4.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace_results

aten = torch.ops.aten

_DIVISIONS = {
    overload
    for packet in (aten.div, aten.div_)
    for overload in (packet.Tensor, packet.Scalar, packet.Tensor_mode, packet.Scalar_mode)
} | {aten.reciprocal.default, aten.reciprocal_.default}
_ROUND = {aten.floor, aten.ceil, aten.trunc, aten.fix, aten.round, aten.frac}
_KINDS = (torch.float16, torch.bfloat16, torch.float32)


def settle_divisions(low: Lowering) -> None:
    """Makes each division exact whose quotient is rounded, compared or made an integer."""

    def settle(node: Node) -> bool | str:
        value, bound = value_of(node), arguments_of(node)
        changes = cast(Any, node.target)._schema.is_mutable
        rounds = bound.get("rounding_mode") == "trunc"
        if value is None or value.dtype not in _KINDS:
            return False
        if not (rounds or changes or _decides(node)):
            return False
        kind = value.dtype
        operands = [bound["self"], bound["other"]] if "other" in bound else [1.0, bound["self"]]
        nodes = [item for item in operands if isinstance(item, Node)]
        if not all(_is_known(low, item) for item in nodes):
            return "its divisor is a number that only a run knows"

        def run(*values: Any) -> Tensor:
            rest = iter(values)
            tensors = [next(rest) if isinstance(item, Node) else item for item in operands]
            # Inductor has no operator of an exact division alone.
            quotient = torch.addcdiv(_tensor(0.0, kind), *(_tensor(x, kind) for x in tensors))
            quotient = quotient.trunc() if rounds else quotient
            return values[0].copy_(quotient) if changes else quotient

        replace_results(low.gm, node, inline(low.gm, node, run, nodes, symbolic=True))
        return True

    low.each("quotients", _DIVISIONS, settle)


def _is_known(low: Lowering, node: Node) -> bool:
    if value_of(node) is not None or constant_of(low.gm, node) is not None:
        return True
    return isinstance(node.meta.get("val"), torch.SymInt)


def _tensor(number: Any, kind: torch.dtype) -> Tensor:
    return number.to(kind) if isinstance(number, Tensor) else torch.full((), number, dtype=kind)


def _decides(node: Node) -> bool:
    """Whether a tensor, or what is computed of each of its values alone, is rounded, compared or made integers."""
    seen, rest = {node}, [node]
    while rest:
        for user in rest.pop().users:
            value, target = value_of(user), cast(Any, user.target)
            packet = getattr(target, "overloadpacket", None)
            if value is None or packet is None or user in seen:
                continue
            if not value.is_floating_point() or packet in _ROUND:
                return True
            if torch.Tag.pointwise in target.tags or target.is_view:
                seen.add(user)
                rest.append(user)
    return False
