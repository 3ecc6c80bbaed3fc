"""Graph lowering of arithmetic that Inductor's code computes less exactly than torch's kernels.

Of ``a % b`` it makes ``a - floor(a / b) * b``, of which nothing is left where the quotient has no
digits after the point, and of ``a // b`` the rounded quotient's floor. Variances it sums up in
single precision, whose squares overflow from 1e19 and vanish below 1e-23. Here each becomes what
torch's own kernels compute: ``fmod``, which is exact, with the sign put right; double sums.

Norms of layers and groups stay as they are: torch sums them up in single precision as well. So do
its means, but what is left of nearly equal values without their mean magnifies each of its steps.
On a CPU those of long rows are double sums, too, which gives the float that is nearest to the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.constants import constant_of, value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace_results

aten = torch.ops.aten


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    """With the sign of ``b``."""
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """Python's ``//`` of floats, as c10::div_floor_floating has it."""
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b  # whole but for rounding
    quotient = torch.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    floor = torch.floor(quotient)
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    plain = a / b
    floor = torch.where(quotient == 0, torch.copysign(torch.zeros_like(plain), plain), floor)
    return torch.where(b == 0, plain, floor)


#: Functions of two tensors of one floating kind, by operators; some of them change their first operand.
_QUOTIENTS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    **dict.fromkeys((aten.remainder.Tensor, aten.remainder_.Tensor), _remainder),
    **dict.fromkeys((aten.remainder.Scalar, aten.remainder_.Scalar), _remainder),
    aten.remainder.Scalar_Tensor: _remainder,
    **dict.fromkeys((aten.floor_divide.default, aten.floor_divide_.Tensor), _floor_divide),
    **dict.fromkeys((aten.floor_divide.Scalar, aten.floor_divide_.Scalar), _floor_divide),
    **dict.fromkeys((aten.div.Tensor_mode, aten.div_.Tensor_mode), _floor_divide),
    **dict.fromkeys((aten.div.Scalar_mode, aten.div_.Scalar_mode), _floor_divide),
}

_VARIANCES = {
    overload
    for name in ("var", "std", "var_mean", "std_mean")
    for overload in (
        getattr(aten, name).default, getattr(aten, name).dim, getattr(aten, name).correction,
    )
}  # fmt: skip


def lower_arithmetic(low: Lowering) -> None:
    """Rewrites what torch computes more exactly."""
    low.each("exact", _QUOTIENTS, partial(_lower_quotient, low.gm))
    low.each("exact", {*_VARIANCES, aten.batch_norm.default}, partial(_lower_variance, low.gm))


#: Rows of a fixed length below this are hidden states, whose means of squares are hot.
LONG_ROW = 4096


def lower_long_means(low: Lowering) -> None:
    """Rewrites means over lengths and long rows, which lose digits with every term."""
    low.each("exact", {aten.mean.default, aten.mean.dim}, partial(_lower_mean, low.gm))


def _lower_mean(gm: GraphModule, node: Node) -> bool:
    value, result = value_of(node.args[0]), value_of(node)
    if value is None or result is None or {value.dtype, result.dtype} != {torch.float32}:
        return False
    given = arguments_of(node)
    dims, keeps = given.get("dim") or list(range(value.dim())), given.get("keepdim", False)
    sizes = [value.shape[dim] for dim in dims]
    if all(isinstance(size, int) for size in sizes) and math.prod(sizes) < LONG_ROW:
        return False

    def run(x: Tensor) -> Tensor:
        return x.double().mean(dims, keeps).to(torch.float32)

    source: Any = node.args[0]
    replace_results(gm, node, inline(gm, node, run, [source]))
    return True


def _norms_by_its_batch(node: Node) -> bool:
    """Whether a batch norm is by the mean and variance of its input, which it doesn't record."""
    return bool(node.args[5]) and node.args[3] is None


def _lower_quotient(gm: GraphModule, node: Node) -> bool:
    value = value_of(node)
    rounding = node.kwargs.get("rounding_mode", "floor")
    if value is None or not value.is_floating_point() or rounding != "floor":
        return False
    both: Any = node.args[:2]
    operands = _operands(gm, both)
    if operands is None:
        return False
    kind = value.dtype
    exact = torch.float64 if kind == torch.float64 else torch.float32

    def run(*tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        a, b = (
            next(rest).to(exact) if isinstance(x, Node) else torch.scalar_tensor(x, dtype=exact)
            for x in both
        )
        result = _QUOTIENTS[node.target](a, b)
        changes = node.target._schema.is_mutable  # type: ignore[union-attr]
        return tensors[0].copy_(result) if changes else result.to(kind)

    replace_results(gm, node, inline(gm, node, run, operands))
    return True


def _operands(gm: GraphModule, args: Sequence[Any]) -> list[Node] | None:
    """The nodes among the arguments; None if one is a number that only a run knows."""
    nodes = [x for x in args if isinstance(x, Node)]
    computable = all(value_of(x) is not None or constant_of(gm, x) is not None for x in nodes)
    return nodes if computable else None


def _lower_variance(gm: GraphModule, node: Node) -> bool:
    value = value_of(node.args[0])
    if value is None or not value.is_floating_point() or value.dtype == torch.float64:
        return False
    if node.target not in _VARIANCES and not _norms_by_its_batch(node):
        return False
    operands = _operands(gm, node.args)
    if operands is None:
        return False

    def run(*tensors: Tensor) -> Any:
        rest = iter(tensors)
        args = [next(rest).double() if isinstance(x, Node) else x for x in node.args]
        results: Any = node.target(*args, **node.kwargs)  # type: ignore[operator]
        if isinstance(results, Tensor):
            return results.to(value.dtype)
        return tuple(x.to(value.dtype) for x in results)

    replace_results(gm, node, inline(gm, node, run, operands))
    return True
