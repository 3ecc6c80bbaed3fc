"""The FLOPs and bytes of one run by operator, from running the lowered graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgecompile.backends.operators import ops
from edgecompile.explanation.program import LoweredProgram, is_own, node_name
from edgecompile.explanation.report import ModuleTime, RunFigures
from edgecompile.export.guards import quiet_torch
from edgecompile.export.ladder import without_fast_path
from edgecompile.export.workcount import FlopCounter, byte_size, storage_of, tensors_in
from edgecompile.targets.profile import TargetProfile

_LOOKUPS = (
    *("embedding", "index", "index_select", "gather", "take", "embedding_bag"),
    "ec_packed_rows",
)


@dataclass(frozen=True)
class Limits:
    """The most that a target can do: operations and bytes per second."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for so many operations and bytes."""
        return max(flops / self.flops, moved / self.bandwidth)


@dataclass
class NodeWork:
    """FLOPs of one operator, bytes of weights that it reads, and all bytes that it moves."""

    node: Node
    flops: int = 0
    weights: int = 0
    moved: int = 0


def limits_of(profile: TargetProfile, precision: str) -> Limits | None:
    """The target's figures; None if its profile doesn't state them."""
    if profile.gpu is not None:
        peaks = dict(profile.gpu.peak_gflops)
        peak = peaks.get(precision, peaks["fp32"])
        return Limits(1e9 * peak, 1e9 * profile.gpu.bandwidth_gbs)
    if not profile.peak_gflops or not profile.bandwidth_gbs:
        return None
    return Limits(1e9 * profile.peak(precision), 1e9 * profile.bandwidth_gbs)


def count_graph(gm: GraphModule, inputs: Mapping[str, torch.Tensor]) -> tuple[NodeWork, ...]:
    """Runs ``gm`` once and counts.

    Generated code is taken to fuse everything between two kernels: a result is in memory if a
    kernel makes it, if a kernel reads it, or if it is an output.

    Args:
        gm: an exported program's module, lowered or not; its placeholders are the inputs, in order.
        inputs: the inputs by name, in the program's order.

    Returns:
        The work of each operator, in the graph's order.

    Raises:
        Exception: whatever the graph's operators raise on these inputs.
    """
    counter = FlopCounter()
    runner = _Runner(gm, counter)
    with (
        quiet_torch(),
        torch.no_grad(),
        without_fast_path(),
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        counter,
    ):
        runner.run(*inputs.values(), enable_io_processing=False)
    return tuple(runner.work)


class _Runner(Interpreter):
    """Counts node by node; views share the memory of the node that they are views of."""

    def __init__(self, gm: GraphModule, counter: FlopCounter) -> None:
        super().__init__(gm)
        self.work: list[NodeWork] = []
        self._counter = counter
        self._owners: dict[Node, Node] = {}
        self._stored: set[Node] = set()
        self._read: set[Node] = set()

    def run_node(self, n: Node) -> Any:
        if n.op == "call_module" and n.target == "_guards_fn":
            return None  # conditions on sizes, which were chosen to meet them
        before = int(self._counter.get_total_flops())
        reads = {node: list(tensors_in(self.env.get(node))) for node in n.all_input_nodes}
        own = ops.IMPLEMENTATIONS.get(node_name(n)) if is_own(n) else None
        # The parts of an operator of ours, since the counter sees nothing within it.
        result = super().run_node(n) if own is None else own(*self.fetch_args_kwargs_from_env(n)[0])
        work = NodeWork(n, int(self._counter.get_total_flops()) - before)
        made = list(tensors_in(result))
        places = {storage_of(tensor) for tensor in made} - {0}  # tensors without elements have none
        source = next((g for g, ts in reads.items() if any(storage_of(t) in places for t in ts)), n)
        self._owners[n] = self._owners.get(source, source)
        fresh = sum(map(byte_size, made)) if source is n else 0
        if n.op in ("placeholder", "get_attr"):
            self._stored.add(n)
        elif work.flops or own is not None:
            self._count_kernel(work, reads, fresh)
        elif fresh or n.op == "output":
            self._count_fused(work, reads, fresh, n.op == "output")
        self.work.append(work)
        return result

    def _count_kernel(
        self, work: NodeWork, reads: Mapping[Node, list[torch.Tensor]], fresh: int
    ) -> None:
        for node, tensors in reads.items():
            owner = self._owners[node]
            size = sum(map(byte_size, tensors))
            lookup = owner.op == "get_attr" and node_name(work.node) in _LOOKUPS
            self._count_read(work, node, min(size, fresh) if lookup else size)
            if owner not in self._stored:  # fused code has to write it for the kernel
                self._stored.add(owner)
                work.moved += sum(map(byte_size, tensors))
        self._stored.add(self._owners[work.node])
        work.moved += fresh

    def _count_fused(
        self,
        work: NodeWork,
        reads: Mapping[Node, list[torch.Tensor]],
        fresh: int,
        output: bool,
    ) -> None:
        for node, tensors in reads.items():
            owner, size = self._owners[node], sum(map(byte_size, tensors))
            if output:
                work.moved += 0 if owner in self._stored else size
            elif owner.op == "get_attr":
                lookup = node_name(work.node) in _LOOKUPS
                self._count_read(work, node, min(size, fresh) if lookup else size)
            elif owner in self._stored and owner not in self._read:
                # What one fused loop reads is there for the operators behind it.
                self._read.add(owner)
                work.moved += size

    def _count_read(self, work: NodeWork, node: Node, size: int) -> None:
        work.moved += size
        if self._owners[node].op == "get_attr":
            work.weights += size


def run_figures(
    work: tuple[NodeWork, ...], sizes: Mapping[str, int], limits: Limits | None
) -> RunFigures:
    """The sums of a run at these sizes."""
    flops, moved = sum(item.flops for item in work), sum(item.moved for item in work)
    limit = least = None
    if limits is not None:
        limit = "arithmetic" if flops / limits.flops > moved / limits.bandwidth else "memory"
        least = 1e3 * limits.seconds(flops, moved)
    weights = sum(item.weights for item in work)
    return RunFigures(dict(sizes), flops, weights, moved, limit, least)


def module_times(
    lowered: LoweredProgram, work: tuple[NodeWork, ...], limits: Limits | None
) -> tuple[ModuleTime, ...]:
    """The work by kind of module, the most first."""
    sums: dict[str, tuple[int, int, float]] = {}
    for item in work:
        if item.flops or item.moved:
            module = lowered.origin(item.node).module
            seconds = 0.0 if limits is None else limits.seconds(item.flops, item.moved)
            flops, moved, before = sums.get(module, (0, 0, 0.0))
            sums[module] = (flops + item.flops, moved + item.moved, before + seconds)
    total = sum(seconds for _, _, seconds in sums.values())
    times = [
        ModuleTime(module, flops, moved, seconds / total if total else None)
        for module, (flops, moved, seconds) in sums.items()
    ]
    return tuple(sorted(times, key=lambda t: (-(t.share or 0.0), -t.flops, t.module)))
