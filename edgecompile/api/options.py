"""Options in groups: what bounds a plan, and how a build is done. The names are the command line's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgecompile.api import checks
from edgecompile.errors import UsageError
from edgecompile.models.options import LoadOptions
from edgecompile.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from edgecompile.targets.profile import TargetProfile

__all__ = [
    "BuildOptions",
    "LoadOptions",
    "PlanOptions",
    "check_target",
    "read_batch",
    "read_target",
]

_PRECISIONS = (None, "fp32", "fp16", "bf16", "int8", "auto")


@dataclass(frozen=True)
class PlanOptions:
    """Limits of a plan, and the costs that it is made by.

    Attributes:
        buckets: the exact number of programs; None: as many as pay.
        max_buckets: the largest number of programs; None: 8.
        max_size: the largest size of the bundle in bytes, or a text such as ``"120MB"``.
        max_build_time: the longest time of the build in seconds, or a text such as ``"10min"``.
        price_per_bucket: milliseconds of the mean run that each further bucket has to save; None:
            what measurements can tell from noise, 1 to 5 % of the mean run.
        runs: expected number of runs; a bucket has to save more time over these than it takes to
            build and load.
        calibration: path of the costs that a device measured; None: measure here.
        measure_again: measure also what this machine measured before.
        mode: ``"exact"`` (programs of dynamic length), ``"pad"`` (of fixed length, with padded
            inputs) or ``"auto"``.
        assume_paddable: pad where padding changes nothing in trials, though nothing proves it.

    Raises:
        UsageError: a value is of the wrong type or out of its range.

    Example:
        >>> PlanOptions(max_buckets=4, max_size="120MB")
    """

    buckets: int | None = None
    max_buckets: int | None = None
    max_size: int | str | None = None
    max_build_time: float | str | None = None
    price_per_bucket: float | None = None
    runs: float | None = None
    calibration: str | os.PathLike[str] | None = None
    measure_again: bool = False
    mode: str = "auto"
    assume_paddable: bool = False

    def __post_init__(self) -> None:
        checks.choice("mode", self.mode, ("auto", "exact", "pad"))
        self.fields()

    def fields(self) -> dict[str, Any]:
        """The same as fields of :class:`edgecompile.planning.request.PlanRequest`."""
        return {
            "buckets": checks.whole("buckets", self.buckets),
            "max_buckets": checks.whole("max_buckets", self.max_buckets),
            "max_size": _quantity("max_size", self.max_size, parse_bytes),
            "max_build_s": _quantity("max_build_time", self.max_build_time, parse_duration),
            "price_per_bucket": checks.number("price_per_bucket", self.price_per_bucket, 0),
            "runs": checks.number("runs", self.runs, 1),
            "calibration": checks.path("calibration", self.calibration),
            "measure_again": checks.flag("measure_again", self.measure_again),
            "mode": self.mode,
            "assume_paddable": checks.flag("assume_paddable", self.assume_paddable),
        }

    def given(self) -> list[str]:
        """Names of the options that aren't at their default."""
        plain = PlanOptions()
        return [name for name in vars(self) if getattr(self, name) != getattr(plain, name)]


@dataclass(frozen=True)
class BuildOptions:
    """How programs are compiled, run and packed.

    A plan needs the first five; it ignores the others.

    Attributes:
        max_error: the largest difference from eager that ``precision="auto"`` may cause, as a share
            of an output's largest magnitude (0 to 1); None: 0.02.
        runtime: runs the programs on a CPU: ``"native"``, or ``"torch"`` on hosts that have it.
        threads: threads to measure with; None: every CPU that the process may use.
        jobs: programs to compile at once; None: one for each CPU.
        seed: random seed of verification inputs.
        backend: builds a GPU's engine: ``"auto"`` (the device) or ``"torch-tensorrt"`` (this machine).
        jetpack: the JetPack release of a Jetson; None: the first that the target names.
        emulation: verify variants that this machine can't run under qemu, where it is installed.
        keep_tokenizer: put the model's tokenizer into the bundle, if it has one.

    Raises:
        UsageError: a value is of the wrong type or out of its range.

    Example:
        >>> BuildOptions(threads=2, seed=7)
    """

    max_error: float | None = None
    runtime: str = "native"
    threads: int | None = None
    jobs: int | None = None
    seed: int = 0
    backend: str = "auto"
    jetpack: str | None = None
    emulation: bool = True
    keep_tokenizer: bool = True

    def __post_init__(self) -> None:
        checks.number("max_error", self.max_error, 1e-12, 1)
        checks.choice("runtime", self.runtime, ("native", "torch"))
        checks.whole("threads", self.threads)
        checks.whole("jobs", self.jobs)
        if checks.whole("seed", self.seed, 0) is None:
            raise UsageError("seed is None", hint="give a whole number from 0 up")
        checks.choice("backend", self.backend, ("auto", "torch-tensorrt"))
        if self.jetpack is not None:
            checks.instance("jetpack", self.jetpack, str, 'a release, such as "6.2"')
        checks.flag("emulation", self.emulation)
        checks.flag("keep_tokenizer", self.keep_tokenizer)

    def check_precision(self, precision: str | None) -> None:
        """Refuses a precision that is none, and one that doesn't go with these options.

        Raises:
            UsageError: says which.
        """
        checks.choice("precision", precision, _PRECISIONS)
        if self.max_error is not None and precision != "auto":
            raise UsageError('max_error goes with precision="auto"', hint="leave one of them out")
        if self.runtime == "torch" and precision not in (None, "fp32"):
            raise UsageError(
                f'runtime="torch" does not support precision={precision!r}',
                hint='leave precision out, or give "fp32"',
            )


def read_batch(batch: Any) -> tuple[int, int]:
    """A batch size or a range of them as (smallest, largest).

    Raises:
        UsageError: it is neither.
    """
    sizes = tuple(batch) if isinstance(batch, (tuple, list)) else (batch, batch)
    ok = len(sizes) == 2 and None not in sizes
    low, high = (checks.whole("batch", size) or 0 for size in sizes) if ok else (0, 0)
    if not 1 <= low <= high:
        raise UsageError(
            f"batch is {batch!r}", hint="give a size from 1 up, or (smallest, largest)"
        )
    return low, high


def read_target(target: Any) -> str:
    """The name of a target, or the path of its profile, as text.

    Raises:
        UsageError: it is neither.
    """
    if not isinstance(target, (str, os.PathLike)):
        raise UsageError(
            f"target is {target!r}", hint='give a name, such as "cpu-x86-64", or a TOML file'
        )
    return os.fsdecode(target)


def check_target(target: Any, precision: str | None, options: BuildOptions) -> TargetProfile:
    """The target; refuses what it doesn't support, before anything is read.

    Raises:
        TargetError: there is none of that name.
        UsageError: it is no name, or the precision, the runtime or the JetPack isn't one of the target's.
    """
    from edgecompile.precision import PRECISIONS
    from edgecompile.targets.gpu import GPU_PRECISIONS
    from edgecompile.targets.profile import load_target

    profile = load_target(read_target(target))
    known = (*PRECISIONS, "auto") if profile.gpu is None else GPU_PRECISIONS
    problem = f"target {profile.name} does not support"
    if precision not in (None, *known):
        raise UsageError(f"{problem} precision={precision!r}", hint=f"choose {' or '.join(known)}")
    if options.runtime == "torch" and profile.gpu is not None:
        raise UsageError(f'{problem} runtime="torch", which is for CPUs', hint="leave it out")
    if options.jetpack is not None and options.jetpack not in profile.jetpacks:
        releases = " or ".join(profile.jetpacks)
        hint = f"choose {releases}" if releases else "it is for targets such as jetson-orin"
        raise UsageError(f"{problem} jetpack={options.jetpack!r}", hint=hint)
    return profile


def _quantity(name: str, value: Any, parse: Any) -> Any:
    if isinstance(value, str):
        try:
            return parse(value)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from error
    return checks.number(name, value, 0)
