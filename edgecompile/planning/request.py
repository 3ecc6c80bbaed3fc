"""The request for a plan: its traffic, its bounds and where its costs come from."""

from __future__ import annotations

from dataclasses import dataclass

from edgecompile import checks
from edgecompile.backends import (
    AUTO,
    CPU,
    CPU_BACKENDS,
    GPU_BACKENDS,
    WITH_TENSORRT,
    WITH_TRITON,
)
from edgecompile.buckets.costs.grid import MODES as COST_MODES
from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.plan import BucketPlan
from edgecompile.errors import UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.models.samples import SampleTexts
from edgecompile.planning.options import SERVER, BuildOptions, PlanOptions
from edgecompile.precision import FP32, PRECISIONS
from edgecompile.runtime.format.manifest.schema import TENSORRT, TORCH, TRITON
from edgecompile.targets.gpu import (
    BOTH_PRECISIONS,
    FP8,
    GPU_PRECISION,
    GPU_PRECISIONS,
)
from edgecompile.targets.profile import TargetProfile

#: Chooses the precision by trial.
AUTO_PRECISION = "auto"
#: Keeps the numbers of a checkpoint that is quantized already.
CHECKPOINT_PRECISION = "checkpoint"
_PRECISIONS = (
    *(None, "fp32", "fp16", "bf16", "int8", "int4", FP8),
    *(AUTO_PRECISION, CHECKPOINT_PRECISION),
)
#: Options that decide what a given plan, or one program for all, has decided already.
_DECIDING = (
    "buckets",
    "max_buckets",
    "max_size",
    "max_build_time",
    "price_per_bucket",
    "runs",
    "calibration",
    "measure_again",
)


@dataclass(frozen=True)
class PlanRequest(PlanOptions, BuildOptions):
    """Everything that decides a plan beside the model and the target; the options included.

    Attributes:
        lengths: the traffic. None: every batch size once, for a model of which nothing else varies.
        joint: its sizes on the length axis and another one, for a plan over both.
        texts: real texts to try and verify with.
        cut: whether longer inputs are texts, which the device's ``encode_texts`` cuts: then they
            count as the longest length served. Other inputs over the model's limit are refused.
        max_length: longest length to serve; None: the model's own limit, or the longest seen.
        precision: data type of the linear layers' weights on a CPU (fp32, bf16, int8, of language models
            int4), or ``auto``, the fastest that stays within ``max_error`` or ``max_perplexity_ratio``, or ``checkpoint``,
            that of a quantized checkpoint's own numbers; compute type of a GPU (fp32, fp16, with Triton bf16), or int8:
            with TensorRT products of int8, with Triton weights of int8, or fp8 there.
            None: fp32 on CPUs, ``checkpoint`` there for quantized checkpoints; fp16 on GPUs.
        quick: one program for all lengths, dynamic if the model can be; nothing is measured.
        plan: take these buckets, if they fit; nothing is measured.

    Raises:
        UsageError: options contradict each other.
    """

    lengths: LengthDistribution | None
    joint: JointDistribution | None = None
    texts: SampleTexts | None = None
    cut: bool = False
    max_length: int | None = None
    precision: str | None = None
    quick: bool = False
    plan: BucketPlan | None = None

    def __post_init__(self) -> None:
        PlanOptions.__post_init__(self)
        BuildOptions.__post_init__(self)
        checks.whole("max_length", self.max_length)
        checks.choice("precision", self.precision, _PRECISIONS)
        checks.flag("quick", self.quick)
        if self.max_error is not None and self.precision != AUTO_PRECISION:
            raise UsageError("`max_error` goes with `precision` auto", hint="leave one of them out")
        if self.max_perplexity_ratio is not None and self.precision in (None, FP32.name):
            raise UsageError(
                "`max_perplexity_ratio` goes with narrow weights of a language model",
                hint='give `precision="int8"`, `"bf16"` or `"auto"` too, or leave it out',
            )
        fixed = [name for name in ("plan", "quick") if getattr(self, name)]
        default = vars(PlanOptions)
        others = fixed[1:] + [name for name in _DECIDING if getattr(self, name) != default[name]]
        if self.plan is not None and self.mode != "auto":
            others.append("mode")
        if fixed and others:
            names = ", ".join(f"`{name}`" for name in others)
            raise UsageError(
                f"{names}: `{fixed[0]}` leaves nothing to choose", hint="give one or the other"
            )

    @property
    def traffic(self) -> LengthDistribution:
        """The lengths, once they are known."""
        assert self.lengths is not None
        return self.lengths

    @property
    def sizes(self) -> LengthDistribution | JointDistribution:
        """The traffic over both axes, where the sample has two."""
        return self.joint or self.traffic

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that the plan may choose from."""
        return tuple(mode for mode in COST_MODES if self.mode in (mode, "auto"))

    def precision_for(self, profile: TargetProfile) -> str:
        """The precision that was asked for, or the target's default."""
        return self.precision or (FP32.name if profile.gpu is None else GPU_PRECISION)

    def backend_for(self, profile: TargetProfile) -> str:
        """The backend that was asked for, or the target's default."""
        if self.backend != AUTO:
            return self.backend
        return CPU if profile.gpu is None else TENSORRT

    def uses_tensorrt(self, profile: TargetProfile) -> bool:
        """Whether TensorRT builds an engine of the model, on the device or here."""
        return self.backend_for(profile) in WITH_TENSORRT

    def check_target(self, profile: TargetProfile) -> None:
        """Refuses what the target doesn't support.

        Raises:
            UsageError: the precision, the backend or the JetPack.
            TargetError: Triton makes no code for its GPU.
        """
        gpu, precision = profile.gpu is not None, self.precision_for(profile)
        if gpu and self.profile == SERVER:
            raise UsageError(
                f"Target {profile.name} has a GPU: `profile` server is for CPUs",
                hint="leave it out",
            )
        if gpu and self.max_perplexity_ratio is not None:
            raise UsageError(
                f"Target {profile.name} has a GPU: `max_perplexity_ratio` is for weights of CPUs",
                hint="leave it out",
            )
        if self.prefix is not None and self.backend_for(profile) != CPU:
            raise UsageError(
                f"`prefix` needs `backend` {CPU}: elsewhere caches can't be filled from a file",
                hint="leave it out",
            )
        if self.texts_at_once is not None and self.backend_for(profile) != CPU:
            raise UsageError(
                f"`texts_at_once` needs `backend` {CPU}: elsewhere texts have caches that no other run may use",
                hint="leave it out",
            )
        precisions: tuple[str, ...] = (
            GPU_PRECISIONS if gpu else (*PRECISIONS, AUTO_PRECISION, CHECKPOINT_PRECISION)
        )
        if profile.gpu is not None and self.backend in WITH_TRITON:
            of_triton = profile.gpu.triton_precisions
            precisions = of_triton if self.backend == TRITON else BOTH_PRECISIONS
            _ = profile.gpu.facts
        if self.alternatives and self.backend not in WITH_TRITON:
            raise UsageError(
                "`alternatives` are of the programs that `backend` triton makes",
                hint="leave it out, or choose `backend` triton or both",
            )
        if not (gpu or self.fallback):
            raise UsageError(
                f"Target {profile.name} has no GPU: `fallback` is about the cores beside one",
                hint="leave it out",
            )
        of_torch = self.backend == TORCH and not gpu
        for option, value, choices in (
            ("precision", precision, (FP32.name,) if of_torch else precisions),
            ("jetpack", self.jetpack, (None, *profile.jetpacks)),
            ("backend", self.backend, (AUTO, *(GPU_BACKENDS if gpu else CPU_BACKENDS))),
        ):
            if value not in choices:
                names = [choice for choice in choices if choice is not None]
                cause = ""
                if option == "precision" and (of_torch or self.backend in WITH_TRITON):
                    cause = f" with `backend` {self.backend}"
                if profile.gpu is not None and value == FP8 and self.backend == TRITON:
                    cause += (
                        ": products of fp8 need compute capability 8.9 or later, its code is for "
                        + ", ".join(profile.gpu.cubins or (profile.gpu.compute_capability,))
                    )
                raise UsageError(
                    f"Target {profile.name} does not support `{option}` {value}{cause}",
                    hint=f"choose {' or '.join(names)}"
                    if names
                    else "leave it out: it is for targets such as jetson-orin",
                )
