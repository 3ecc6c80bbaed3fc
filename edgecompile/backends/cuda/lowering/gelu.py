"""GELU in half precision without ``erf`` and ``tanh``, which cost a product's kernel as much as half of the product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace_results

aten = torch.ops.aten

#: Of ``1 - log2 erfc(a / sqrt 2)`` for ``a`` up to 6, from the power 0 on: the least largest error of ``a`` times 2 to
#: minus it, 9.3e-7. float16 rounds to 4.9e-4 of a number.
_TAIL = (1.0000772, 1.15046992, 0.460769462, 0.051045844, -0.00674624644, 0.000421422027)
#: Beyond it the tail is below 1e-14.
_LAST = 8.0


def lower_gelu(low: Lowering) -> None:
    """Rewrites GELU of half-precision tensors."""

    def lower(node: Node) -> bool:
        value = value_of(node)
        if value is None or value.dtype not in (torch.float16, torch.bfloat16):
            return False
        bound = arguments_of(node)
        run = _tanh if bound["approximate"] == "tanh" else _erf
        replace_results(low.gm, node, inline(low.gm, node, run, [bound["self"]], symbolic=True))
        return True

    low.each("gelus", {aten.gelu.default}, lower)


def _erf(x: Tensor) -> Tensor:
    """x for a positive one, or 0, less |x| times the normal distribution's tail beyond |x|: 2 to a polynomial."""
    wide = x.to(torch.float32)
    size = wide.abs().clamp(max=_LAST)
    power = size * _TAIL[-1]
    for factor in _TAIL[-2:0:-1]:
        power = (power + factor) * size
    power = power + _TAIL[0]
    return (wide.clamp(min=0.0) - size * torch.exp2(-power)).to(x.dtype)


def _tanh(x: Tensor) -> Tensor:
    """(1 + tanh(u)) / 2 is the sigmoid of 2 u."""
    wide = x.to(torch.float32)
    twice = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)
    return (wide * torch.sigmoid(twice)).to(x.dtype)
