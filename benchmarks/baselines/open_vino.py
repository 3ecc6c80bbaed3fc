"""OpenVINO on the CPU, for latency."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.baselines.onnx_file import make_onnx
from benchmarks.baselines.sizes import folder_bytes, package_bytes
from benchmarks.baselines.start import REPOSITORY, worker_command
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.process import Baseline
from edgecompile.errors import BenchError

__all__ = ["OpenVino"]

_FILE = "model.xml"
#: INFERENCE_PRECISION_HINT: what is computed in, int8 weights aside.
_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


@dataclass(frozen=True)
class OpenVino:
    """OpenVINO computing in ``precision``.

    ``int8``: weights of linear layers compressed to int8 per channel (nncf), activations quantized
    while it runs in the groups that the plug-in chooses.
    """

    name: str = "openvino"
    precision: str = "fp32"
    needs: tuple[str, ...] = ("torch", "onnx", "onnxscript", "openvino")

    def prepare(self, workshop: Workshop) -> Baseline:
        """Exports the model to ONNX and converts it, as its users do, to OpenVINO's own form.

        Raises:
            BenchError: the exporter fails, or the plug-in would compute in another precision.
        """
        import openvino

        if self.precision == "bf16":
            self._check_bf16()
        source = make_onnx(workshop)
        compressed = self.precision == "int8"
        versions = {"nncf": metadata.version("nncf")} if compressed else {}

        def convert(folder: Path) -> None:
            model = openvino.convert_model(str(source))
            if compressed:
                model = _compress(model)
            openvino.save_model(model, str(folder / _FILE), compress_to_fp16=False)

        request = {
            "openvino": openvino.__version__,
            "source": source.parent.name,
            **versions,
        }
        kind = "openvino-int8" if compressed else "openvino"
        folder = workshop.artefact(kind, request, convert)
        hint = _HINTS[self.precision]
        settings = {
            "path": str((folder / _FILE).resolve()),
            "threads": workshop.threads,
            "precision": hint,
        }
        notes: tuple[str, ...] = (f"INFERENCE_PRECISION_HINT {hint}",)
        if compressed:
            notes += ("weights INT8_SYM by nncf, activations quantized while it runs",)
        return Baseline(
            self.name,
            worker_command("open_vino"),
            settings,
            precision=self.precision,
            path=(str(REPOSITORY),),
            measure_size=lambda facts: {
                **package_bytes("openvino"),
                "model": folder_bytes(folder),
            },
            versions=versions,
            notes=notes,
        )

    def _check_bf16(self) -> None:
        import openvino

        offered = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if "BF16" not in offered:
            raise BenchError(
                f"{self.name}: on this CPU OpenVINO has no bfloat16 ({', '.join(offered)} only): "
                "asked for it, it computes in float32 without a word",
                hint=f"leave {self.name} out, or use a CPU with AVX512-BF16 or AMX",
            )


def _compress(model: Any) -> Any:
    with _silence():
        import nncf

        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """nncf logs and draws progress bars on stdout."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
