"""Operators on single numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.onnx_import.elements import dtype_of
from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.sizes import Known
from edgecompile.onnx_import.table import operator

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": functional.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
_BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}
#: torch gives them only for two tensors.
_LOGICAL = ("And", "Or", "Xor")


def _enter_simple() -> None:
    for name, one in _UNARY.items():
        operator(name)(lambda node, x, one=one: one(x))
    for name, two in _BINARY.items():
        operator(name, scalars=() if name in _LOGICAL else (0, 1))(
            lambda node, a, b, two=two: _both(two, a, b)
        )


def _both(function: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Tensor:
    """A function of two values of which one may be a Python number; torch takes that second."""
    if not isinstance(a, Tensor):
        a = torch.scalar_tensor(a, dtype=b.dtype)
    return function(a, b)


_enter_simple()


@operator("Identity")
def _identity(node: Node, x: Tensor) -> Tensor:
    return x


@operator("Dropout", known=(2,))
def _dropout(node: Node, x: Tensor, ratio: Any = None, training: Any = None) -> Any:
    if training is not None and not (isinstance(training, Known) and training.numbers == [False]):
        raise ValueError("it is in training mode, which isn't supported")
    if len(node.outputs) == 1:
        return x
    # What a dropout has kept: everything. Its type was that of the data once.
    return x, torch.ones_like(x, dtype=torch.bool if node.opset >= 10 else x.dtype)


@operator("Div", scalars=(0, 1))
def _divide(node: Node, a: Any, b: Any) -> Tensor:
    whole = not (a if isinstance(a, Tensor) else b).is_floating_point()
    return _both(lambda x, y: torch.div(x, y, rounding_mode="trunc" if whole else None), a, b)


@operator("Mod", scalars=(0, 1))
def _modulo(node: Node, a: Any, b: Any) -> Tensor:
    return _both(torch.fmod if node.get("fmod", 0) else torch.remainder, a, b)


@operator("Pow", scalars=(1,))
def _power(node: Node, a: Tensor, b: Any) -> Tensor:
    if b == 2 if not isinstance(b, Tensor) else False:
        return a * a
    whole = not (b.is_floating_point() if isinstance(b, Tensor) else isinstance(b, float))
    if not whole and not a.is_floating_point():
        # The result is whole: rounded to float32, 125 could become 124.
        return torch.pow(a.double(), b).to(a.dtype)
    return torch.pow(a, b).to(a.dtype)


@operator("Min")
def _minimum(node: Node, *parts: Tensor) -> Tensor:
    return reduce(torch.minimum, parts)


@operator("Max")
def _maximum(node: Node, *parts: Tensor) -> Tensor:
    return reduce(torch.maximum, parts)


@operator("Sum")
def _sum(node: Node, *parts: Tensor) -> Tensor:
    return reduce(torch.add, parts)


@operator("Mean")
def _mean(node: Node, *parts: Tensor) -> Tensor:
    return reduce(torch.add, parts) / len(parts)


@operator("BitShift")
def _shift(node: Node, a: Tensor, b: Tensor) -> Tensor:
    left = node.get("direction") == "LEFT"
    wide = torch.int64
    moved = (a.to(wide) << b.to(wide)) if left else (a.to(wide) >> b.to(wide))
    return moved.to(a.dtype)


@operator("Clip", until=10)
def _clip_between(node: Node, x: Tensor) -> Tensor:
    low, high = node.get("min"), node.get("max")
    return x if low is None and high is None else torch.clamp(x, low, high)


@operator("Clip", since=11, scalars=(1, 2))
def _clip(node: Node, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    for bound, function in ((low, torch.clamp_min), (high, torch.clamp_max)):
        if bound is not None:
            x = function(x, bound)
    return x


@operator("Where")
def _where(node: Node, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


@operator("Cast")
def _cast(node: Node, x: Tensor) -> Tensor:
    return x.to(dtype_of(node.get("to"), "its result"))


@operator("CastLike")
def _cast_like(node: Node, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


@operator("IsInf")
def _is_infinite(node: Node, x: Tensor) -> Tensor:
    up, down = node.get("detect_positive", 1), node.get("detect_negative", 1)
    if up and down:
        return torch.isinf(x)
    if not up and not down:
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.isposinf(x) if up else torch.isneginf(x)


@operator("LeakyRelu")
def _leaky(node: Node, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, node.get("alpha", 0.01))


@operator("Elu")
def _elu(node: Node, x: Tensor) -> Tensor:
    return functional.elu(x, node.get("alpha", 1.0))


@operator("Celu")
def _celu(node: Node, x: Tensor) -> Tensor:
    return functional.celu(x, node.get("alpha", 1.0))


@operator("Selu")
def _selu(node: Node, x: Tensor) -> Tensor:
    alpha = node.get("alpha", 1.6732632423543772)
    gamma = node.get("gamma", 1.0507009873554805)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@operator("Swish")
def _swish(node: Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(node.get("alpha", 1.0) * x)


@operator("ThresholdedRelu")
def _thresholded(node: Node, x: Tensor) -> Tensor:
    return torch.where(x > node.get("alpha", 1.0), x, 0)


@operator("PRelu")
def _prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@operator("HardSigmoid")
def _hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return torch.clamp(x * node.get("alpha", 0.2) + node.get("beta", 0.5), 0, 1)


@operator("Softplus")
def _softplus(node: Node, x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


@operator("Gelu")
def _gelu(node: Node, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=node.get("approximate", "none"))


@operator("Shrink")
def _shrink(node: Node, x: Tensor) -> Tensor:
    bias, edge = node.get("bias", 0.0), node.get("lambd", 0.5)
    moved = torch.where(x < -edge, x + bias, torch.where(x > edge, x - bias, 0))
    return moved.to(x.dtype)


@operator("Softmax", "LogSoftmax", "Hardmax", until=12)
def _softmax_rows(node: Node, x: Tensor) -> Tensor:
    """Before opset 13 everything from the axis on was one row."""
    axis = node.get("axis", 1) % x.dim()
    if axis == x.dim() - 1:
        return _by_name(node.operator, x, -1)
    return _by_name(node.operator, x.flatten(axis), -1).reshape(x.shape)


@operator("Softmax", "LogSoftmax", "Hardmax", since=13)
def _softmax(node: Node, x: Tensor) -> Tensor:
    return _by_name(node.operator, x, node.get("axis", -1))


def _by_name(name: str, x: Tensor, axis: int) -> Tensor:
    if name == "Hardmax":
        places = x.argmax(axis, keepdim=True)
        return torch.zeros_like(x).scatter(axis, places, 1)
    return torch.softmax(x, axis) if name == "Softmax" else torch.log_softmax(x, axis)


@operator("LpNormalization")
def _lp_normalization(node: Node, x: Tensor) -> Tensor:
    size = x.norm(p=node.get("p", 2), dim=node.get("axis", -1), keepdim=True)
    return torch.where(size == 0, 0, x / size)


@operator("Constant")
def _constant(node: Node) -> Tensor:
    raise AssertionError("constants are known")


@operator("CumSum", numbers=(1,))
def _cumulative(node: Node, x: Tensor, axis: list[int]) -> Tensor:
    dim = int(axis[0])
    if node.get("reverse", 0):
        x = x.flip(dim)
    total = x.cumsum(dim).to(x.dtype)
    if node.get("exclusive", 0):
        total = total - x
    return total.flip(dim) if node.get("reverse", 0) else total


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation of gelu that optimizers write."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
