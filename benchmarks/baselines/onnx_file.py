"""The model as an ONNX file of dynamic length, for the runtimes that start from one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.baselines.workshop import Workshop
from edgecompile.errors import BenchError
from edgecompile.onnx_files.export import translate

__all__ = ["make_onnx"]

_FILE = "model.onnx"


def make_onnx(workshop: Workshop, opset: int | None = None) -> Path:
    """Exports the workshop's model with torch's exporter, or finds it in the cache.

    Args:
        workshop: has the exported model.
        opset: version of the operators; None: the exporter's default. From 23 on attention is an
            operator of its own.

    Returns:
        The file, its weights beside it in ``model.onnx.data``.

    Raises:
        BenchError: the exporter fails.
    """
    import onnxscript
    import torch

    request = {"torch": torch.__version__, "onnxscript": onnxscript.__version__, "opset": opset}
    folder = workshop.artefact("onnx", request, lambda path: _export(workshop, opset, path / _FILE))
    return (folder / _FILE).resolve()


def _export(workshop: Workshop, opset: int | None, target: Path) -> None:
    exported = workshop.exported
    try:
        translate(exported, target, opset)
    except Exception as error:  # one class of its own, or whatever a translation raises
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BenchError(
            f"{exported.name} can't be exported to ONNX: {lines[0]}",
            hint="leave the baselines that start from ONNX out",
        ) from error
