"""Graph lowering of means over an image: each line's sum comes first.

Inductor divides such a mean by channels among threads. Each thread then reads half of what the
convolution before wrote on another core. Lines are divided as the convolution divides them.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor
from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.convolutions import permutation
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    arguments_of,
    aten,
    is_float32,
    replace_results,
)
from edgecompile.backends.operators import ops
from edgecompile.backends.operators.convolution import CONVOLUTION


def lower_means(low: Lowering) -> None:
    """Rewrites means of images of a fixed size that the runtime's products made: their channels lie together."""
    targets = {aten.adaptive_avg_pool2d.default, aten.mean.dim}
    low.each("means", targets, partial(_lower, low.gm))


def _lower(gm: GraphModule, node: Node) -> bool:
    x = node.args[0]
    assert isinstance(x, Node)
    value, result = value_of(x), value_of(node)
    if not (is_float32(value) and is_float32(result) and value.dim() == 4):
        return False
    order = permutation(x)
    product = x if order is None else x.args[0]
    sizes = value.shape[2:]
    if (
        order not in (None, [0, 3, 1, 2])
        or product.target is not (CONVOLUTION if order is None else ops.LINEAR)  # type: ignore[union-attr]
        or not all(isinstance(size, int) for size in sizes)
        or not _takes_whole_images(node)
    ):
        return False

    def run(x: Tensor) -> Tensor:
        total = x.permute(0, 2, 3, 1).sum(2).sum(1)
        return (total / sizes.numel()).reshape(result.shape)

    replace_results(gm, node, inline(gm, node, run, [x]))
    return True


def _takes_whole_images(node: Node) -> bool:
    """Whether a mean is that of each image's channel."""
    bound = arguments_of(node)
    if node.target is aten.adaptive_avg_pool2d.default:
        return list(bound["output_size"]) == [1, 1]
    return sorted(dim % 4 for dim in bound["dim"] or ()) == [2, 3]
