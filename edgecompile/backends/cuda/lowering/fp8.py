"""Products in fp8 (e4m3): matrices with a scale in float32 for each output, rows with one that is found in each run.

The tensor cores multiply e4m3 by e4m3; sums are in float32, and what comes out is half precision. A row's scale is its
largest magnitude over e4m3's. Where rows come from a norm, Inductor finds it and rounds them in the norm's kernel; behind
attention or another product that is a kernel of its own, which costs more than a product with a small matrix saves.
A product with one row is bound by reading the matrix: it stays a sum over the row in half precision, of a matrix in e4m3.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.cuda.lowering.matrices import (
    PRODUCTS,
    MatrixProduct,
    add_constants,
    narrow_matrices,
)
from edgecompile.backends.inductor.compat.functions import scaled_product
from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace_results

aten = torch.ops.aten

_TYPE = torch.float8_e4m3fn
_LARGEST = 448.0
#: Rows and columns of the tensor cores' products come in as many bytes.
_ALIGNED = 16
#: Inputs that one step of theirs takes.
_DEPTH = 32
#: Numbers of a matrix from which rounding its rows in a kernel of their own pays: on an H100 2.4 million then take 0.77
#: of half precision's time at 4,096 rows and 1.10 at 16, 45 million 0.70 at most, 0.6 million never less.
_LARGE = 2_000_000
#: What rows are looked for behind, at most.
_STEPS = 32
_NORMS = {
    aten.layer_norm.default,
    aten.native_layer_norm.default,
    aten.rms_norm.default,
    aten.mean.dim,
    aten.var_mean.correction,
}
#: What is no part of a kernel of Inductor's with what follows.
_APART = {
    *PRODUCTS,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.scaled_dot_product_attention.default,
    aten.convolution.default,
}
#: Under any magnitude of half precision that isn't zero.
_LEAST = 1e-10


def narrow_to_fp8(low: Lowering) -> None:
    """Rewrites products with constant matrices; the graph is of half precision already."""
    # Before any is rewritten, so that programs of one row and of several decide alike.
    behind_norms = {
        node
        for node in low.gm.graph.nodes
        if node.target in PRODUCTS and _follows_norm(arguments_of(node)[PRODUCTS[node.target][0]])
    }

    def rewrite(product: MatrixProduct) -> bool | str:
        if product.scaled:
            return "the product has a factor"
        if product.matrix.shape[0] < _DEPTH:
            return "its matrix is small"
        if any(size % _ALIGNED for size in product.matrix.shape):
            return f"its sizes aren't multiples of {_ALIGNED}"
        if product.matrix.numel() < _LARGE and product.node not in behind_norms:
            return "rounding its rows would cost more than it saves"
        node = product.node
        constants = add_constants(low, "fp8", product, _round_matrix)
        function = _row if product.one_row else _product
        operands = [product.rows, *constants, *([] if product.bias is None else [product.bias])]
        replace_results(low.gm, node, inline(low.gm, node, function, operands, symbolic=True))
        return True

    narrow_matrices(low, "fp8", rewrite)


def _follows_norm(rows: Node) -> bool:
    """Whether Inductor computes rows in the kernel of a norm."""
    ahead, seen = [rows], {rows}
    while ahead and len(seen) < _STEPS:
        node = ahead.pop(0)
        if node.target in _NORMS:
            return True
        if node.target not in _APART:
            tensors = (item for item in node.all_input_nodes if value_of(item) is not None)
            new = [item for item in tensors if item not in seen]
            ahead += new
            seen.update(new)
    return False


def _row(x: Tensor, w: Tensor, scale: Tensor, *biases: Tensor) -> Tensor:
    y = (x.float().unsqueeze(-2) * w.float()).sum(-1) * scale.flatten()
    for bias in biases:
        y = y + bias.float()
    return y.to(x.dtype)


def _product(x: Tensor, w: Tensor, scale: Tensor, *biases: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]).float()
    rounded, row_scale = _round(rows)
    y = scaled_product(rounded, w.t(), row_scale, scale, x.dtype)
    for bias in biases:
        y = y + bias
    return y.reshape(*x.shape[:-1], -1)


def _round_matrix(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 [outputs, inputs], as the tensor cores want it, and scales [1, outputs]."""
    rounded, scale = _round(matrix.t().float())
    return rounded.contiguous(), scale.t().contiguous()


def _round(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in e4m3, whose largest number each row's largest magnitude becomes, and scales [M, 1]."""
    scale = rows.abs().amax(1, keepdim=True).clamp(min=_LEAST) / _LARGEST
    return (rows / scale).clamp(-_LARGEST, _LARGEST).to(_TYPE), scale
