"""Runs a lowered graph once, operator by operator, and notes what each costs and what lives.

The numbers are those of real tensors at real sizes: what is a view, what a result of data-dependent
size has, and when storage is free again, are seen rather than modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from edgecompile.backends import ops
from edgecompile.export.ladder import without_fast_path
from edgecompile.export.workcount import FORMULAS

__all__ = ["GraphRun", "NodeCost", "Stored", "run_graph"]

_LOOKUPS = ("embedding", "index", "index_select", "gather", "take", "embedding_bag")
#: What Inductor calls from outside though it multiplies nothing.
_CALLED = (
    *("cumsum", "cumprod", "logcumsumexp", "sort", "topk", "histc", "nonzero", "unique", "unique2"),
    *(
        "_unique2",
        "searchsorted",
        "bucketize",
        "randperm",
        "multinomial",
        "scatter_reduce",
        "kthvalue",
    ),
    *(
        "fft_r2c",
        "fft_c2c",
        "fft_c2r",
        "_fft_r2c",
        "_fft_c2c",
        "_fft_c2r",
        "polar",
        "view_as_complex",
    ),
    *("view_as_real", "embedding_bag", "_embedding_bag"),
)


@dataclass
class Stored:
    """A piece of memory that an operator made.

    Attributes:
        node: the operator.
        shape: of its tensor.
        size: bytes.
        kind: ``weight``, ``input`` or ``result``.
        born, died: indices of the operators that made it and that was last to read it.
        materialised: whether it has to be in memory even if generated code fuses what it can.
        read: bytes of it that generated code has read already.
    """

    node: str
    shape: tuple[int, ...]
    size: int
    kind: str
    born: int
    died: int = 0
    materialised: bool = False
    read: int = 0


@dataclass
class NodeCost:
    """One operator of the run; bytes if everything that can be is fused, and if nothing is."""

    node: Node
    kernel: bool
    flops: int = 0
    weights: int = 0
    moved: int = 0
    moved_unfused: int = 0
    live: int = 0
    live_fused: int = 0
    reads: list[tuple[Stored, int]] = field(default_factory=list)
    writes: list[tuple[Stored, int]] = field(default_factory=list)


@dataclass(frozen=True)
class GraphRun:
    """A run: its operators in order, and all memory that it used."""

    costs: tuple[NodeCost, ...]
    stored: tuple[Stored, ...]

    @property
    def flops(self) -> int:
        """Operations of the whole run; a multiply-add counts as two."""
        return sum(cost.flops for cost in self.costs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that are read."""
        return sum(cost.weights for cost in self.costs)

    def moved(self, *, fused: bool) -> int:
        """Bytes moved, weights included."""
        return sum(cost.moved if fused else cost.moved_unfused for cost in self.costs)

    def peak(self, *, fused: bool) -> int:
        """Largest sum of activations that live at one time."""
        return max((c.live_fused if fused else c.live for c in self.costs), default=0)

    def living(self, index: int) -> list[Stored]:
        """What lives while the operator of that index runs, largest first; no weights."""
        alive = [s for s in self.stored if s.kind != "weight" and s.born <= index <= s.died]
        return sorted(alive, key=lambda s: (-s.size, s.born))


def run_graph(gm: GraphModule, inputs: Mapping[str, torch.Tensor]) -> GraphRun:
    """Runs ``gm`` on the inputs.

    Args:
        gm: an exported program's module, lowered or not; its placeholders are the inputs, in order.
        inputs: by name, in the program's order.

    Raises:
        Exception: whatever the graph's operators raise on these inputs.
    """
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    runner = _Runner(gm, counter)
    with (
        torch.no_grad(),
        without_fast_path(),
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        counter,
    ):
        runner.run(*inputs.values(), enable_io_processing=False)
    run = GraphRun(tuple(runner.costs), tuple(runner.stored))
    _fuse(run)
    _add_lives(run)
    return run


class _Runner(Interpreter):
    """Notes reads, writes and lives by the storages behind the tensors."""

    def __init__(self, gm: GraphModule, counter: FlopCounterMode) -> None:
        super().__init__(gm)
        self.counter = counter
        self.costs: list[NodeCost] = []
        self.stored: list[Stored] = []
        self.places: dict[int, Stored] = {}
        self.holders: dict[int, set[str]] = {}

    def run_node(self, n: Node) -> Any:
        if n.op == "call_module" and n.target == "_guards_fn":
            return None  # conditions on sizes, which were chosen to meet them
        before = int(self.counter.get_total_flops())
        own = ops.IMPLEMENTATIONS.get(_name(n)) if _is_own(n) else None
        # What it is made of, since the counter sees nothing within an operator of ours.
        result = super().run_node(n) if own is None else own(*self._arguments(n))
        index = len(self.costs)
        flops = int(self.counter.get_total_flops()) - before
        cost = NodeCost(n, _is_kernel(n, flops), flops)
        if n.op == "call_function":
            self._note_reads(cost, n, index, result)
        elif n.op == "output":
            self._note_outputs(cost, result, index)
        self._note_results(cost, n, index, result)
        self.costs.append(cost)
        # The interpreter drops values after their last use; their storage may then be used again.
        for name in self.user_to_last_uses.get(n, []):
            self._drop(name.name, index)
        return result

    def _arguments(self, n: Node) -> tuple[Any, ...]:
        args, _ = self.fetch_args_kwargs_from_env(n)
        return tuple(args)

    def _note_reads(self, cost: NodeCost, n: Node, index: int, result: Any) -> None:
        target = _name(n)
        given = list(_tensors(tuple(self.env.get(a) for a in n.all_input_nodes)))
        fresh = sum(_bytes(t) for t in _tensors(result) if _place(t) not in self.places)
        for position, tensor in enumerate(given):
            stored = self.places.get(_place(tensor))
            if stored is None:
                continue
            size = min(_bytes(tensor), stored.size)
            if position == 0 and target in _LOOKUPS:
                size = min(size, fresh)
            cost.reads.append((stored, size))
            stored.died = max(stored.died, index)

    def _note_outputs(self, cost: NodeCost, result: Any, index: int) -> None:
        for tensor in _tensors(result):
            stored = self.places.get(_place(tensor))
            if stored is not None:
                stored.materialised, stored.died = True, index

    def _note_results(self, cost: NodeCost, n: Node, index: int, result: Any) -> None:
        changes = _changes_in_place(n)
        kind = {"placeholder": "input", "get_attr": "weight"}.get(n.op, "result")
        aliased = False
        for tensor in _tensors(result):
            place = _place(tensor)
            if not place:
                continue
            known = self.places.get(place)
            if known is None:
                size = int(tensor.untyped_storage().nbytes())
                known = Stored(n.name, tuple(tensor.shape), size, kind, index, index)
                self.places[place] = known
                self.stored.append(known)
                if kind == "result":
                    cost.writes.append((known, _bytes(tensor)))
            elif changes:
                cost.writes.append((known, _bytes(tensor)))
            else:
                aliased = True
            self.holders.setdefault(place, set()).add(n.name)
        if aliased and not cost.writes and not cost.flops:
            cost.reads.clear()  # a view moves nothing

    def _drop(self, name: str, index: int) -> None:
        for place in [p for p, holders in self.holders.items() if name in holders]:
            holders = self.holders[place]
            holders.discard(name)
            if not holders:
                stored = self.places.pop(place)
                stored.died = max(stored.died, index)
                del self.holders[place]


def _fuse(run: GraphRun) -> None:
    """Bytes by operator, with and without fusion.

    Generated code is taken to fuse everything between two kernels: a result is in memory if a
    kernel makes it, if a kernel reads it, or if it is an output.
    """
    for cost in run.costs:
        for stored, _ in cost.writes if cost.kernel else ():
            stored.materialised = True
        for stored, _ in cost.reads if cost.kernel else ():
            stored.materialised = True
    for stored in run.stored:
        stored.materialised |= stored.kind != "result"
    for cost in run.costs:
        for stored, size in cost.reads:
            if stored.kind == "weight":
                cost.weights += size
            cost.moved_unfused += size
            if stored.kind == "weight" or cost.kernel:
                cost.moved += size
            elif stored.materialised:
                # What one fused loop reads is there for the operators behind it.
                fresh = min(size, stored.size - stored.read)
                cost.moved += fresh
                stored.read += fresh
        for stored, size in cost.writes:
            cost.moved_unfused += size
            cost.moved += size if stored.materialised else 0


def _add_lives(run: GraphRun) -> None:
    for stored in run.stored:
        if stored.kind == "weight":
            continue
        for cost in run.costs[stored.born : stored.died + 1]:
            cost.live += stored.size
            cost.live_fused += stored.size if stored.materialised else 0


def _is_kernel(n: Node, flops: int) -> bool:
    if n.op != "call_function":
        return False
    return _is_own(n) or flops > 0 or _name(n) in _CALLED


def _is_own(n: Node) -> bool:
    return getattr(n.target, "namespace", "") == "edgecompile"


def _name(n: Node) -> str:
    """An operator's name without its overload."""
    return str(getattr(n.target, "__name__", n.target)).partition(".")[0]


def _changes_in_place(n: Node) -> bool:
    schema = getattr(n.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _place(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
