"""Graph lowering of ``grid_sample`` to the runtime's operator.

Inductor's loop computes the place and the shares of its neighbours again for every channel.
"""

from __future__ import annotations

from functools import partial

from torch.fx import GraphModule, Node

from edgecompile.backends.lowering.constants import value_of
from edgecompile.backends.lowering.convolutions import permuted
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    arguments_of,
    aten,
    is_float32,
    replace,
)
from edgecompile.backends.operators.samples import SAMPLES

#: Channels from which the operator takes less time than Inductor's loop.
_LEAST_CHANNELS = 8


def lower_samples(low: Lowering) -> None:
    """Rewrites bilinear samples of images with several channels."""
    targets = {aten.grid_sampler.default, aten.grid_sampler_2d.default}
    low.each("samples", targets, partial(_lower, low.gm))


def _lower(gm: GraphModule, node: Node) -> bool:
    bound = arguments_of(node)
    images, grid = bound["input"], bound["grid"]
    value = value_of(images)
    if not (is_float32(value) and is_float32(value_of(grid)) and value.dim() == 4):
        return False
    channels = value.shape[1]
    if bound["interpolation_mode"] or not isinstance(channels, int) or channels < _LEAST_CHANNELS:
        return False
    with gm.graph.inserting_before(node):
        pixels = permuted(gm, images, [0, 2, 3, 1])
        arguments = pixels, grid, bound["padding_mode"], bound["align_corners"]
        samples = gm.graph.call_function(SAMPLES, arguments)
        samples.meta = {**node.meta, "val": node.meta["val"].permute(0, 2, 3, 1)}
    replace(gm, node, aten.permute.default, (samples, [0, 3, 1, 2]))
    return True
