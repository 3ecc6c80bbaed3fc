"""The costs of an engine of TensorRT on its device: seconds to build, disk and memory."""

from __future__ import annotations

from edgecompile.buckets.costs.flops import FlopModel
from edgecompile.buckets.limits import BucketCost
from edgecompile.planning.costs.roofline import WEIGHT_BYTES
from edgecompile.targets.gpu import CONTEXT_BYTES, profile_bytes

#: TensorRT 8.6.0 on a server with an H100 (docs/benchmarks/gpu-tensorrt.md): seconds that its builder takes to
#: start, for each call of the model, and for each profile beyond the first as a share of all before.
_START_S, _CALL_S, _PROFILE_SHARE = 11.0, 0.5, 0.25

ENGINE_NOTE = (
    "Times to build count the engine on a server with an H100; the cores of a module take longer."
)


def engine_cost(work: FlopModel, weight_bytes: int, precision: str) -> BucketCost:
    """The engine's size, memory and time to build; every bucket is a profile of it.

    Sizes are those of the device's disk: the weights as the ONNX and as the engine hold them, and in
    float32 for the device's own cores. Memory is the engine's and CUDA's: scratch isn't known before the ONNX is.

    Args:
        work: the amount of work that the model does.
        weight_bytes: the size of all weights in float32.
        precision: fp32, fp16 or int8.
    """
    first = _START_S + _CALL_S * work.calls
    stored = int(weight_bytes * WEIGHT_BYTES[precision] // 4)
    more = profile_bytes(stored, precision)
    # The first profile has nothing to repeat.
    first_bytes = stored - more + profile_bytes(0, precision)
    return BucketCost(
        base_size=weight_bytes + stored + first_bytes,
        bucket_size=more,
        base_build_s=(1 - _PROFILE_SHARE) * first,
        bucket_build_s=_PROFILE_SHARE * first,
        base_memory=CONTEXT_BYTES + first_bytes,
        bucket_memory=more,
    )
