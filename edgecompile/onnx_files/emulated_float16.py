"""A float16 graph as a GPU calculates it, made to run on a CPU.

onnxruntime has few float16 operators on CPUs: it calculates in float32 between Casts of its own, and
takes out those that follow each other. Nothing would be rounded, nothing could overflow. Casts that
the graph itself has it leaves alone, so each float16 value here is a float32 one that goes through
two of them: calculated exactly, then rounded, as a GPU does that adds up in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgecompile.onnx_files.graph import OnnxGraph, inner_graphs, rename_inputs, retarget
from edgecompile.onnx_files.scan import Arrays, Scan, scan_values


def round_halves(graph: OnnxGraph) -> OnnxGraph:
    """The graph with float32 values that are rounded to float16, under the same names."""
    import onnx

    single, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    dtypes = graph.dtypes()
    halves = {n: a.astype(np.float32) for n, a in graph.tensors.items() if a.dtype == np.float16}
    result = graph.without_nodes({**graph.tensors, **halves})
    # A network's own float16 inputs and outputs keep their dtype under their names.
    names: dict[str, str] = {}

    def cast(source: str, target: str, to: int) -> None:
        result.add("Cast", [source], target, name=f"{target}/Cast*", to=to)

    for name, dtype in graph.inputs.items():
        if dtype == "float16":
            names[name] = f"{name}/single*"
            cast(name, names[name], single)
    for old in graph.nodes:
        node = copy.deepcopy(old)
        rename_inputs(node, names)
        rounded = []
        # What is inside an inner graph stayed in float32.
        if not inner_graphs(node):
            rounded = [n for n in old.output if dtypes.get(n) == "float16"]
            retarget(node, half, single)
        for index, name in enumerate(node.output):
            if name in rounded:
                node.output[index] = f"{name}/exact*"
        result.nodes.append(node)
        for name in rounded:
            outer = name in graph.outputs
            middle = name if outer else f"{name}/half*"
            cast(f"{name}/exact*", middle, half)
            if outer:
                names[name] = f"{name}/single*"
            cast(middle, names.get(name, name), single)
    return result


def undefined_nodes(
    graph: OnnxGraph, scan: Scan, inputs: Sequence[Arrays], scratch: Path
) -> dict[str, str]:
    """The nodes of a narrowed graph that give infinities or NaNs of values that have none, with why.

    Args:
        graph: the graph with nodes in float16.
        scan: the scan of the float32 graph, on the same inputs.
        inputs: the inputs to run it on.
        scratch: a folder for files.

    Raises:
        VerificationError: the graph can't be run.
    """
    half_scan = scan_values(round_halves(graph), inputs, scratch)
    reasons = {}
    bad: set[str] = set()
    for node in graph.nodes:
        for name in node.output:
            plain = name.removesuffix("/fp16").removesuffix("/fp32")
            undefined = name in half_scan.undefined and plain not in scan.undefined
            if not undefined and (name not in half_scan.infinite or plain in scan.infinite):
                continue
            # What only passes a bad value on isn't to blame.
            if not bad.intersection(node.input):
                what = "NaN" if undefined else "an infinity"
                reasons[node.name] = f"in float16 it gives {what}"
            bad.add(name)
    return reasons
