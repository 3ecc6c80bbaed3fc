"""Products of matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.table import OWN, operator


@operator("MatMul")
def _product(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@operator("Linear", domain=OWN)
def _linear(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, weight, bias)


@operator("Gemm")
def _gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.transpose(0, 1) if node.get("transA", 0) else a
    b = b.transpose(0, 1) if node.get("transB", 0) else b
    result = _scaled(torch.matmul(a, b), node.get("alpha", 1.0))
    return result if c is None else result + _scaled(c, node.get("beta", 1.0))


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    return (x * factor).to(x.dtype)


@operator("Einsum")
def _einsum(node: Node, *parts: Tensor) -> Tensor:
    return torch.einsum(node.get("equation").replace(" ", ""), *parts)


@operator("Det")
def _determinant(node: Node, x: Tensor) -> Tensor:
    return torch.linalg.det(x)


@operator("FusedMatMul", domain="com.microsoft")
def _fused(node: Node, a: Tensor, b: Tensor) -> Tensor:
    if node.get("transBatchA", 0) or node.get("transBatchB", 0):
        raise ValueError("its transBatchA and transBatchB aren't supported")
    a = a.transpose(-1, -2) if node.get("transA", 0) else a
    b = b.transpose(-1, -2) if node.get("transB", 0) else b
    return _scaled(torch.matmul(a, b), node.get("alpha", 1.0))


def as_linear(node: Node, tensors: list[Any]) -> tuple[str, list[Any]] | None:
    """A product with constant weights as ``Linear``, whose weights have the other order.

    Args:
        node: the node.
        tensors: its inputs as far as they are constant tensors, else None.

    Returns:
        The operator of the domain "edgecompile" and its inputs: a tensor, or the place of one of the node's.
    """
    weight: Any = tensors[1] if len(tensors) > 1 else None
    if weight is None or weight.dim() != 2 or not weight.is_floating_point():
        return None
    if node.operator == "MatMul":
        return ("Linear", [0, weight.t().contiguous()]) if tensors[0] is None else None
    plain = node.get("alpha", 1.0) == node.get("beta", 1.0) == 1.0 and not node.get("transA", 0)
    if not plain or tensors[0] is not None:
        return None
    weight = weight if node.get("transB", 0) else weight.t().contiguous()
    if len(tensors) < 3:
        return "Linear", [0, weight]
    bias: Any = tensors[2]
    columns = weight.shape[0]
    if bias is None or tuple(bias.shape) not in ((columns,), (1, columns)):
        return None
    return "Linear", [0, weight, bias.reshape(-1)]
