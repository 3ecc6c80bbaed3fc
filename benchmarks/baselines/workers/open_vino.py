"""An ONNX file, run by OpenVINO's CPU plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino

from edgecompile.bench.worker import serve


class _Session:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        core = openvino.Core()
        # Without the hint the plug-in computes in bf16 where the CPU can.
        compiled = core.compile_model(
            settings["path"],
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": settings["precision"],
                "INFERENCE_NUM_THREADS": settings["threads"],
                "NUM_STREAMS": 1,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        self._request = compiled.create_infer_request()
        self._taken = {name for port in compiled.inputs for name in port.get_names()}
        self._names = [port.any_name for port in compiled.outputs]
        self.facts = {
            "version": openvino.__version__,
            "threads": int(compiled.get_property("INFERENCE_NUM_THREADS")),
            "precision": str(compiled.get_property("INFERENCE_PRECISION_HINT").to_string()),
        }

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        taken = {name: value for name, value in inputs.items() if name in self._taken}
        results = self._request.infer(taken, share_inputs=True, share_outputs=True)
        return {name: results[i] for i, name in enumerate(self._names)}


if __name__ == "__main__":
    serve(_Session)
