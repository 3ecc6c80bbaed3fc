"""OpenVINO on the CPU, for latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.contenders.base import Launch, Parts, Workshop
from edgecompile.contenders.onnx_file import make_onnx
from edgecompile.contenders.sizes import folder_bytes, package_bytes

__all__ = ["OpenVino"]


@dataclass(frozen=True)
class OpenVino:
    """OpenVINO computing in ``precision``."""

    name: str = "openvino"
    precision: str = "f32"
    needs: tuple[str, ...] = ("torch", "onnx", "onnxscript", "openvino")
    needs_model: bool = True

    def prepare(self, workshop: Workshop) -> Launch:
        """Exports the model to ONNX and converts it, as its users do, to OpenVINO's own form."""
        import openvino

        source = make_onnx(workshop)

        def convert(folder: Path) -> None:
            model = openvino.convert_model(str(source))
            openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)

        request = {"openvino": openvino.__version__, "source": source.parent.name}
        folder = workshop.artefact("openvino", request, convert)
        settings = {
            "path": str((folder / "model.xml").resolve()),
            "threads": workshop.threads,
            "precision": self.precision,
        }
        note = f"INFERENCE_PRECISION_HINT {self.precision}"
        return Launch("open_vino", settings, workshop.python, notes=(note,))

    def measure_size(self, workshop: Workshop, launch: Launch, facts: Mapping[str, Any]) -> Parts:
        """openvino with its requirements, and the model with its weights."""
        folder = Path(launch.settings["path"]).parent
        return {**package_bytes("openvino"), "model": folder_bytes(folder)}
