"""Programs of small models that are run with narrower weights."""

from __future__ import annotations

from pathlib import Path

import torch

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.store import ExportStore
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples
from edgecompile.quantization.program import QuantizedProgram


def narrowed_program(
    model: LoadedModel, folder: Path, samples: Samples, longest: int, mode: str = "exact"
) -> QuantizedProgram:
    """For lengths up to ``longest``, the least size of every other axis, and what eager gives."""
    assert model.length_axis is not None
    others = {name: AxisRange(a.lo, a.lo, a.lo) for name, a in model.axes.items()}
    axes = {**others, model.length_axis: AxisRange(1, longest, 9)}
    bucket = Bucket("pad" if mode == "pad" else "exact", tuple(axes.items()))
    expected = [
        {
            name: tensor.detach().numpy()
            for name, tensor in model.run(
                {name: torch.from_numpy(array) for name, array in inputs.items()}
            ).items()
        }
        for inputs in samples.inputs
    ]
    exported = ExportStore(model, folder).get(bucket)
    return QuantizedProgram(model, exported, samples.inputs, expected)
