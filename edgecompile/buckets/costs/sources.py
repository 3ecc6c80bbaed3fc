"""Where cost curves come from: files of cost points, and a roofline where nothing can be measured.

The curves themselves are in :mod:`edgecompile.buckets.costs.curves`; their names are exported here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgecompile.buckets.costs.curves import (
    KINDS,
    MODES,
    CostCurve,
    CostKind,
    CostModel,
    CostPoint,
    FloatArray,
    Mode,
)
from edgecompile.buckets.costs.files import read_cost_points
from edgecompile.errors import CostError

__all__ = [
    "KINDS",
    "MODES",
    "CostCurve",
    "CostKind",
    "CostModel",
    "CostPoint",
    "FloatArray",
    "Mode",
    "read_cost_points",
    "roofline",
]


def roofline(
    lengths: Iterable[int],
    *,
    peak_gflops: float,
    bandwidth_gb_s: float,
    flops_per_element: float,
    flops_per_pair: float = 0.0,
    fixed_flops: float = 0.0,
    fixed_bytes: float = 0.0,
    bytes_per_element: float = 0.0,
    bytes_per_pair: float = 0.0,
    overhead_ms: float = 0.0,
    dynamic_factor: float = 1.0,
    provenance: Mapping[str, str] | None = None,
) -> CostCurve:
    """A modelled curve: the slower of arithmetic and memory traffic, plus a fixed overhead.

    ms(L) = overhead + 1e3 · max((f + a·L + b·L²) / peak, (g + c·L + d·L²) / bandwidth), the
    roofline of Williams, Waterman and Patterson (CACM 52(4), 2009). A transformer of P weights in
    its layers has a ≈ 2·P and b ≈ 4·layers·hidden (attention's two products).

    Args:
        lengths: where to put the points.
        peak_gflops: arithmetic that the target sustains, in 1e9 operations per second.
        bandwidth_gb_s: memory bandwidth in 1e9 bytes per second.
        flops_per_element: a, operations per element of the length axis.
        flops_per_pair: b, operations per pair of elements.
        fixed_flops: f, operations of every run.
        fixed_bytes: g, bytes read in every run (the weights).
        bytes_per_element: c, bytes moved per element.
        bytes_per_pair: d, bytes moved per pair of elements.
        overhead_ms: milliseconds of a run that don't depend on the length.
        dynamic_factor: how many times the cost of a static program a dynamic one has.
        provenance: recorded in the curve beside the parameters.

    Raises:
        CostError: a parameter isn't a usable number, or there are no lengths.
    """
    positive = {"peak_gflops": peak_gflops, "bandwidth_gb_s": bandwidth_gb_s}
    positive["dynamic_factor"] = dynamic_factor
    others = {
        "flops_per_element": flops_per_element,
        "flops_per_pair": flops_per_pair,
        "fixed_flops": fixed_flops,
        "fixed_bytes": fixed_bytes,
        "bytes_per_element": bytes_per_element,
        "bytes_per_pair": bytes_per_pair,
        "overhead_ms": overhead_ms,
    }
    bad = [f"{k} is {v}, not over 0" for k, v in positive.items() if not 0 < v < float("inf")]
    bad += [f"{k} is {v}, not 0 or more" for k, v in others.items() if not 0 <= v < float("inf")]
    if bad:
        raise CostError("roofline: " + "; ".join(bad))
    points = []
    for length in sorted(set(lengths)):
        flops = fixed_flops + flops_per_element * length + flops_per_pair * length * length
        moved = fixed_bytes + bytes_per_element * length + bytes_per_pair * length * length
        seconds = max(flops / (peak_gflops * 1e9), moved / (bandwidth_gb_s * 1e9))
        pad_ms = overhead_ms + 1e3 * seconds
        points.append(CostPoint(length, pad_ms * dynamic_factor, pad_ms))
    parameters = {name: repr(number) for name, number in {**positive, **others}.items()}
    return CostCurve(tuple(points), "modelled", {**parameters, **(provenance or {})})
