"""An ONNX file, run by onnxruntime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime

from edgecompile.bench.worker import serve


class _Session:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = settings["threads"]
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            settings["path"], options, providers=["CPUExecutionProvider"]
        )
        self._names = [item.name for item in self._session.get_outputs()]
        # An input that no output depends on may be left out of the file.
        self._taken = {item.name for item in self._session.get_inputs()}
        self.facts = {"version": onnxruntime.__version__, "threads": options.intra_op_num_threads}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        taken = {name: value for name, value in inputs.items() if name in self._taken}
        return dict(zip(self._names, self._session.run(None, taken), strict=True))


if __name__ == "__main__":
    serve(_Session)
