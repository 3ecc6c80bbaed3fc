"""Figures of one run at each bucket, and where its work and its memory are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from edgecompile.explanation.graph_run import GraphRun, NodeCost, run_graph
from edgecompile.explanation.kernels import LoweredProgram
from edgecompile.explanation.report import BucketFigures, LiveTensor, MemoryPoint, ModuleUse
from edgecompile.targets.profile import TargetProfile

__all__ = ["Limits", "bucket_figures", "limits_of", "memory_points", "module_uses", "peak_tensors"]

#: Tensors listed of those that live at the peak.
_MOST_LIVE = 10


@dataclass(frozen=True)
class Limits:
    """What a target can do at most: operations and bytes per second."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for so much work."""
        return max(flops / self.flops, moved / self.bandwidth)

    @property
    def ridge(self) -> float:
        """Flops per byte below which memory binds."""
        return self.flops / self.bandwidth


def limits_of(profile: TargetProfile, precision: str) -> Limits | None:
    """The target's figures; None if its profile doesn't state them."""
    if profile.gpu is not None:
        peaks = dict(profile.gpu.peak_gflops)
        peak = peaks.get(precision, peaks["fp32"])
        return Limits(1e9 * peak, 1e9 * profile.gpu.bandwidth_gbs)
    if not profile.peak_gflops or not profile.bandwidth_gbs:
        return None
    return Limits(1e9 * profile.peak(precision), 1e9 * profile.bandwidth_gbs)


def bucket_figures(
    lowered: LoweredProgram,
    inputs: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    span: tuple[int, int] | None,
    limits: Limits | None,
) -> tuple[BucketFigures, GraphRun]:
    """Runs the program once at these sizes.

    Args:
        lowered: the program.
        inputs: of these sizes.
        sizes: of every axis.
        span: the bucket; None: there is no length axis.
        limits: of the target.

    Raises:
        Exception: whatever the program's operators raise.
    """
    run = run_graph(lowered.gm, inputs)
    moved = run.moved(fused=True)
    intensity = run.flops / moved if moved else 0.0
    limit = least = None
    if limits is not None:
        limit = "arithmetic" if intensity > limits.ridge else "memory"
        least = 1e3 * limits.seconds(run.flops, moved)
    figures = BucketFigures(
        lo=None if span is None else span[0],
        hi=None if span is None else span[1],
        sizes=dict(sizes),
        flops=run.flops,
        weight_bytes=run.weight_bytes,
        moved=moved,
        moved_unfused=run.moved(fused=False),
        peak=run.peak(fused=True),
        peak_unfused=run.peak(fused=False),
        intensity=intensity,
        limit=limit,
        least_ms=least,
    )
    return figures, run


def module_uses(
    lowered: LoweredProgram, run: GraphRun, limits: Limits | None
) -> tuple[ModuleUse, ...]:
    """Work by kind of module, the most first."""
    counts: dict[str, int] = {}
    for origin in lowered.before.values():
        counts[origin.module] = counts.get(origin.module, 0) + 1
    flops: dict[str, int] = {}
    moved: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for cost in run.costs:
        if not cost.flops and not cost.moved:
            continue
        kind = lowered.origin(cost.node).module
        flops[kind] = flops.get(kind, 0) + cost.flops
        moved[kind] = moved.get(kind, 0) + cost.moved
        if limits is not None:
            seconds[kind] = seconds.get(kind, 0.0) + limits.seconds(cost.flops, cost.moved)
    total = sum(seconds.values())
    uses = [
        ModuleUse(
            kind,
            counts.get(kind, 0),
            flops.get(kind, 0),
            moved.get(kind, 0),
            seconds.get(kind, 0.0) / total if total else None,
        )
        for kind in {*counts, *flops, *moved}
    ]
    return tuple(sorted(uses, key=lambda u: (-(u.share or 0.0), -u.flops, -u.count, u.module)))


def memory_points(lowered: LoweredProgram, run: GraphRun) -> tuple[MemoryPoint, ...]:
    """What lives while each operator runs, in the program's order."""
    return tuple(
        MemoryPoint(_label(cost), lowered.origin(cost.node).module, cost.live, cost.live_fused)
        for cost in run.costs
        if cost.node.op == "call_function"
    )


def peak_tensors(lowered: LoweredProgram, run: GraphRun) -> tuple[LiveTensor, ...]:
    """The largest tensors that live at the peak of the fused program."""
    if not run.costs:
        return ()
    index = max(range(len(run.costs)), key=lambda i: (run.costs[i].live_fused, run.costs[i].live))
    nodes = {cost.node.name: cost for cost in run.costs}
    result = []
    for stored in run.living(index):
        if stored.materialised:
            cost = nodes[stored.node]
            origin = lowered.origin(cost.node)
            result.append(
                LiveTensor(_label(cost), origin.module, stored.shape, stored.size, origin.place)
            )
    return tuple(result[:_MOST_LIVE])


def _label(cost: NodeCost) -> str:
    node = cost.node
    if node.op == "placeholder":
        return f"input {node.name}"
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]
