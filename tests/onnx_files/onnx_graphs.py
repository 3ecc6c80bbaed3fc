"""Small ONNX graphs for tests, written in ONNX's own text form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.onnx_files.graph import OnnxGraph

Array = npt.NDArray[np.generic]


def graph_of(text: str, opset: int = 20, **tensors: Array) -> OnnxGraph:
    """A graph; nodes are named after their operator and first output."""
    import onnx

    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n' + text)
    for node in proto.graph.node:
        node.name = f"{node.op_type}:{node.output[0]}"
    return OnnxGraph(proto, dict(tensors))


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def run(graph: OnnxGraph, tmp_path: Path, **inputs: Array) -> dict[str, Any]:
    """Writes a graph as it would ship, lets ONNX's checker look at it, and runs it."""
    import onnx

    from edgecompile.onnx_files.scan import OnnxRunner
    from edgecompile.onnx_files.weights import write_onnx

    write_onnx(graph, tmp_path / "m.onnx", tmp_path / "m.weights")
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    return OnnxRunner(tmp_path / "m.onnx").run(inputs)
