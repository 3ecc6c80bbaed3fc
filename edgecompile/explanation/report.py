"""The values that ``edgecompile explain`` reports; docs/explain.md has their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgecompile.backends.inductor.failures import CodegenFailure
from edgecompile.models.source_lines import SourceLine

_VERSION = 2

#: What a model comes to, the best first.
VERDICTS: Mapping[str, str] = {
    "dynamic": "compiles: one program serves every length",
    "ranges": "compiles as several programs, each for some of the lengths",
    "padded": "compiles as padded buckets, one program for each length",
    "static": "exports for one length at a time, and padding changes its outputs or may do so",
    "missing-kernels": "exports, but calls kernels that the native runtime lacks",
    "no-code": "exports, but torch's Inductor can't generate code for it",
    "refused": "can't be exported",
    "unfit": "isn't a function of its inputs",
    "eager-fails": "fails in eager, before anything is compiled",
}


@dataclass(frozen=True)
class Cause:
    """Why a model is refused or slow; ``kind`` is refused, limit, slow or note."""

    kind: str
    text: str
    cure: str = ""
    place: SourceLine | None = None


@dataclass(frozen=True)
class EagerFailure:
    """Sizes at which the eager model fails; the calls that led there, outermost first."""

    sizes: Mapping[str, int]
    text: str
    calls: tuple[SourceLine, ...] = ()


@dataclass(frozen=True)
class EagerFindings:
    """The sizes at which the eager model works.

    Attributes:
        failures: sizes at which it fails.
        ranges: [smallest, largest] size by axis within which it works; None: it fails everywhere.
        multiple: it works only where the length is a multiple of this; 1: at any.
    """

    failures: tuple[EagerFailure, ...] = ()
    ranges: Mapping[str, tuple[int, int]] | None = None
    multiple: int = 1


@dataclass(frozen=True)
class Condition:
    """A condition that tracing puts on sizes, such as ``length % 16 == 0``, and its line."""

    text: str
    place: SourceLine | None = None


@dataclass(frozen=True)
class ExportAttempt:
    """The result of one export strategy.

    Attributes:
        strategy: its name.
        outcome: ``accepted``; ``refused`` by torch; ``specialised`` (a size became a constant);
            ``narrower`` (fewer sizes than asked for); ``wrong`` at some sizes; ``unchecked`` (eager
            fails at some); ``not tried``.
        text: the text in words.
        conditions: the conditions of tracing on sizes.
        place: the line behind it, where torch names one.
        ranges: smallest and largest size that the program takes, by axis.
        wrong: (sizes, what happened) where its results aren't eager's.
        right: sizes where they are.
        max_error: largest difference there, relative to an output's scale.
    """

    strategy: str
    outcome: str
    text: str = ""
    conditions: tuple[Condition, ...] = ()
    place: SourceLine | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    wrong: tuple[tuple[Mapping[str, int], str], ...] = ()
    right: tuple[Mapping[str, int], ...] = ()
    max_error: float | None = None


@dataclass(frozen=True)
class FixedAxis:
    """An axis that became a constant, in which strategies, and the line that fixes it."""

    axis: str
    size: int
    strategies: tuple[str, ...]
    place: SourceLine | None = None


@dataclass(frozen=True)
class GraphBreak:
    """A place where torch.compile would leave the graph, and the reason."""

    reason: str
    place: SourceLine | None = None


@dataclass(frozen=True)
class ExportFindings:
    """The results of exporting the model.

    Attributes:
        attempts: the attempts of the export strategies, in their order.
        fixed_axes: axes that became constants.
        breaks: the places where tracing leaves the graph.
        padding: the effect of padding on the outputs; None: not known.
        padding_safe: whether it leaves them as they are; None: not known.
        sides: lengths with a program each, where no program serves all lengths and these do: the
            smallest, the largest, and the step between neighbours if it isn't 1.
    """

    attempts: tuple[ExportAttempt, ...] = ()
    fixed_axes: tuple[FixedAxis, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    padding: str | None = None
    padding_safe: bool | None = None
    sides: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class KernelUse:
    """A kernel that the program calls.

    Attributes:
        kernel: ``ec_linear``, ``addmm_out``, …; an operator's name for what has no C interface.
        kind: ``own`` (made for packed weights and fused operations), ``generic`` (the runtime has
            it) or ``missing``.
        calls: the number of calls.
        flops: operations of one run at the largest sizes, where a call is known by its node.
        modules: kinds of modules that it comes from.
        places: lines of the model.
    """

    kernel: str
    kind: str
    calls: int
    flops: int
    modules: tuple[str, ...]
    places: tuple[SourceLine, ...]


@dataclass(frozen=True)
class Unlowered:
    """A product or an attention that wasn't lowered to a kernel of the runtime, and why."""

    operator: str
    reason: str
    module: str
    flops: int
    place: SourceLine | None = None


@dataclass(frozen=True)
class ProgramFindings:
    """The kernels that the exported graph becomes.

    Attributes:
        graph: ``dynamic``, ``static`` or None: which graph the rest is about.
        sizes: the sizes that a static graph is for.
        kernels: the kernels that the generated code calls.
        unlowered: candidates that were left to the code generator.
        generated: number of kernels that Inductor generates; None: no code was generated.
        code_failure: the reason why Inductor can't generate code; None: it can, or wasn't asked to.
    """

    graph: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    kernels: tuple[KernelUse, ...] = ()
    unlowered: tuple[Unlowered, ...] = ()
    generated: int | None = None
    code_failure: CodegenFailure | None = None


@dataclass(frozen=True)
class RunFigures:
    """The work of one run.

    Attributes:
        sizes: the size of every axis.
        flops: a multiply-add counts as two.
        weight_bytes: weights read, in the precision they are stored in.
        moved: bytes moved if generated code fuses all between two kernels, weights included.
        limit: ``arithmetic`` or ``memory``, what binds on the target; None: its profile doesn't say.
        least_ms: milliseconds of that limit: no run can be faster.
    """

    sizes: Mapping[str, int]
    flops: int
    weight_bytes: int
    moved: int
    limit: str | None
    least_ms: float | None


@dataclass(frozen=True)
class ModuleTime:
    """A kind of module (``encoder.layer.*.attention``) in the run at the largest sizes.

    Attributes:
        module: its path with ``*`` for numbers; "" is the model itself.
        flops, moved: the figures of :class:`RunFigures`.
        share: the share of the run's least time on the target; None where its profile lacks
            figures.
    """

    module: str
    flops: int
    moved: int
    share: float | None


@dataclass(frozen=True)
class TimeFindings:
    """The distribution of time: the work of a run at several lengths, ascending, and of the last by module."""

    runs: tuple[RunFigures, ...] = ()
    modules: tuple[ModuleTime, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Why a model is refused or slow.

    Parts that couldn't be looked at are empty, and ``notes`` says why.

    Attributes:
        model: its name, or the specification if it couldn't be loaded.
        target, precision: the target and the precision that it was examined for.
        verdict: a key of :data:`VERDICTS`.
        causes: the gravest first.
        length_axis: the axis of the lengths; None: there is none.
        eager, export, program, time: the findings.
        notes: the parts that were left out, and why.
    """

    model: str
    target: str
    precision: str
    verdict: str
    causes: tuple[Cause, ...] = ()
    length_axis: str | None = None
    eager: EagerFindings = field(default_factory=EagerFindings)
    export: ExportFindings = field(default_factory=ExportFindings)
    program: ProgramFindings = field(default_factory=ProgramFindings)
    time: TimeFindings = field(default_factory=TimeFindings)
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The verdict in words."""
        return VERDICTS[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold, as docs/explain.md describes it."""
        return {"version": _VERSION, "summary": self.summary, **asdict(self)}
