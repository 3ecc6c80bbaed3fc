"""Runs ONNX files on this machine's CPU, as they are written.

onnxruntime's own rewriting is switched off: it would fuse what is to be looked at, calculate the
halves of a graph in float32, and turn quantized products into integer ones of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.errors import VerificationError

__all__ = ["Arrays", "OnnxRunner"]

Arrays = Mapping[str, npt.NDArray[Any]]


class OnnxRunner:
    """A model that is loaded once and run often.

    Raises:
        VerificationError: onnxruntime can't load it; says what it says.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        # What is kept for the next run would add up over the sizes that are tried.
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors share no class but this
            raise VerificationError(
                f"onnxruntime can't load '{path.name}': {_first_line(error)}",
                hint="this is a defect of edgecompile; please report it with the model",
            ) from error
        self.inputs = tuple(value.name for value in self._session.get_inputs())
        self.outputs = tuple(value.name for value in self._session.get_outputs())

    def run(self, inputs: Arrays, outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Runs it; inputs that the model hasn't are left out.

        Args:
            inputs: by name.
            outputs: the wanted ones; None: all.

        Raises:
            VerificationError: it can't run with these inputs.
        """
        names = list(self.outputs if outputs is None else outputs)
        fed = {name: np.ascontiguousarray(inputs[name]) for name in self.inputs}
        try:
            found = self._session.run(names, fed)
        except Exception as error:
            sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in fed.items())
            raise VerificationError(
                f"the ONNX model fails for {sizes}: {_first_line(error)}"
            ) from error
        return dict(zip(names, found, strict=True))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
