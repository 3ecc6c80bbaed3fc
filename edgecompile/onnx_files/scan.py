"""Runs ONNX graphs on this machine's CPU as they are written, and looks at their values.

onnxruntime's own rewriting is switched off: it would fuse what is to be looked at, calculate the
halves of a graph in float32, and turn quantized products into integer ones of its own.

All values of a large model at once wouldn't fit in memory: they are asked for in groups, each a run
of its own of as much of the graph as the group needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.errors import VerificationError
from edgecompile.onnx_files.graph import OnnxGraph, attribute
from edgecompile.onnx_files.weights import write_graph, write_tensors

Arrays = Mapping[str, npt.NDArray[Any]]

#: How many bytes of values one run may give; a single value may be larger.
BUDGET = 1 << 30
_FIRST_GROUP = 16

_SUMS = ("ReduceSum", "ReduceMean", "ReduceL1")
_SQUARES = ("ReduceSumSquare", "ReduceL2", "LpNormalization", "LayerNormalization")


#: How onnxruntime says that it lacks a kernel for an operator, or for its types.
_NO_KERNEL = re.compile(
    r"NOT_IMPLEMENTED|Could not find an implementation|(?:data )?type is not supported|not implemented",
    re.I,
)
_NODE = re.compile(r"while running (?P<operator>\w+) node|for (?:the node )?(?P<other>\w+)\(\d+\)")


class NoHostKernelError(VerificationError):
    """The checker of this machine lacks a kernel: that says nothing of the model, nor of TensorRT."""


def _no_kernel(said: str, name: str) -> NoHostKernelError:
    found = _NODE.search(said)
    operator = (found["operator"] or found["other"]) if found else "an operator"
    return NoHostKernelError(
        f"onnxruntime, which checks the ONNX on this machine's CPU, has no kernel for {operator} as '{name}' has it "
        f"({said}). The model isn't at fault, and TensorRT's list has the operator",
        hint='`precision="fp32"` or another dtype may be one that onnxruntime has a kernel for',
    )


class OnnxRunner:
    """A model that is loaded once and run often.

    Raises:
        NoHostKernelError: onnxruntime has no kernel for a part of it.
        VerificationError: onnxruntime can't load it; says what it says.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        # What is kept for the next run would add up over the sizes that are tried.
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors share no class but this
            if _NO_KERNEL.search(str(error)):
                raise _no_kernel(_first_line(error), path.name) from error
            raise VerificationError(
                f"onnxruntime can't load '{path.name}': {_first_line(error)}",
                hint="this is a defect of edgecompile; please report it with the model",
            ) from error
        self._name = path.name
        self.inputs = tuple(value.name for value in self._session.get_inputs())
        self.outputs = tuple(value.name for value in self._session.get_outputs())

    def run(self, inputs: Arrays, outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Runs it; inputs that the model hasn't are left out.

        Args:
            inputs: the inputs by name.
            outputs: the wanted ones; None: all.

        Raises:
            NoHostKernelError: onnxruntime has no kernel for a part of it.
            VerificationError: it can't run with these inputs.
        """
        names = list(self.outputs if outputs is None else outputs)
        fed = {name: np.ascontiguousarray(inputs[name]) for name in self.inputs}
        try:
            results = self._session.run(names, fed)
        except Exception as error:
            if _NO_KERNEL.search(str(error)):
                raise _no_kernel(_first_line(error), self._name) from error
            sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in fed.items())
            raise VerificationError(
                f"the ONNX model fails for {sizes}: {_first_line(error)}"
            ) from error
        return dict(zip(names, results, strict=True))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass
class Scan:
    """Extremes of values over all inputs.

    Attributes:
        largest: largest finite magnitude of each value, without entries that stand for "masked".
        infinite, undefined: values that held an infinity, a NaN.
        sums: the largest sum (of magnitudes, of squares) that each node adds up inside.
    """

    largest: dict[str, float] = field(default_factory=dict)
    infinite: set[str] = field(default_factory=set)
    undefined: set[str] = field(default_factory=set)
    sums: dict[str, float] = field(default_factory=dict)


class ValueVisitor:
    """Runs a graph so that its inner values can be looked at.

    Args:
        graph: the graph.
        scratch: a folder for its weights.
        budget: bytes of values that one run may give.
    """

    def __init__(self, graph: OnnxGraph, scratch: Path, budget: int = BUDGET) -> None:
        self._graph = graph
        self._scratch = scratch
        self._budget = budget
        self._dtypes = graph.dtypes()
        scratch.mkdir(parents=True, exist_ok=True)
        weights = scratch / "scan.weights"
        offsets = write_tensors(graph.large, weights)
        self._external = {name: (weights.name, offset) for name, offset in offsets.items()}

    def visit(
        self,
        names: Iterable[str],
        inputs: Sequence[Arrays],
        look: Callable[[str, npt.NDArray[Any]], None],
    ) -> None:
        """Calls ``look`` with each named value's content for each of the inputs.

        Raises:
            VerificationError: the graph can't be run.
        """
        left = list(names)
        # The largest inputs first: they tell how many values fit.
        ordered = sorted(inputs, key=lambda a: -sum(array.size for array in a.values()))
        group = _FIRST_GROUP
        while left:
            chosen, left = left[:group], left[group:]
            runner = self._runner(chosen)
            most = 1
            for arrays in ordered:
                values = runner.run(arrays)
                most = max(most, sum(array.nbytes for array in values.values()))
                for name, array in values.items():
                    look(name, array)
            group = max(1, min(8 * group, group * self._budget // most))

    def _runner(self, names: Sequence[str]) -> OnnxRunner:
        import onnx

        part = self._graph.copy()
        del part.proto.graph.output[:]
        for name in names:
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self._dtypes[name]))
            value = onnx.helper.make_tensor_value_info(name, kind, None)
            part.proto.graph.output.append(value)
        part.drop_unused()
        path = self._scratch / "scan.onnx"
        write_graph(part, path, self._external)
        return OnnxRunner(path)


def scan_values(
    graph: OnnxGraph,
    inputs: Sequence[Arrays],
    scratch: Path,
    *,
    masked: Mapping[str, float] | None = None,
) -> Scan:
    """Extremes of every float value that a node gives, and of what nodes add up inside.

    Args:
        graph: the graph.
        inputs: the inputs to run it on.
        scratch: a folder for files.
        masked: the limit of each value below which an entry stands for "masked" and isn't counted.

    Raises:
        VerificationError: the graph can't be run.
    """
    scan = Scan()
    masked = masked or {}
    dtypes = graph.dtypes()
    users = graph.consumers()
    names = [
        name
        for node in graph.nodes
        for name in node.output
        if name and dtypes.get(name) in ("float32", "float16", "float64")
    ]

    def look(name: str, array: npt.NDArray[Any]) -> None:
        if np.isnan(array).any():
            scan.undefined.add(name)
        if np.isinf(array).any():
            scan.infinite.add(name)
        counted = np.isfinite(array)
        if name in masked:
            counted &= array > masked[name]
        top = float(np.abs(array, dtype=np.float64).max(initial=0.0, where=counted))
        scan.largest[name] = max(top, scan.largest.get(name, 0.0))
        for node in users.get(name, ()):
            inner = _inner_sum(node, name, array, graph)
            if inner is not None:
                scan.sums[node.name] = max(inner, scan.sums.get(node.name, 0.0))

    ValueVisitor(graph, scratch).visit(names, inputs, look)
    for arrays in inputs:
        for name, array in arrays.items():
            if array.dtype.kind == "f" and name in graph.inputs:
                look(name, array)
    return scan


def _inner_sum(node: Any, name: str, array: npt.NDArray[Any], graph: OnnxGraph) -> float | None:
    """The largest sum over its first input inside a node, of magnitudes or squares; None: it has none."""
    if node.input[0] != name or not array.size:
        return None
    axes = _axes(node, array, graph)
    if axes is None:
        return None
    finite = np.where(np.isfinite(array), array, 0).astype(np.float64)
    if node.op_type in _SUMS:
        return float(np.abs(finite).sum(axis=axes).max())
    if node.op_type == "LayerNormalization":
        finite = finite - finite.mean(axis=axes, keepdims=True)
    return float(np.square(finite).sum(axis=axes).max())


def _axes(node: Any, array: npt.NDArray[Any], graph: OnnxGraph) -> tuple[int, ...] | None:
    """The dimensions that a node adds up along; None: it doesn't, or they aren't known."""
    if node.op_type == "LayerNormalization":
        first = attribute(node, "axis", -1) % array.ndim
        return tuple(range(first, array.ndim))
    if node.op_type == "LpNormalization":
        return (int(attribute(node, "axis", -1)),)
    if node.op_type not in (*_SUMS, *_SQUARES):
        return None
    axes = attribute(node, "axes")
    if axes is None and len(node.input) > 1 and node.input[1]:
        tensor = graph.tensors.get(node.input[1])
        if tensor is None:
            return None
        axes = tensor.reshape(-1).tolist()
    if not axes:
        return None if attribute(node, "noop_with_empty_axes", 0) else tuple(range(array.ndim))
    return tuple(int(axis) for axis in axes)
