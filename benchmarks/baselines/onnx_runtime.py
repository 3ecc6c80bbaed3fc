"""ONNX Runtime on the CPU, with all of its graph optimisations."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from benchmarks.baselines.onnx_file import make_onnx
from benchmarks.baselines.sizes import folder_bytes, package_bytes
from benchmarks.baselines.start import REPOSITORY, worker_command
from benchmarks.baselines.workshop import Workshop
from edgecompile.bench.process import Baseline
from edgecompile.errors import BenchError

__all__ = ["OnnxRuntime"]

_FILE = "model.onnx"
# What linear layers become. Left to itself the quantizer also takes attention (opset 23), for which
# it writes an operator that onnxruntime 1.31 then refuses.
_QUANTIZED = ("MatMul", "Gemm")


@dataclass(frozen=True)
class OnnxRuntime:
    """onnxruntime on a file of ``opset`` (None: the exporter's default).

    Attributes:
        precision: ``int8``: weights quantized per channel, activations while it runs, by
            onnxruntime's own tool.
        reduce_range: weights of 7 bits: without VNNI the sums of 8-bit products overflow.
    """

    name: str
    opset: int | None = None
    precision: str = "fp32"
    reduce_range: bool = False
    needs: tuple[str, ...] = ("torch", "onnx", "onnxscript", "onnxruntime")

    def prepare(self, workshop: Workshop) -> Baseline:
        """Exports the model to ONNX, and quantizes it.

        Raises:
            BenchError: the exporter or the quantizer fails.
        """
        import onnx

        path = make_onnx(workshop, self.opset)
        notes: tuple[str, ...] = () if self.opset is None else (f"ONNX opset {self.opset}",)
        if self.precision == "int8":
            path = self._quantize(path, workshop)
            notes += (f"quantize_dynamic, per channel, reduce_range {self.reduce_range}",)
        settings = {"path": str(path), "threads": workshop.threads}
        return Baseline(
            self.name,
            worker_command("onnx_runtime"),
            settings,
            precision=self.precision,
            path=(str(REPOSITORY),),
            measure_size=lambda facts: {
                **package_bytes("onnxruntime"),
                "model": folder_bytes(path.parent),
            },
            versions={"onnx": str(onnx.__version__)},
            notes=notes,
        )

    def _quantize(self, source: Path, workshop: Workshop) -> Path:
        import onnxruntime

        def make(folder: Path) -> None:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            # It warns, through the root logger, of a preparation that this export doesn't need.
            level = logging.root.level
            logging.root.setLevel(logging.ERROR)
            try:
                quantize_dynamic(
                    str(source),
                    str(folder / _FILE),
                    op_types_to_quantize=list(_QUANTIZED),
                    per_channel=True,
                    reduce_range=self.reduce_range,
                    weight_type=QuantType.QInt8,
                )
            except Exception as error:  # whatever its graph surgery raises
                raise BenchError(
                    f"onnxruntime can't quantize {workshop.model.name}: {error}",
                    hint=f"leave {self.name} out of the baselines",
                ) from error
            finally:
                logging.root.setLevel(level)

        request = {
            "onnxruntime": onnxruntime.__version__,
            "source": source.parent.name,
            "reduce_range": self.reduce_range,
        }
        return (workshop.artefact("onnx-int8", request, make) / _FILE).resolve()
