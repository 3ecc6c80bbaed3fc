"""What ONNX Runtime computes for a file, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from edgecompile.onnx_import.graph import Value

_NAMES = {"tensor(float16)": torch.float16, "tensor(double)": torch.float64}


class Reference:
    """ONNX Runtime with one file.

    Args:
        path: the file.
        fixed: inputs that are the same in every run.

    Attributes:
        version: its version.
    """

    def __init__(self, path: Path, fixed: Mapping[str, torch.Tensor]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self.version: str = onnxruntime.__version__
        self._session: Any = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._fixed = fixed
        self._dtypes = {item.name: item.type for item in self._session.get_inputs()}

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The outputs in the file's order."""
        feeds = {}
        for name, tensor in (*self._fixed.items(), *inputs.items()):
            dtype = _NAMES.get(self._dtypes[name], tensor.dtype)
            feeds[name] = tensor.to(dtype).numpy()
        return [torch.from_numpy(result) for result in self._session.run(None, feeds)]


def open_reference(
    path: Path, inputs: tuple[Value, ...], fixed: Mapping[str, torch.Tensor]
) -> Reference | None:
    """ONNX Runtime with a file; None: it isn't installed, or doesn't run this file on a CPU."""
    try:
        made = Reference(path, fixed)
    except Exception:  # its errors share no class; a file that it can't run has no reference
        return None
    return made if {value.name for value in inputs} | fixed.keys() == set(made._dtypes) else None


def difference(given: torch.Tensor, wanted: torch.Tensor, hidden: bool = False) -> float:
    """The largest difference of two results, as a part of the largest number; infinite where NaNs or
    infinities differ.

    Args:
        given, wanted: the results.
        hidden: whether numbers are as good as NaNs that are wanted.
    """
    if given.shape != wanted.shape:
        return float("inf")
    a, b = given.double(), wanted.double()
    same = (a == b) | (b.isnan() & (a.isnan() | hidden))
    if bool(same.all()):
        return 0.0
    top = b[b.isfinite()].abs().max() if bool(b.isfinite().any()) else torch.tensor(1.0)
    apart = torch.where(same, 0.0, (a - b).abs())
    # Results near 0, as of a sigmoid, are as good as absolute ones.
    found = float((apart / top.clamp_min(1e-2)).max())
    return found if found == found else float("inf")
