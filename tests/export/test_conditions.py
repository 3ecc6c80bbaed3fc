"""Conditions that are dropped from a program are forgotten by what is made of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgecompile.export.conditions import drop_conditions, input_nodes
from edgecompile.export.ladder import LADDER, export_program
from edgecompile.models.modules import NamedModule
from edgecompile.models.specs import InputSpec


class Filled(nn.Module):
    """Writes into a tensor of the next multiple of 10; at such lengths that is all of it."""

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        filled = x.new_zeros(batch, (n + 9) // 10 * 10, 2)
        filled[:, :n] = x
        return filled.view(batch, 10, -1, 2).sum(2)


def test_a_dropped_condition_is_no_longer_taken_for_given() -> None:
    inputs, ranges = (
        (InputSpec("x", "float32", ("batch", "length", 2)),),
        {"batch": (1, 3), "length": (11, 200)},
    )
    deferred = next(s for s in LADDER if s.deferred and not (s.auto or s.strict or s.recurrences))
    module = NamedModule(Filled(), ["x"])
    program = export_program(module, {"x": torch.ones(3, 30, 2)}, inputs, ranges, deferred)
    environment = input_nodes(program)[0].meta["val"].shape[1].node.shape_env
    assert environment.axioms and any(environment.deferred_runtime_asserts.values())
    assert drop_conditions(program, inputs, ranges, {"batch": 3, "length": 30})
    assert not environment.axioms and not any(environment.deferred_runtime_asserts.values())
    assert environment.num_deferred_runtime_asserts == 0
