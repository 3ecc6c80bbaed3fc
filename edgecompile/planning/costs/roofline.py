"""Costs of a target whose CPU isn't at hand: a model's work over what its profile says it can do.

Nothing here was measured on the target. A modelled curve tells how the cost grows with the length,
which is what buckets depend on; its milliseconds are an estimate. Cost points from the device are
always better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgecompile.buckets.costs.flops import FlopModel
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.errors import CostError
from edgecompile.targets.profile import TargetProfile

#: Bytes of a weight, int4's with its scales.
WEIGHT_BYTES: Mapping[str, float] = {
    "fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1, "int4": 0.5625,
}  # fmt: skip


@dataclass(frozen=True)
class Efficiency:
    """The share of a profile's figures that whole runs of a model reach.

    Attributes:
        arithmetic: part of the peak.
        bandwidth: part of the memory bandwidth.
        call_us: microseconds that a run takes for each call of a leaf module, whatever its length.
        source: the source of the three figures.
    """

    arithmetic: float
    bandwidth: float
    call_us: float
    source: str


#: Fitted to the milliseconds of whole runs in docs/benchmarks/2026-11-21-minilm-fp32-first.json: least
#: squares of the logarithms at all 61 lengths, 5 to 256, with the peak that the record states
#: (204 GFLOP/s), the bandwidth that profiles/cpu-x86-64-v3.toml assumes (38.4 GB/s; the record
#: states none, so this part holds for that figure) and 60 calls of leaf modules. It agrees with
#: the record's kernels: products alone reach 83 to 87 % of the peak at 49 to 256 tokens and 55 %
#: at 12, where memory decides, attention 44 to 63 %. The 14 microseconds hold whatever doesn't
#: grow with the length, cold caches as well as calls. On another machine, that of
#: docs/benchmarks/cpu-fp32.md, the curve made to meet the time at 256 tokens is
#: 15 % (AVX2) and 24 % (AVX-512) too high at 32, and 26 % and 77 % at 16: short runs cost less
#: there than modelled.
ENCODER_RECORD = Efficiency(
    arithmetic=0.72,
    bandwidth=0.86,
    call_us=14.0,
    source="fitted to docs/benchmarks/2026-11-21-minilm-fp32-first.json: one model, one machine, 2 threads",
)


def modelled_curve(
    work: FlopModel,
    profile: TargetProfile,
    lengths: Iterable[int],
    *,
    precision: str = "fp32",
    threads: int | None = None,
    efficiency: Efficiency = ENCODER_RECORD,
) -> CostGrid:
    """The cost curve that a profile's figures make likely. A modelled curve alone never makes padding
    the cheaper mode: programs of both cost the same.

    ms(L) = calls · call_us + 1e3 · max(flops(L) / (e₁ · peak), bytes(L) / (e₂ · bandwidth)), see
    :func:`roofline`. The peak is that of ``threads`` of the profile's cores. The
    bandwidth isn't scaled: how many cores it takes to use it up isn't in a profile.

    Args:
        work: the amount of work that the model does.
        profile: the target.
        lengths: the lengths of the points.
        precision: the data type of weights and matmuls; the profile has to state a peak for it.
            Weights take its width, what else moves is float32.
        threads: the threads that a run uses; None: one for each of the profile's cores.
        efficiency: the share of the figures that is reached.

    Returns:
        A curve of kind ``modelled``; its provenance holds every number used.

    Raises:
        CostError: the profile lacks a figure, or has fewer cores; all problems are named with the
            profile's file. No lengths.
    """
    file = f"{profile.name}.toml"
    peaks = dict(profile.peak_gflops)
    figures = {f"peak_gflops.{precision}": peaks.get(precision)}
    figures["bandwidth_gbs"] = profile.bandwidth_gbs
    problems = [f"{name} is missing in {file}" for name, value in figures.items() if value is None]
    if threads is not None and threads > profile.cores:
        problems.append(f"{threads} threads are asked for, {file} has cores = {profile.cores}")
    if problems:
        raise CostError(
            f"the costs on {profile.name} can't be modelled: " + "; ".join(problems),
            hint=f"state what {file} lacks, with its source, or plan from cost points of the device",
        )

    bandwidth = profile.bandwidth_gbs or 0.0  # checked above
    used = profile.cores if threads is None else threads
    peak = peaks[precision] * used / profile.cores
    record = profile_record(work, profile, precision, efficiency)
    sources = dict(profile.sources)
    record |= {
        "threads": str(used),
        "profile.cores": repr(profile.cores),
        f"profile.peak_gflops.{precision}": repr(peaks[precision]),
        "profile.bandwidth_gbs": repr(bandwidth),
        "work.lengths": ", ".join(map(str, work.lengths)),
    }
    for name in ("cores", "peak_gflops", "bandwidth_gbs"):
        if name in sources:
            record[f"profile.sources.{name}"] = sources[name]
    return roofline(
        replace(work, weight_bytes=work.weight_bytes * WEIGHT_BYTES[precision] / 4),
        lengths,
        peak_gflops=efficiency.arithmetic * peak,
        bandwidth_gb_s=efficiency.bandwidth * bandwidth,
        overhead_ms=1e-3 * efficiency.call_us * work.calls,
        provenance=record,
    )


def profile_record(
    work: FlopModel, profile: TargetProfile, precision: str, efficiency: Efficiency
) -> dict[str, str]:
    """The provenance of a curve from a profile's figures, as far as CPUs and GPUs share it."""
    return {
        "how": "modelled, not measured: a roofline from the target's profile",
        "profile": f"{profile.name}.toml",
        "precision": precision,
        "efficiency.arithmetic": repr(efficiency.arithmetic),
        "efficiency.bandwidth": repr(efficiency.bandwidth),
        "efficiency.call_us": repr(efficiency.call_us),
        "efficiency.source": efficiency.source,
        "model": work.model,
        "work.sizes": ", ".join(f"{name} {size}" for name, size in work.sizes),
        "work.calls": repr(work.calls),
        "work.weight_bytes": repr(work.weight_bytes),
        "work.misfit": repr(work.misfit),
        **({"work.notes": "; ".join(work.notes)} if work.notes else {}),
    }


def roofline(
    work: FlopModel,
    lengths: Iterable[int],
    *,
    peak_gflops: float,
    bandwidth_gb_s: float,
    overhead_ms: float,
    provenance: Mapping[str, str],
) -> CostGrid:
    """A modelled curve: the slower of arithmetic and memory traffic, plus a fixed overhead.

    ms(L) = overhead + 1e3 · max(flops(L) / peak, bytes(L) / bandwidth), the roofline of Williams,
    Waterman and Patterson (CACM 52(4), 2009).

    Args:
        work: the operations of a run, and the bytes that it moves at the widths of the target.
        lengths: the lengths of the points.
        peak_gflops: arithmetic that the target sustains, in 1e9 operations per second.
        bandwidth_gb_s: memory bandwidth in 1e9 bytes per second.
        overhead_ms: milliseconds of a run that don't depend on the length.
        provenance: recorded in the curve beside the parameters.

    Raises:
        CostError: there are no lengths.
    """
    parameters = {
        "peak_gflops": peak_gflops,
        "bandwidth_gb_s": bandwidth_gb_s,
        "flops_per_element": work.flops_per_element,
        "flops_per_pair": work.flops_per_pair,
        "fixed_flops": work.fixed_flops,
        "fixed_bytes": work.weight_bytes + work.fixed_bytes,
        "bytes_per_element": work.bytes_per_element,
        "bytes_per_pair": work.bytes_per_pair,
        "overhead_ms": overhead_ms,
    }
    points = []
    for length in sorted(set(lengths)):
        arithmetic = work.flops_at(length) / (peak_gflops * 1e9)
        memory = work.bytes_at(length) / (bandwidth_gb_s * 1e9)
        ms = overhead_ms + 1e3 * max(arithmetic, memory)
        points.append(CostPoint(length, ms, ms))
    texts = {name: repr(number) for name, number in parameters.items()}
    return CostGrid(tuple(points), "modelled", {**texts, **provenance})
