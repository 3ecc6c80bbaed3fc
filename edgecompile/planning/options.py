"""Options in groups: the bounds of a plan, and how programs are compiled, run and packed.

The Python interface takes them as they are, the command line makes them, and requests inherit them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from edgecompile import checks
from edgecompile.backends import LOCAL, NATIVE, PLACES, RUNTIMES
from edgecompile.errors import UsageError
from edgecompile.units import parse_bytes, parse_duration

MODES = ("auto", "exact", "pad")
#: What makes a GPU's engine: the device, from the bundle's ONNX; or torch-tensorrt, here and now, for
#: the very GPU of this machine.
#: Or nothing does: Triton's kernels are compiled here, for any GPU of the target's kind; or both, and the
#: device takes what is faster.
AUTO, TORCH_TENSORRT, TRITON, BOTH = "auto", "torch-tensorrt", "triton", "both"
BACKENDS = (AUTO, TORCH_TENSORRT, TRITON, BOTH)
#: Of programs for a GPU: as many as there are rules for their tiles beside the first.
MOST_ALTERNATIVES = 3
#: What the bundle is for: single runs, or a server that runs requests together.
DEVICE, SERVER = "device", "server"
PROFILES = (DEVICE, SERVER)


@dataclass(frozen=True, kw_only=True)
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
        UsageError: a value is of the wrong type or out of its range, or contradicts another.

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
        # Texts become what all else reads.
        checks.settle(
            self,
            buckets=checks.whole,
            max_buckets=checks.whole,
            max_size=partial(checks.quantity, parse=parse_bytes),
            max_build_time=partial(checks.quantity, parse=parse_duration),
            price_per_bucket=partial(checks.number, least=0),
            runs=partial(checks.number, least=1),
            calibration=checks.path,
            measure_again=checks.flag,
            mode=partial(checks.choice, choices=MODES),
            assume_paddable=checks.flag,
        )
        if self.buckets and self.max_buckets and self.buckets > self.max_buckets:
            raise UsageError(
                f"`buckets` is {self.buckets}, but `max_buckets` is {self.max_buckets}",
                hint="leave one of them out",
            )


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How programs are compiled, run and packed.

    A plan needs the first five, of a GPU ``backend``; it ignores the others.

    Attributes:
        max_error: the largest difference from eager that ``precision="auto"`` may cause, as a share
            of an output's largest magnitude (0 to 1); None: 0.02.
        runtime: runs the programs on a CPU: ``"native"``, or ``"torch"`` on hosts that have it.
        threads: threads to measure with; None: every CPU that the process may use.
        jobs: programs to compile at once; None: one for each CPU.
        on: where programs for CPUs are compiled: here (``"local"``), or on the machines of the Ray
            cluster at RAY_ADDRESS (``"ray"``).
        seed: random seed of verification inputs.
        backend: what runs on a GPU: an engine of TensorRT that the device builds (``"auto"``) or this
            machine does (``"torch-tensorrt"``); or programs that are compiled here, without
            TensorRT (``"triton"``); or such programs beside the recipe of an engine, of which the
            device takes what is there and measured faster (``"both"``).
        alternatives: further programs for each bucket of a GPU, with other tiles, of which the device's
            ``tune`` takes the fastest (0 to 3); each takes about as long to build as the first, and 1 MB of the bundle.
        jetpack: the JetPack release of a Jetson; None: the first that the target names.
        emulation: verify variants that this machine can't run under qemu, where it is installed.
        keep_tokenizer: put the model's tokenizer into the bundle, if it has one.
        profile: ``"server"`` lets batches of 1 to 32 run, measures what they cost on parts of the
            CPUs, and writes that into the bundle; ``"device"`` is for single runs.

    Raises:
        UsageError: a value is of the wrong type or out of its range.

    Example:
        >>> BuildOptions(threads=2, seed=7)
    """

    max_error: float | None = None
    runtime: str = NATIVE
    threads: int | None = None
    jobs: int | None = None
    on: str = LOCAL
    seed: int = 0
    backend: str = AUTO
    alternatives: int = 0
    jetpack: str | None = None
    emulation: bool = True
    keep_tokenizer: bool = True
    profile: str = DEVICE

    def __post_init__(self) -> None:
        checks.settle(
            self,
            max_error=partial(checks.number, least=1e-12, most=1),
            runtime=partial(checks.choice, choices=RUNTIMES),
            threads=checks.whole,
            jobs=checks.whole,
            on=partial(checks.choice, choices=PLACES),
            seed=checks.seed,
            backend=partial(checks.choice, choices=BACKENDS),
            alternatives=partial(checks.whole, least=0, most=MOST_ALTERNATIVES),
            jetpack=partial(checks.text, form='a release, such as "6.2"'),
            emulation=checks.flag,
            keep_tokenizer=checks.flag,
            profile=partial(checks.choice, choices=PROFILES),
        )
