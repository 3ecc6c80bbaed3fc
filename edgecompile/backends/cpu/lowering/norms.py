"""Graph lowering of the norms of layers, groups and channels that no kernel of the runtime computes.

What generated code sums up in single precision gives a mean that is off by a rounding. Of a row of equal
values that rounding is all that is left, and the norm magnifies it: 0.02 for a row of 1000.7, where torch
gives 0. Here the mean is taken again of what is left, which is exact for such rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.arithmetic import LONG_ROW
from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    arguments_of,
    is_float32,
    replace_results,
)

aten = torch.ops.aten

#: A norm of an input, its weight and its bias, by the other arguments.
_Norm = Callable[[Tensor, Tensor | None, Tensor | None, dict[str, Any]], Tensor]


def _normalised(x: Tensor, dims: list[int], eps: float) -> Tensor:
    """``x`` without its mean over ``dims``, over its standard deviation there."""
    sizes = [x.shape[dim] for dim in dims]
    is_long = not all(isinstance(n, int) for n in sizes) or math.prod(sizes) >= LONG_ROW

    def mean(values: Tensor) -> Tensor:
        if is_long:
            return values.double().mean(dims, True).to(torch.float32)
        return values.mean(dims, True)

    about = x - mean(x)
    rest = mean(about)
    variance = (mean(about * about) - rest * rest).clamp(min=0)
    return (about - rest) * torch.rsqrt(variance + eps)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _spread(vector: Tensor | None, x: Tensor) -> Tensor | None:
    """A vector of channels in a shape that fits ``x``, ``[N, C, ...]``."""
    return None if vector is None else vector.reshape(-1, *(1,) * (x.dim() - 2))


def _layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rest: dict[str, Any]
) -> Tensor:
    dims = list(range(-len(rest["normalized_shape"]), 0))
    return _scaled(_normalised(x, dims, rest["eps"]), weight, bias)


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rest: dict[str, Any]
) -> Tensor:
    groups = rest["num_groups"]
    planes: Tensor = torch.unflatten(x, 1, (groups, x.shape[1] // groups))
    result = _normalised(planes, list(range(2, planes.dim())), rest["eps"]).flatten(1, 2)
    return _scaled(result, _spread(weight, x), _spread(bias, x))


def _instance_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rest: dict[str, Any]
) -> Tensor:
    result = _normalised(x, list(range(2, x.dim())), rest["eps"])
    return _scaled(result, _spread(weight, x), _spread(bias, x))


_NORMS: dict[Any, _Norm] = {
    aten.instance_norm.default: _instance_norm,
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
}


def lower_norms(low: Lowering) -> None:
    """Rewrites the norms that are left."""
    low.each("exact", _NORMS, partial(_lower, low.gm))


def _lower(gm: GraphModule, node: Node) -> bool:
    rest = arguments_of(node)
    x, vectors = rest["input"], [rest["weight"], rest["bias"]]
    given = [item for item in (x, *vectors) if item is not None]
    values = [constant_of(gm, n) if value_of(n) is None else value_of(n) for n in given]
    if not all(map(is_float32, values)) or rest.get("running_mean") is not None:
        return False

    def run(*tensors: Tensor) -> Tensor:
        left = iter(tensors)
        rows = next(left)
        weight, bias = (None if item is None else next(left) for item in vectors)
        return _NORMS[node.target](rows, weight, bias, rest)

    replace_results(gm, node, inline(gm, node, run, given, symbolic=True))
    return True
