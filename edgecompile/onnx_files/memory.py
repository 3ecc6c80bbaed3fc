"""Estimates the memory of a TensorRT engine from its ONNX, before any device.

TensorRT decides itself what it fuses and keeps; nobody outside can know. The estimates are upper
bounds for what a run needs (nothing fused), and rules of thumb for a build, with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgecompile.errors import CompileError
from edgecompile.runtime.format.recipe.schema import Predicted
from edgecompile.runtime.format.sums import size_of
from edgecompile.targets.gpu import CONTEXT_BYTES, FREE_SHARE, profile_bytes

if TYPE_CHECKING:  # onnx is an extra: bundles for CPUs are packed without it
    from onnx import ModelProto, ValueInfoProto


#: TensorRT aligns what it places in its scratch memory.
_ALIGNMENT = 256

#: Builds by TensorRT-RTX 1.7 on a build host took 1.6 GB of main memory for BERT-base (440 MB of
#: weights in fp32), 0.57 to 0.65 GB for MiniLM in fp32 (90 MB), 0.45 to 0.49 in fp16 (45 MB): three
#: times the weights, and 0.3 GB beside.
_BUILD_WEIGHTS = 3
_BUILD_FIXED = 300 << 20
#: What kernels may try out beside; more makes few of them faster on transformers.
_WORKSPACE = 512 << 20
_LEAST_WORKSPACE = 64 << 20
#: TensorRT 8.6.0's builder on x86-64 took 6.3 GB of main memory with 24 MB of weights, and 6.7 with 178
#: (docs/benchmarks/gpu-tensorrt.md). Of later releases nothing is known.
HOST_BUILD_8_6 = 6_200_000_000


@dataclass(frozen=True)
class MemoryEstimate:
    """Predictions for a module.

    Attributes:
        predicted: the recipe's prediction.
        workspace_bytes: the memory that a build may use for trying kernels out.
        available_bytes: the available part of the module's memory; the system and the CPU's
            processes take from it.
    """

    predicted: Predicted
    workspace_bytes: int
    available_bytes: int

    @property
    def run_bytes(self) -> int:
        """The memory of a process that runs the engine: all of its profiles, the largest scratch, CUDA."""
        predicted = self.predicted
        return predicted.engine_bytes + max(predicted.scratch_bytes) + CONTEXT_BYTES

    @property
    def fits(self) -> bool:
        """Whether the build and a run are likely to find enough memory, with three quarters of it free."""
        most = max(self.predicted.build_bytes, self.run_bytes)
        return most <= FREE_SHARE * self.available_bytes


def estimate_memory(
    graphs: Mapping[Path, Sequence[int]],
    profiles: Sequence[Mapping[str, int]],
    weight_bytes: int,
    precision: str,
    available_bytes: int,
    host_fixed: int | None = None,
) -> MemoryEstimate:
    """Predicts the memory of a build and of runs.

    Args:
        graphs: ONNX files, each with the indices of its profiles; their weights needn't be there.
        profiles: the largest size of every axis, for each profile.
        weight_bytes: the size of the weights, as stored.
        precision: the data type that the engine computes in.
        available_bytes: the module's memory.
        host_fixed: the fixed use of main memory besides it, for a model without weights; None: not
            known, or the same memory.

    Raises:
        CompileError: the shapes of the graph can't be inferred.
    """
    import onnx

    peaks: dict[int, int] = {}
    for path, indices in graphs.items():
        model = onnx.load(str(path), load_external_data=False)
        peaks.update({index: peak_live_bytes(model, profiles[index]) for index in indices})
    scratch = tuple(peaks[index] for index in range(len(profiles)))
    more = profile_bytes(weight_bytes, precision)
    # Each graph's engine has all of the weights.
    first = weight_bytes + profile_bytes(0, precision)
    engine = first * len(graphs) + more * (len(profiles) - len(graphs))
    room = available_bytes // 8
    workspace = max(_LEAST_WORKSPACE, min(_WORKSPACE, room))
    build = _BUILD_WEIGHTS * weight_bytes + _BUILD_FIXED + CONTEXT_BYTES + workspace + max(scratch)
    predicted = Predicted(
        build_bytes=build,
        engine_bytes=engine,
        scratch_bytes=scratch,
        build_seconds=None,
        how="scratch: the tensors of the ONNX that are alive at once, nothing fused; build: 3 x "
        "weights and 0.3 GB, as TensorRT-RTX took for BERT-base and MiniLM, 0.5 GB for CUDA, workspace, "
        "scratch; engine: weights and 5 MB for each profile, in half precision 0.35 of the weights for each but the first"
        + ("" if host_fixed is None else "; main memory: as TensorRT 8.6.0 took on x86-64"),
        host_bytes=None if host_fixed is None else host_fixed + _BUILD_WEIGHTS * weight_bytes,
    )
    return MemoryEstimate(predicted, workspace, available_bytes)


def peak_live_bytes(model: ModelProto, sizes: Mapping[str, int]) -> int:
    """Bytes of the intermediate tensors that are alive at once when nodes run in their order.

    Args:
        model: weights may be missing.
        sizes: the size of every named dimension of the inputs.

    Raises:
        CompileError: a shape isn't known even so.
    """
    from onnx import ModelProto, shape_inference

    bound = ModelProto()
    bound.CopyFrom(model)
    missing = set()
    for item in bound.graph.input:
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param:
                try:
                    dim.dim_value = size_of(dim.dim_param, sizes)
                except KeyError:
                    missing.add(dim.dim_param)
    if missing:
        raise CompileError(f"the graph's inputs have sizes that aren't known: {', '.join(missing)}")
    # What was noted of the shapes is about the names of sizes, not these sizes.
    del bound.graph.value_info[:]
    for item in bound.graph.output:
        item.type.tensor_type.ClearField("shape")
    try:
        inferred = shape_inference.infer_shapes(bound, strict_mode=False, data_prop=True)
    except Exception as error:
        raise CompileError(f"the shapes of the graph can't be inferred: {error}") from error
    graph = inferred.graph
    nbytes = {
        item.name: size
        for item in (*graph.value_info, *graph.output)
        if (size := _bytes(item)) is not None
    }
    fixed = {item.name for item in graph.initializer}
    for node in graph.node:  # what is made of constants alone is computed when the engine is built
        if node.input and fixed.issuperset(node.input):
            fixed.update(node.output)
    fixed.update(item.name for item in graph.input)
    last: dict[str, int] = {item.name: len(graph.node) for item in graph.output}
    for index, node in enumerate(graph.node):
        for name in node.input:
            last[name] = max(last.get(name, 0), index)
    live: dict[str, int] = {}
    peak = 0
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name and name not in fixed:
                # What can't be inferred is as large as what it comes from.
                guess = max((nbytes.get(x, 0) for x in node.input), default=0)
                nbytes.setdefault(name, guess)
                live[name] = -(-nbytes[name] // _ALIGNMENT) * _ALIGNMENT
        peak = max(peak, sum(live.values()))
        for name in [name for name in live if last.get(name, index) <= index]:
            del live[name]
    return peak


def _bytes(item: ValueInfoProto) -> int | None:
    from onnx import TensorProto, helper

    tensor = item.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    count = 1
    for dim in tensor.shape.dim:
        if not dim.HasField("dim_value"):
            return None
        count *= dim.dim_value
    if tensor.elem_type == TensorProto.UNDEFINED:
        return None
    width = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).itemsize
    return int(count * width)
