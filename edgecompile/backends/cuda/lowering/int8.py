"""Weights of products as int8: rounded symmetrically, with a scale in float32 for some inputs of each output.

Products multiply in half precision, as they would without. What makes a matrix of int8 and scales stands in the graph:
a kernel writes the matrix down before each product. A template that makes a tile of it as it needs it, and again for
each block of rows, takes 1.1 to 3.7 times as long. A product with one row has a kernel of ours:
of sums down the columns Inductor would write all of the terms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompile.backends.cuda.kernels import rows as rows_kernel
from edgecompile.backends.cuda.lowering.matrices import (
    MatrixProduct,
    add_constants,
    narrow_matrices,
)
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, replace_results
from edgecompile.targets.gpu import GpuFacts

_LARGEST = 127
#: Inputs that share a scale, of each output: the largest of these numbers that they are a multiple of; else all.
_BLOCKS = (64, 48, 32, 16)


def narrow_to_int8(low: Lowering, gpu: GpuFacts) -> None:
    """Rewrites constant matrices of products; the graph is of half precision already."""

    def rewrite(product: MatrixProduct) -> bool:
        node, (inputs, outputs) = product.node, product.matrix.shape
        constants = add_constants(low, "int8", product, _round)
        if product.one_row and not product.scaled:
            part = rows_kernel.part_of(inputs, outputs, gpu.multiprocessors)

            def row(x: Tensor, whole: Tensor, scale: Tensor, *biases: Tensor) -> Tensor:
                y: Tensor = rows_kernel.ROW(x.reshape(1, -1), whole, scale, part).sum(0)
                for bias in biases:
                    y = y + bias.float()
                y = y.to(x.dtype).reshape(*x.shape[:-1], -1)
                # Written down once: else each part of a split adds the sums up in a kernel of its own.
                return y.as_strided(y.shape, y.stride())

            operands = [product.rows, *constants, *([] if product.bias is None else [product.bias])]
            replace_results(low.gm, node, inline(low.gm, node, row, operands))
            return True

        def matrix(whole: Tensor, scale: Tensor) -> Tensor:
            blocks = whole.reshape(scale.shape[0], -1, scale.shape[1]).float() * scale[:, None]
            weight = blocks.to(product.matrix.dtype).flatten(0, 1)
            return weight.t() if product.linear else weight

        (weight_node,) = inline(low.gm, node, matrix, constants)
        node.replace_input_with(product.source, weight_node)
        return True

    narrow_matrices(low, "int8", rewrite)


def _round(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [inputs, outputs], row after row, and scales [blocks, outputs].

    Inductor fuses a conversion into a product only where it goes through the matrix in the product's order.
    """
    block = next((size for size in _BLOCKS if matrix.shape[0] % size == 0), matrix.shape[0])
    blocks = matrix.float().reshape(-1, block, matrix.shape[1])
    scale = blocks.abs().amax(1).clamp(min=1e-30) / _LARGEST
    whole = (blocks / scale[:, None]).round().to(torch.int8).flatten(0, 1)
    return whole.contiguous(), scale
