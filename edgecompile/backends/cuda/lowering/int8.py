"""Weights of products as int8: rounded symmetrically, with a scale in float32 for some inputs of each output.

Products multiply in half precision, as they would without. What makes a matrix of int8 and scales stands in the graph:
a kernel writes the matrix down before each product. A template that makes a tile of it as it needs it, and again for
each block of rows, takes 1.1 to 3.7 times as long. A product with one row has a kernel of ours:
of sums down the columns Inductor would write all of the terms. What is rounded is the constants that nothing but products reads: an embedding that also is the last product's matrix stays
as it is, which costs less memory than having it twice.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.cuda.kernels import rows as rows_kernel
from edgecompile.backends.lowering.constants import (
    PACKED_PREFIX,
    attribute_name,
    constant_of,
    is_nameless,
    value_of,
)
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of, replace_results
from edgecompile.targets.gpu import GpuFacts

aten = torch.ops.aten

_LARGEST = 127
#: Inputs that share a scale, of each output: the largest of these numbers that they are a multiple of; else all.
_BLOCKS = (64, 48, 32, 16)
#: A matrix of fewer rows or columns is small beside its scales and its product's other work.
_LEAST = 16
_HALF = (torch.float16, torch.bfloat16)
#: Of each product's arguments the names of the rows, the matrix, and what is added.
_PRODUCTS = {
    aten.linear.default: ("input", "weight", "bias"),
    aten.addmm.default: ("mat1", "mat2", "self"),
    aten.mm.default: ("self", "mat2", ""),
    aten.matmul.default: ("self", "other", ""),
}


def narrow_weights(low: Lowering, gpu: GpuFacts) -> None:
    """Rewrites constant matrices of products; the graph is of half precision already."""
    read = _readers(low)

    def product(node: Node) -> bool | str:
        bound = arguments_of(node)
        names = _PRODUCTS[node.target]  # type: ignore[index]
        x, source, bias = (bound.get(name) for name in names)
        weight = constant_of(low.gm, source)
        assert isinstance(x, Node) and isinstance(source, Node)
        if weight is None or weight.dim() != 2 or weight.dtype not in _HALF:
            return False
        if min(weight.shape) < _LEAST:
            return "its matrix is small"
        if not all(_is_matrix_of(*reader) for reader in read[id(_owner(low, source))]):
            return "something else reads its matrix, too"
        linear = node.target is aten.linear.default
        columns = weight.t() if linear else weight
        constants = _constants(low, str(source.target), columns, node)
        rows = value_of(x)
        factors = any(bound.get(name, 1) != 1 for name in ("alpha", "beta"))
        if rows is not None and all(str(size) == "1" for size in rows.shape[:-1]) and not factors:
            part = rows_kernel.part_of(columns.shape[0], columns.shape[1], gpu.multiprocessors)

            def row(x: Tensor, whole: Tensor, scale: Tensor, *biases: Tensor) -> Tensor:
                y: Tensor = rows_kernel.ROW(x.reshape(1, -1), whole, scale, part).sum(0)
                for bias in biases:
                    y = y + bias.float()
                y = y.to(x.dtype).reshape(*x.shape[:-1], -1)
                # Written down once: else each part of a split adds the sums up in a kernel of its own.
                return y.as_strided(y.shape, y.stride())

            operands = [x, *constants, *([] if bias is None else [bias])]
            replace_results(low.gm, node, inline(low.gm, node, row, operands))
            return True

        def matrix(whole: Tensor, scale: Tensor) -> Tensor:
            blocks = whole.reshape(scale.shape[0], -1, scale.shape[1]).float() * scale[:, None]
            made = blocks.to(weight.dtype).flatten(0, 1)
            return made.t() if linear else made

        (made,) = inline(low.gm, node, matrix, constants)
        node.replace_input_with(source, made)
        return True

    low.each("int8", _PRODUCTS, product)


def _owner(low: Lowering, node: Node) -> Tensor:
    """The tensor itself, not a detached view of it."""
    owner, _, leaf = str(node.target).rpartition(".")
    module = low.gm.get_submodule(owner) if owner else low.gm
    return getattr(module, leaf)  # type: ignore[no-any-return]


def _readers(low: Lowering) -> dict[int, list[tuple[Node, Node]]]:
    """Who reads each constant, under all of its names: the node and its ``get_attr``."""
    found: dict[int, list[tuple[Node, Node]]] = {}
    for node in low.gm.graph.nodes:
        if constant_of(low.gm, node) is not None:
            users = [(user, node) for user in node.users]
            found.setdefault(id(_owner(low, node)), []).extend(users)
    return found


def _is_matrix_of(user: Node, constant: Node) -> bool:
    if user.target not in _PRODUCTS:
        return False
    return arguments_of(user)[_PRODUCTS[user.target][1]] is constant


def _constants(low: Lowering, name: str, weight: Tensor, near: Node) -> list[Node]:
    """The nodes of a matrix [inputs, outputs] in int8, row after row, and of its scales [blocks, outputs].

    Inductor fuses a conversion into a product only where it goes through the matrix in the product's order.
    """
    # Packed ones are the same in every program of the model.
    prefix = "ec" if is_nameless(name) else PACKED_PREFIX
    names = [attribute_name(f"{prefix}{kind}_", name, name) for kind in ("int8", "scale")]
    if not hasattr(low.gm, names[0]):
        block = next((size for size in _BLOCKS if weight.shape[0] % size == 0), weight.shape[0])
        blocks = weight.float().reshape(-1, block, weight.shape[1])
        scale = blocks.abs().amax(1).clamp(min=1e-30) / _LARGEST
        whole = (blocks / scale[:, None]).round().to(torch.int8).flatten(0, 1)
        low.gm.register_buffer(names[0], whole.contiguous())
        low.gm.register_buffer(names[1], scale)
        low.report.packed[names[0]] = low.report.packed.get(name, [name])
        low.report.narrowed[name] = "int8"
    with low.gm.graph.inserting_before(near):
        return [low.gm.graph.get_attr(item) for item in names]
