"""The threads that torch runs a model on while it is exported, proven and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from edgecompile.models.loaded import LoadedModel
from edgecompile.runtime.format.sums import size_of

#: Multiplications of a run that one thread does in less time than threads take to meet at each operator.
_FEW = 1 << 24


@contextmanager
def enough_threads(model: LoadedModel) -> Iterator[None]:
    """Lets torch use one thread meanwhile where each run of the model is short.

    The others would wait in a loop for the next operator, and take their core from compilers and measurements.
    """
    import torch

    before = torch.get_num_threads()
    parts = [model] if model.encoder is None else [model, model.encoder]
    if max(map(_most_products, parts)) <= _FEW:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _most_products(model: LoadedModel) -> float:
    """The multiplications of the longest run at most, if it reads each weight once for each position of an input."""
    sizes = {name: limits.hi for name, limits in model.axes.items()}
    if None in sizes.values():
        return math.inf
    known = {name: size for name, size in sizes.items() if size is not None}
    positions = [math.prod(size_of(dim, known) or 1 for dim in spec.shape) for spec in model.inputs]
    weights = sum(weight.numel() for weight in model.module.parameters())
    return weights * max(positions, default=1)
