"""Gives all writes of one operator to the same place the value of the last one.

For where threads write in any order: the result is then the same in every order. Eager on a GPU, and ONNX, promise
nothing about repeated indices; what is verified is eager on the CPU, where the last write wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.collisions import may_collide, varying_dims
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import arguments_of
from edgecompile.errors import CompileError

aten = torch.ops.aten

#: Gives, of places [M, N] and the number of places of each line, the number of the last write to the place of
#: each write, [M, N].
FindLast = Callable[[Tensor, Any], Tensor]

_PUTS = (aten.index_put.default, aten.index_put_.default)
#: The operators that write, with the names of what they write.
_VALUES: dict[Any, str] = {
    **dict.fromkeys((aten.scatter.src, aten.scatter_.src), "src"),
    **dict.fromkeys(_PUTS, "values"),
    **dict.fromkeys((aten.index_copy.default, aten.index_copy_.default), "source"),
    **dict.fromkeys((aten.put.default, aten.put_.default), "source"),
}


def order_writes(
    gm: GraphModule, find_last: FindLast, constants: Mapping[str, Tensor] | None = None
) -> int:
    """Rewrites in place the values of all writes that may collide; the others, and sums, stay as they are.

    Args:
        gm: a graph as exported; the graphs within it, such as regions of autocast, are rewritten too.
        find_last: traced into the graph.
        constants: tensors by the names of the inputs that stand for them.

    Returns:
        How many were rewritten.

    Raises:
        CompileError: a mask stands beside indices that may repeat.
    """
    count = 0
    for part in list(gm.modules()):
        if not isinstance(part, GraphModule):
            continue
        # Inputs of a graph within have names of their own.
        known = constants if part is gm else None
        before = count
        for node in list(part.graph.nodes):
            if node.target not in _VALUES or arguments_of(node).get("accumulate"):
                continue
            if may_collide(part, node, known):
                _order(part, node, find_last, known)
                count += 1
        if count > before:
            part.recompile()
    return count


def _order(
    gm: GraphModule, node: Node, find_last: FindLast, constants: Mapping[str, Tensor] | None
) -> None:
    bound, name = arguments_of(node), _VALUES[node.target]
    indices = bound["indices"] if node.target in _PUTS else [bound["index"]]
    present = [index for index in indices if index is not None]
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in present):
        raise CompileError(
            "the model writes at a mask beside indices that may repeat: a GPU's threads have no order",
            hint="write at `mask.nonzero()` instead of the mask",
        )
    rank = max(1, bound["self"].meta["val"].dim())
    dim = int(bound.get("dim", 0)) % rank
    if name == "src":
        # Lines of an expanded index are the same.
        varying = varying_dims(gm, bound["index"], constants)
        same = [d for d in range(rank) if d != dim and d - rank not in varying]
        run: Any = partial(_last_of_lines, dim=dim, same=same)
    elif node.target in _PUTS:
        run = partial(_last_of_places, given=[index is not None for index in indices])
    elif "dim" in bound:
        run = partial(_last_of_places, given=[False] * dim + [True])
    else:
        run = _last_in_memory
    operands = [bound["self"], bound[name], *present]
    run = partial(run, find_last)
    (last,) = inline(gm, node, lambda *values: run(*values), operands, symbolic=True)
    position = [argument.name for argument in node.target._schema.arguments].index(name)  # type: ignore[union-attr]
    if position < len(node.args):
        node.update_arg(position, last)
    else:
        node.update_kwarg(name, last)


def _last_of_lines(
    find_last: FindLast,
    target: Tensor,
    source: Tensor,
    index: Tensor,
    *,
    dim: int,
    same: Sequence[int],
) -> Tensor:
    """The values that a scatter is to write instead of ``source``, in the shape of its index, which is equal along ``same``."""
    places = index
    for d in same:
        places = places.narrow(d, 0, 1)
    places = places.movedim(dim, -1)
    lines = places.reshape(-1, places.shape[-1]).to(torch.int64)
    last = find_last(lines, target.shape[dim]).reshape(places.shape).movedim(-1, dim)
    # The source may be larger than the index: its other places aren't written.
    written = source[tuple(slice(size) for size in index.shape)]
    return written.gather(dim, last.expand(index.shape))


def _last_of_places(
    find_last: FindLast, target: Tensor, values: Tensor, *indices: Tensor, given: Sequence[bool]
) -> Tensor:
    """The values to write at indices instead of ``values``; ``given``: the dimensions that have an index."""
    taken = [d for d, is_given in enumerate(given) if is_given]
    common = torch.broadcast_tensors(*indices)  # type: ignore[no-untyped-call]
    room, place = 1, torch.zeros_like(common[0], dtype=torch.int64)
    for index, d in zip(common, taken, strict=True):
        size = target.shape[d]
        place = place * size + torch.where(index < 0, index + size, index)
        room = room * size
    last = find_last(place.reshape(1, -1), room).reshape(-1)
    kept = [target.shape[d] for d in range(target.dim()) if d not in taken]
    front = taken[0] if taken[-1] - taken[0] + 1 == len(taken) else 0
    shape = [*kept[:front], *common[0].shape, *kept[front:]]
    flat = values.expand(shape).reshape([*kept[:front], -1, *kept[front:]])
    return flat.index_select(front, last).reshape(shape)


def _last_in_memory(find_last: FindLast, target: Tensor, source: Tensor, index: Tensor) -> Tensor:
    """The values that ``put`` is to write instead of ``source``."""
    size = target.numel()
    place = torch.where(index < 0, index + size, index).to(torch.int64)
    last = find_last(place.reshape(1, -1), size).reshape(-1)
    return source.reshape(-1).index_select(0, last).reshape(source.shape)
