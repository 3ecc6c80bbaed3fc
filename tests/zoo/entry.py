"""An entry of the zoo's catalogue: a name, a group, and a factory as edgecompile takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgecompile.loaders.factory_specs import ModelSpec
from tests.factories.outliers import add_outliers

__all__ = ["LONGEST", "Entry", "seeded", "shake"]

#: Longest sequence of tokens, frames or points.
LONGEST = 64


@dataclass(frozen=True)
class Entry:
    """One architecture.

    Attributes:
        name: its factory's, a Python identifier.
        group: what it is, for the table: text, decoder, vision …
        make: the factory: a module with random weights, always the same, and example inputs.
        sources: names of the modules that it is made of, whose code shapes the result.
    """

    name: str
    group: str
    make: Callable[[], ModelSpec]
    sources: Sequence[str] = ()


def seeded(
    build: Callable[[], nn.Module], *, outliers: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """The module with weights drawn from a fixed seed; torch's own random state stays as it was.

    Args:
        build: Makes it.
        outliers: Inputs of a model of tokens, whose residual stream gets large channels
            (:func:`add_outliers`); None: it gets none.
    """
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = build().eval()
        shake(module)
        if outliers is not None:
            add_outliers(module, outliers)
    return module


def shake(module: nn.Module) -> None:
    """Moves every parameter and running statistic: those that start at 0 and 1 hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand_like(buffer) * 0.2)
