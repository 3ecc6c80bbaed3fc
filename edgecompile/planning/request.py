"""The request for a plan: its traffic, its bounds and where its costs come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgecompile.backends import NATIVE, RUNTIMES
from edgecompile.buckets.limits import BucketLimits
from edgecompile.buckets.plan import BucketPlan
from edgecompile.errors import UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.models.samples import SampleTexts
from edgecompile.precision import FP32, PRECISIONS
from edgecompile.targets.gpu import GPU_PRECISION, GPU_PRECISIONS
from edgecompile.targets.profile import TargetProfile

__all__ = ["AUTO_PRECISION", "MODES", "PlanRequest"]

#: Chooses the precision by trial.
AUTO_PRECISION = "auto"
MODES = ("auto", "exact", "pad")


@dataclass(frozen=True)
class PlanRequest:
    """Everything that decides a plan beside the model and the target.

    Attributes:
        lengths: the traffic. None: every batch size once, for a model of which nothing else varies.
        joint: its sizes on the length axis and another one, for a plan over both.
        buckets: exact number of programs.
        max_buckets: largest number of programs.
        max_length: longest length to serve; None: the model's own limit, or the longest seen.
        cut: whether longer inputs are texts, which the device's ``encode_texts`` cuts: then they
            count as the longest length served. Other inputs over the model's limit are refused.
        mode: ``exact``, ``pad``, or ``auto``: whatever costs less, bucket by bucket.
        price_per_bucket: milliseconds of the mean run that a bucket has to save; None: what
            ``runs`` makes it, or what the measurement can tell from noise, 1 to 5 % of the mean run.
        runs: how many runs the bundle will serve, for a price from what a bucket takes.
        max_size: bytes that the bundle may have.
        max_build_s: seconds that the build may take.
        calibration: file of the costs that a device measured; None: measure here.
        threads: threads to measure with; None: all that the process may use.
        jobs: programs to compile side by side; None: one for each CPU.
        precision: data type of the linear layers' weights on a CPU (fp32, bf16, int8), or ``auto``,
            the fastest that stays within ``max_error``; compute type of a GPU (fp32, fp16, int8).
            None: fp32 on CPUs, fp16 on GPUs.
        max_error: largest difference that ``auto`` may cause, as a share of an output's scale; None:
            the default bound.
        texts: real texts to try and verify with.
        seed: of all inputs that are drawn.
        runtime: what runs the programs on a CPU: ``native``, the library that comes with them; or
            ``torch``, for models with kernels that it lacks, on hosts that have torch.
        measure_again: measure here also what was measured before.
        quick: one program for all lengths, dynamic if the model can be; nothing is measured.
        plan: take these buckets, if they fit; nothing is measured.
        assume_paddable: take padding for harmless where it changes nothing in trials, but nothing
            proves it.

    Raises:
        UsageError: options contradict each other.
        PlanError: more ``buckets`` are asked for than ``max_buckets`` allows.
    """

    lengths: LengthDistribution | None
    joint: JointDistribution | None = None
    buckets: int | None = None
    max_buckets: int | None = None
    max_length: int | None = None
    cut: bool = False
    mode: str = "auto"
    price_per_bucket: float | None = None
    runs: float | None = None
    max_size: int | None = None
    max_build_s: float | None = None
    calibration: Path | None = None
    threads: int | None = None
    jobs: int | None = None
    precision: str | None = None
    max_error: float | None = None
    texts: SampleTexts | None = None
    seed: int = 0
    runtime: str = NATIVE
    measure_again: bool = False
    quick: bool = False
    plan: BucketPlan | None = None
    assume_paddable: bool = False

    def __post_init__(self) -> None:
        BucketLimits().most(self.max_buckets, self.buckets)
        if self.mode not in MODES:
            raise UsageError(f"there is no mode '{self.mode}': one of {', '.join(MODES)}")
        if self.runtime not in RUNTIMES:
            raise UsageError(f"there is no runtime '{self.runtime}': one of {', '.join(RUNTIMES)}")
        if self.max_error is not None and self.precision != AUTO_PRECISION:
            raise UsageError("--max-error goes with --precision auto.")
        self._check_decided()

    def _check_decided(self) -> None:
        """Refuses options that would decide what is decided already."""
        deciding = {
            "--buckets": self.buckets,
            "--max-buckets": self.max_buckets,
            "--max-size": self.max_size,
            "--max-build-time": self.max_build_s,
            "--price-per-bucket": self.price_per_bucket,
            "--runs": self.runs,
            "--calibration": self.calibration,
            "--measure-again": self.measure_again or None,
        }
        fixed = ["--plan"] if self.plan is not None else []
        fixed += ["--quick"] if self.quick else []
        others = fixed[1:] + [name for name, value in deciding.items() if value is not None]
        if self.plan is not None and self.mode != "auto":
            others.append("--mode")
        if fixed and others:
            raise UsageError(
                f"{', '.join(others)}: {fixed[0]} leaves nothing to choose. Give one or the other."
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

    def precision_for(self, profile: TargetProfile) -> str:
        """The precision that was asked for, or the target's default."""
        return self.precision or (FP32.name if profile.gpu is None else GPU_PRECISION)

    def check_target(self, profile: TargetProfile) -> None:
        """Refuses what the target doesn't support.

        Raises:
            UsageError: the precision or the runtime.
        """
        gpu = profile.gpu is not None
        known = GPU_PRECISIONS if gpu else (*PRECISIONS, AUTO_PRECISION)
        precision = self.precision_for(profile)
        if precision not in known:
            raise UsageError(
                f"Target {profile.name} does not support --precision {precision}. "
                f"Choose {', '.join(known[:-1])} or {known[-1]}."
            )
        if self.runtime == NATIVE:
            return
        if gpu:
            raise UsageError(f"--runtime {self.runtime} is for CPUs, and {profile.name} has a GPU.")
        if precision != FP32.name:
            raise UsageError(
                f"--runtime {self.runtime} does not support --precision {precision}. Choose fp32."
            )
