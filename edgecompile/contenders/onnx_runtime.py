"""ONNX Runtime on the CPU, with all of its graph optimisations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.contenders.base import Launch, Parts, Workshop
from edgecompile.contenders.onnx_file import make_onnx
from edgecompile.contenders.sizes import folder_bytes, package_bytes

__all__ = ["OnnxRuntime"]


@dataclass(frozen=True)
class OnnxRuntime:
    """onnxruntime on a file of ``opset`` (None: the exporter's default)."""

    name: str
    opset: int | None = None
    needs: tuple[str, ...] = ("torch", "onnx", "onnxscript", "onnxruntime")
    needs_model: bool = True

    def prepare(self, workshop: Workshop) -> Launch:
        """Exports the model to ONNX."""
        import onnx

        path = make_onnx(workshop, self.opset)
        settings = {"path": str(path), "threads": workshop.threads}
        notes = () if self.opset is None else (f"ONNX opset {self.opset}",)
        versions = {"onnx": str(onnx.__version__)}
        return Launch("onnx_runtime", settings, workshop.python, versions=versions, notes=notes)

    def measure_size(self, workshop: Workshop, launch: Launch, facts: Mapping[str, Any]) -> Parts:
        """onnxruntime with its requirements, and the model with its weights."""
        folder = Path(launch.settings["path"]).parent
        return {**package_bytes("onnxruntime"), "model": folder_bytes(folder)}
