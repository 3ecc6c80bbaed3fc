"""The constant matrices of products, which a precision stores narrower than half precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from edgecompile.backends.lowering.constants import (
    PACKED_PREFIX,
    attribute_name,
    constant_of,
    fold_constant,
    is_nameless,
    value_of,
)
from edgecompile.backends.lowering.convolutions import constant_node
from edgecompile.backends.lowering.in_place import changed_memory, changes_in_place
from edgecompile.backends.lowering.rewriting import Lowering, arguments_of

aten = torch.ops.aten

#: A matrix of fewer rows or columns is small beside its scales and its product's other work.
_LEAST = 16
_HALF = (torch.float16, torch.bfloat16)
#: Of each product's arguments the names of the rows, the matrix, and what is added.
PRODUCTS = {
    aten.linear.default: ("input", "weight", "bias"),
    aten.addmm.default: ("mat1", "mat2", "self"),
    aten.mm.default: ("self", "mat2", ""),
    aten.matmul.default: ("self", "other", ""),
}


#: What narrowing and Inductor's templates read through: a constant of its own would be the same memory twice.
_VIEWS = {
    aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default, aten.reshape.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.slice.Tensor, aten.select.int,
}  # fmt: skip


def fold_weights(low: Lowering) -> None:
    """Makes constants of linears' weights that are computed of constants, such as queries' part of one matrix for three.

    Else every run would compute them, and what asks for a constant would pass them over. Where a constant is
    changed in place, nothing is folded. Other products may be of numbers that stay float32, such as angles.
    """
    if any(node.op == "get_attr" for node in changed_memory(changes_in_place(low.gm))):
        return

    def linear(node: Node) -> bool:
        found = False
        for source in node.all_input_nodes[1:]:
            viewed: Any = source
            while isinstance(viewed, Node) and viewed.target in _VIEWS:
                viewed = viewed.args[0]
            folded = fold_constant(low.gm, source)
            if folded is None or constant_of(low.gm, viewed) is not None:
                continue
            with low.gm.graph.inserting_before(node):
                constant = constant_node(low.gm, "ecfold_", folded, folded.tensor.contiguous)
            constant.meta = dict(source.meta)
            node.replace_input_with(source, constant)
            found = True
        return found

    low.each("folded", {aten.linear.default}, linear)


@dataclass(frozen=True)
class MatrixProduct:
    """A product of half precision with a constant matrix that nothing but products reads.

    Attributes:
        node: the product.
        rows, source: the nodes of its rows and of its matrix.
        bias: the node of what is added, if anything is.
        matrix: [inputs, outputs].
        linear: whether the constant is stored as [outputs, inputs].
        scaled: whether the product or what is added has a factor.
    """

    node: Node
    rows: Node
    source: Node
    bias: Node | None
    matrix: Tensor
    linear: bool
    scaled: bool

    @property
    def one_row(self) -> bool:
        """Whether it has a single row, in every run."""
        value = value_of(self.rows)
        return value is not None and all(str(size) == "1" for size in value.shape[:-1])


def narrow_matrices(
    low: Lowering, kind: str, rewrite: Callable[[MatrixProduct], bool | str]
) -> None:
    """Hands every product with a constant matrix to ``rewrite``, as a rule of :meth:`Lowering.each`.

    Left out is a matrix that something else reads, such as an embedding that also is the last product's: as it is it
    costs less memory than having it twice.
    """
    read = _readers(low)

    def product(node: Node) -> bool | str:
        bound = arguments_of(node)
        names = PRODUCTS[node.target]  # type: ignore[index]
        rows, source, bias = (bound.get(name) for name in names)
        weight = constant_of(low.gm, source)
        assert isinstance(rows, Node) and isinstance(source, Node)
        if weight is None or weight.dim() != 2 or weight.dtype not in _HALF:
            return False
        if min(weight.shape) < _LEAST:
            return "its matrix is small"
        if not all(_is_matrix_of(*reader) for reader in read[id(_owner(low, source))]):
            return "something else reads its matrix, too"
        linear = node.target is aten.linear.default
        scaled = any(bound.get(name, 1) != 1 for name in ("alpha", "beta"))
        matrix = weight.t() if linear else weight
        return rewrite(MatrixProduct(node, rows, source, bias, matrix, linear, scaled))

    low.each(kind, PRODUCTS, product)


def add_constants(
    low: Lowering,
    kind: str,
    product: MatrixProduct,
    make: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> list[Node]:
    """The nodes of a matrix in ``kind`` and of its scales, which ``make`` makes of [inputs, outputs] once for all readers."""
    name = str(product.source.target)
    # Packed ones are the same in every program of the model.
    prefix = "ec" if is_nameless(name) else PACKED_PREFIX
    names = [attribute_name(f"{prefix}{part}_", name, name) for part in (kind, "scale")]
    if not hasattr(low.gm, names[0]):
        for attribute, tensor in zip(names, make(product.matrix), strict=True):
            low.gm.register_buffer(attribute, tensor)
        low.report.packed[names[0]] = low.report.packed.get(name, [name])
        low.report.narrowed[name] = kind
    with low.gm.graph.inserting_before(product.node):
        return [low.gm.graph.get_attr(item) for item in names]


def _owner(low: Lowering, node: Node) -> Tensor:
    """The tensor itself, not a detached view of it."""
    owner, _, leaf = str(node.target).rpartition(".")
    module = low.gm.get_submodule(owner) if owner else low.gm
    return getattr(module, leaf)  # type: ignore[no-any-return]


def _readers(low: Lowering) -> dict[int, list[tuple[Node, Node]]]:
    """Who reads each constant, under all of its names: the node and its ``get_attr``."""
    readers: dict[int, list[tuple[Node, Node]]] = {}
    for node in low.gm.graph.nodes:
        if constant_of(low.gm, node) is not None:
            users = [(user, node) for user in node.users]
            readers.setdefault(id(_owner(low, node)), []).extend(users)
    return readers


def _is_matrix_of(user: Node, constant: Node) -> bool:
    if user.target not in PRODUCTS:
        return False
    return arguments_of(user)[PRODUCTS[user.target][1]] is constant
