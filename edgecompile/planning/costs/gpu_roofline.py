"""Costs of a GPU that the build host doesn't have: a model's work over its profile's figures.

Nothing here was measured on the module at hand. What decides buckets is how the cost grows with the
length; the milliseconds are an estimate. A calibration from the device is always better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgecompile.buckets.costs.flops import FlopModel
from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.planning.costs.roofline import (
    WEIGHT_BYTES,
    Efficiency,
    profile_record,
    roofline,
)
from edgecompile.targets.profile import TargetProfile

# Bytes of an activation: products of int8 and fp8 leave float16 behind.
_ACTIVATIONS = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 2, "fp8": 2}

#: From MLPerf Inference v3.1, edge, BERT-Large in int8, single stream, on AGX Orin and Orin NX. The
#: longest inputs (384 tokens: 246 GFLOP) took 6.55 and 16.89 ms, 0.44 and 0.48 of the peaks of 85.2
#: and 30.1 TOP/s; the shortest, which wait for the 302 MB of weights, 3.27 and 5.71 ms, 0.45 and
#: 0.52 of 204.8 and 102.4 GB/s. The two microseconds for each call are what a kernel in a CUDA
#: graph commonly takes to begin: an assumption, not part of the record.
MLPERF_RECORD = Efficiency(
    arithmetic=0.46,
    bandwidth=0.48,
    call_us=2.0,
    source="MLPerf Inference v3.1 edge: BERT-Large, int8, single stream, AGX Orin and Orin NX",
)


#: TensorRT 8.6 on an H100, by precision: fitted to whole calls of MiniLM padded to 128 in a CUDA graph, at batch 1 and 8 on
#: 8, 16 and 132 multiprocessors (2026-11-24-tensorrt-8.6.json; fp32: an H200, docs/benchmarks/gpu-tensorrt.md). The
#: curve is 0.82 to 1.11 of what was measured; MLPERF_RECORD's is 0.38 to 0.65 in fp16. Weights are in that GPU's
#: cache, so nothing is known of the bandwidth; int8 wasn't fitted.
_HALF_8_6 = Efficiency(0.20, 0.48, 4.0, "fitted to docs/benchmarks/2026-11-24-tensorrt-8.6.json")
TENSORRT_8_6 = {
    "fp32": Efficiency(0.58, 0.48, 8.5, "fitted to docs/benchmarks/gpu-tensorrt.md"),
    "fp16": _HALF_8_6,
    "int8": _HALF_8_6,
}

#: Microseconds more than in a CUDA graph for each call of a program of dynamic length, which none can hold: launching it,
#: and what TensorRT does at every new length. 8.6.0 on a server with an H100 took 6 to 15
#: (docs/benchmarks/gpu-tensorrt.md); an assumption for a Jetson's cores, which are slower.
LAUNCH_US = 10.0


def gpu_curve(
    work: FlopModel,
    profile: TargetProfile,
    lengths: Sequence[int],
    *,
    precision: str = "fp16",
    products: str | None = None,
    graphs: bool = True,
    efficiency: Efficiency = MLPERF_RECORD,
) -> CostGrid:
    """The cost curve that the figures of a profile's GPU make likely.

    A padded program of one shape runs as a CUDA graph; others are launched call by call, for
    :data:`LAUNCH_US` more each.

    ms(L) = calls · call_us + 1e3 · max(flops(L) / (e₁ · peak), bytes(L) / (e₂ · bandwidth)), see
    :func:`edgecompile.planning.costs.roofline.roofline`.

    Args:
        work: the amount of work that the model does.
        profile: the target; it has a GPU.
        lengths: the lengths of the points.
        precision: fp32, bf16, fp16, int8 or fp8: of weights.
        products: the data type of matmuls; None: the same.
        graphs: whether padded programs run as graphs: not if another axis varies within a bucket.
        efficiency: the share of the figures that is reached.

    Returns:
        A curve of kind ``modelled``; its provenance holds every number used.

    Raises:
        CostError: there are no lengths.
    """
    gpu = profile.gpu
    assert gpu is not None
    peaks = dict(gpu.peak_gflops)
    products = products or precision
    launched_us = efficiency.call_us + LAUNCH_US
    peak = peaks.get(products, peaks["fp16"])  # bf16 is as fast wherever it isn't stated
    record = profile_record(work, profile, precision, efficiency)
    record |= {
        f"profile.gpu.peak_gflops.{products}": repr(peak),
        "profile.gpu.bandwidth_gbs": repr(gpu.bandwidth_gbs),
        "profile.sources.gpu": dict(profile.sources).get("gpu", "not stated"),
        "efficiency.launch_us": repr(launched_us),
    }
    half = _ACTIVATIONS[precision] / 4
    moved = replace(
        work,
        weight_bytes=work.weight_bytes * WEIGHT_BYTES[precision] / 4,
        fixed_bytes=work.fixed_bytes * half,
        bytes_per_element=work.bytes_per_element * half,
        bytes_per_pair=work.bytes_per_pair * half,
    )
    replayed, launched = (
        roofline(
            moved,
            lengths,
            peak_gflops=efficiency.arithmetic * peak,
            bandwidth_gb_s=efficiency.bandwidth * gpu.bandwidth_gbs,
            overhead_ms=1e-3 * call_us * work.calls,
            provenance=record,
        )
        for call_us in (efficiency.call_us if graphs else launched_us, launched_us)
    )
    points = tuple(
        replace(one, exact_ms=other.exact_ms)
        for one, other in zip(replayed.points, launched.points, strict=True)
    )
    return replace(replayed, points=points)
