"""Lowers a model for ExecuTorch's XNNPACK backend, in the interpreter that has ``executorch``.

``python -m benchmarks.baselines.executorch_lower TARGET.pte`` reads ``spec`` and ``ranges`` as
one JSON object from standard input. The model is exported here, too: what
torch.export saves and loads again no longer knows that two inputs have one batch, and ExecuTorch
then refuses to run it.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks.baselines.workshop import Workshop


def lower(request: dict[str, Any], target: str) -> None:
    """Writes the program file.

    Raises:
        EdgecompileError: the model can't be loaded or exported.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    ranges = {name: (low, high) for name, (low, high) in request["ranges"].items()}
    workshop = Workshop(
        request["spec"],
        ranges,
        threads=1,
        cache=Path(target).parent,
        load=request["load"],
    )
    program = workshop.exported.program
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    with open(target, "wb") as stream:
        lowered.to_executorch().write_to_file(stream)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    lower(json.load(sys.stdin), sys.argv[1])
