"""What ``edgecompile explain`` finds out about a model, as values; docs/explain.md has the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from edgecompile.backends.codegen_failures import CodegenFailure
from edgecompile.models.source_lines import Place

__all__ = [
    "VERDICTS",
    "BucketFigures",
    "Condition",
    "Difference",
    "EagerFailure",
    "Explanation",
    "Finding",
    "GraphBreak",
    "KernelUse",
    "Kept",
    "LiveTensor",
    "MemoryPoint",
    "ModuleUse",
    "OperatorUse",
    "RungResult",
    "Specialisation",
]

_VERSION = 1

#: What a model comes to, the best first.
VERDICTS: Mapping[str, str] = {
    "dynamic": "compiles: one program serves every length",
    "narrower": "compiles for a part of the lengths only",
    "padded": "compiles as padded buckets, one program for each length",
    "static": "exports for one length at a time, and padding changes its outputs or may do so",
    "missing-kernels": "exports, but calls kernels that the native runtime hasn't got",
    "no-code": "exports, but torch's Inductor can't generate code for it",
    "refused": "can't be exported",
    "unfit": "isn't a function of its inputs",
    "eager-fails": "fails in eager, before anything is compiled",
}


@dataclass(frozen=True)
class Condition:
    """Something that tracing demands of sizes: ``length % 16 == 0``, and the line that does."""

    text: str
    place: Place | None = None


@dataclass(frozen=True)
class Specialisation:
    """An axis that became a constant.

    Attributes:
        axis, size: which, and which.
        rungs: ways of exporting in which it did.
        place: the line that fixes it, where torch tells.
    """

    axis: str
    size: int
    rungs: tuple[str, ...]
    place: Place | None = None


@dataclass(frozen=True)
class RungResult:
    """What one way to export gave.

    Attributes:
        rung: its name.
        outcome: ``accepted``; ``refused`` by torch; ``specialised`` (a size became a constant);
            ``narrower`` (fewer sizes than wanted); ``wrong`` at some sizes; ``unchecked`` (eager
            fails at some); ``not tried``.
        text: in words.
        conditions: what tracing demanded of sizes.
        place: the line behind it, where torch tells.
        ranges: smallest and largest size that the program takes, by axis.
        wrong: (sizes, what happened) where its results aren't eager's.
        right: sizes where they are.
        max_error: largest difference there, relative to an output's scale.
    """

    rung: str
    outcome: str
    text: str = ""
    conditions: tuple[Condition, ...] = ()
    place: Place | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    wrong: tuple[tuple[Mapping[str, int], str], ...] = ()
    right: tuple[Mapping[str, int], ...] = ()
    max_error: float | None = None


@dataclass(frozen=True)
class GraphBreak:
    """Where torch.compile would leave the graph, and why."""

    reason: str
    place: Place | None = None


@dataclass(frozen=True)
class OperatorUse:
    """An operator of the exported graph: how often, in which kinds of modules, at which lines."""

    operator: str
    count: int
    modules: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class ModuleUse:
    """A kind of module (``encoder.layer.*.attention``) at the largest bucket.

    Attributes:
        module: its path with ``*`` for numbers; "" is the model itself.
        count: operators in the exported graph.
        flops: operations of one run; a multiply-add counts as two.
        moved: bytes moved in one run, as if generated code fused all between two kernels.
        share: of the run's least time on the target; None where its profile lacks figures.
    """

    module: str
    count: int
    flops: int
    moved: int
    share: float | None


@dataclass(frozen=True)
class KernelUse:
    """A kernel that the program calls.

    Attributes:
        kernel: ``ec_linear``, ``addmm_out``, …; an operator's name for what has no C interface.
        kind: ``own`` (made for packed weights and fused operations), ``generic`` (the runtime has
            it) or ``missing``.
        calls: how often.
        flops: operations of one run at the largest bucket, where a call is known by its node.
        modules: kinds of modules that it comes from.
        places: lines of the model.
    """

    kernel: str
    kind: str
    calls: int
    flops: int
    modules: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class Kept:
    """A product or an attention that wasn't given to a kernel of ours, and why."""

    node: str
    operator: str
    reason: str
    module: str
    flops: int
    place: Place | None = None


@dataclass(frozen=True)
class MemoryPoint:
    """Bytes of activations that live while an operator runs: all, and as if fused."""

    operator: str
    module: str
    live: int
    fused: int


@dataclass(frozen=True)
class LiveTensor:
    """A tensor that lives when memory is highest."""

    operator: str
    module: str
    shape: tuple[int, ...]
    size: int
    place: Place | None = None


@dataclass(frozen=True)
class BucketFigures:
    """One run at the upper end of a bucket.

    Attributes:
        lo, hi: the bucket's lengths; both None for a model without a length axis.
        sizes: of every axis.
        flops: a multiply-add counts as two.
        weight_bytes: weights read, in the precision they are stored in.
        moved: bytes moved if generated code fuses all between two kernels, weights included.
        moved_unfused: bytes moved if every operator reads and writes memory.
        peak: largest sum of the activations that live at one time, if fused as above.
        peak_unfused: the same if every operator's result is stored.
        intensity: flops per byte moved.
        limit: ``arithmetic`` or ``memory``, what binds on the target; None: its profile doesn't say.
        least_ms: that limit in milliseconds: no run can be faster.
    """

    lo: int | None
    hi: int | None
    sizes: Mapping[str, int]
    flops: int
    weight_bytes: int
    moved: int
    moved_unfused: int
    peak: int
    peak_unfused: int
    intensity: float
    limit: str | None
    least_ms: float | None


@dataclass(frozen=True)
class Difference:
    """What the graphs of two lengths don't share, sizes apart.

    Attributes:
        kind: ``only`` (operators that one of the graphs has more of), ``value`` (an argument
            that changes with the length, and not in proportion to it) or ``tensor`` (a constant tensor
            made while tracing).
        text: in words.
        counts: operators in the first and in the second graph; for ``only``.
        place: the line of the model.
    """

    kind: str
    text: str
    counts: tuple[int, int] | None = None
    place: Place | None = None


@dataclass(frozen=True)
class EagerFailure:
    """Sizes at which the eager model fails; the calls that led there, outermost first."""

    sizes: Mapping[str, int]
    text: str
    calls: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A cause, with what can be done about it; ``kind`` is refused, slow, limit or note."""

    kind: str
    text: str
    cure: str = ""
    place: Place | None = None


@dataclass(frozen=True)
class Explanation:
    """Why a model is refused or slow.

    Parts that couldn't be looked at are empty, and ``notes`` says why.

    Attributes:
        model: its name, or the specification if it couldn't be loaded.
        target, precision: what it was looked at for.
        verdict: a key of :data:`VERDICTS`.
        findings: the causes, the gravest first.
        length_axis, ranges: what was asked for.
        eager: sizes at which eager fails.
        multiple: eager works where the length is a multiple of this only; 1: of any.
        rungs: the export ladder.
        specialisations, breaks: what became constant; where tracing leaves the graph.
        graph: ``dynamic``, ``static`` or None: which graph the rest is about.
        graph_sizes: the sizes that a static graph is for.
        operators, modules, kernels, kept: what the graph consists of.
        generated: number of kernels that Inductor generates; None: no code was generated.
        code_failure: why Inductor can't generate code; None: it can, or wasn't asked to.
        buckets: figures by bucket, ascending.
        memory, peak_tensors: over the program, and at its peak, at the largest bucket.
        compared: the two lengths whose graphs were compared.
        differences: what their graphs don't share.
        follow: sizes in the graphs that follow the length, and so are no difference.
        padding: what padding does to the outputs; None: not known.
        padding_safe: whether it leaves them; None: not known.
        notes: what was left out, and why.
    """

    model: str
    target: str
    precision: str
    verdict: str
    findings: tuple[Finding, ...] = ()
    length_axis: str | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    eager: tuple[EagerFailure, ...] = ()
    multiple: int = 1
    rungs: tuple[RungResult, ...] = ()
    specialisations: tuple[Specialisation, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    graph: str | None = None
    graph_sizes: Mapping[str, int] = field(default_factory=dict)
    operators: tuple[OperatorUse, ...] = ()
    modules: tuple[ModuleUse, ...] = ()
    kernels: tuple[KernelUse, ...] = ()
    kept: tuple[Kept, ...] = ()
    generated: int | None = None
    code_failure: CodegenFailure | None = None
    buckets: tuple[BucketFigures, ...] = ()
    memory: tuple[MemoryPoint, ...] = ()
    peak_tensors: tuple[LiveTensor, ...] = ()
    compared: tuple[int, int] | None = None
    differences: tuple[Difference, ...] = ()
    follow: int = 0
    padding: str | None = None
    padding_safe: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The verdict in words."""
        return VERDICTS[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types, as docs/explain.md describes it."""
        values = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        return {"version": _VERSION, "summary": self.summary, **values}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
