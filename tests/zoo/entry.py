"""An entry of the zoo's catalogue: a name, a group, and a factory as edgecompile takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from edgecompile.loaders.factory_specs import ModelSpec

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


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """The module with weights drawn from a fixed seed; torch's own random state stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = build().eval()
        shake(module)
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
