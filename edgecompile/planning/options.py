"""Options in groups: the bounds of a plan, and how programs are compiled, run and packed.

The Python interface takes them as they are, the command line makes them, and requests inherit them.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgecompile import checks
from edgecompile.backends import AUTO, BACKENDS, CPU, LOCAL, PLACES
from edgecompile.errors import UsageError
from edgecompile.precision import MOST_PERPLEXITY_RATIO
from edgecompile.runtime.format.manifest.schema import TORCH
from edgecompile.units import parse_bytes, parse_duration

MODES = ("auto", "exact", "pad")
#: The backends that the option ``runtime`` named, which ``backend`` replaces.
_RUNTIMES = {"native": CPU, "torch": TORCH}
#: Of programs for a GPU: as many as there are rules for their tiles beside the first.
MOST_ALTERNATIVES = 3
MOST_TEXTS = 8
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

    @property
    def noise_decides(self) -> bool:
        """Whether there is a price of a bucket that follows the spread of the measured times."""
        return self.buckets is None and self.price_per_bucket is None and self.runs is None


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options for compiling, running and packing programs.

    A plan uses the first five, ``seed`` and ``backend``, and ``profile`` for its batches. It only checks that the
    others fit the target.

    Attributes:
        max_error: the largest difference from eager that ``precision="auto"`` may cause, as a share
            of an output's largest magnitude (0 to 1); None: 0.02.
        max_perplexity_ratio: the largest perplexity that narrow weights of a language model may have on
            texts, as a multiple of the original's (over 1); None: 1.002, and 1.06 for int4.
        threads: threads to measure with; None: every CPU that the process may use.
        jobs: programs to compile at once; None: one for each CPU.
        on: the place where programs for CPUs are compiled: here (``"local"``), or on the machines
            of the Ray cluster at RAY_ADDRESS (``"ray"``).
        seed: random seed of verification inputs.
        backend: compiler and runtime of the model. On a CPU: programs that call the library in the bundle
            (``"cpu"``), or torch's kernels on hosts that have the same torch (``"torch"``). On a GPU: an engine of
            TensorRT that the device builds (``"tensorrt"``); or programs that are compiled here, without
            TensorRT (``"triton"``); or such programs beside the recipe of an engine, of which the device
            takes what is there and measured faster (``"both"``).
            ``"auto"`` is ``"cpu"``, or ``"tensorrt"`` where the target has a GPU.
        alternatives: further programs for each bucket of a GPU, with other tiles, of which the device's
            ``tune`` takes the fastest (0 to 3); each takes about as long to build as the first, and 1 MB of the bundle.
        fallback: Whether a bundle for a GPU also gets programs for its machine's own cores, with their
            weights. They serve where the GPU can't; they take most of the time of a first build.
        jetpack: the JetPack release of a Jetson; None: the first that the target names, and the one
            before of the same major where its TensorRT takes the model.
        emulation: verify variants that this machine can't run under qemu, where it is installed.
        keep_tokenizer: put the model's tokenizer into the bundle, if it has one.
        prefix: path of a prompt that texts of a language model begin with, as a text or, in a ``.json`` file,
            a list of messages. The bundle holds its caches, so that no device runs it.
        texts_at_once: the largest number of texts of a language model (2 to 8) to which a server gives a token
            in one run; None: each text is run alone.
        profile: ``"server"`` lets batches of 1 to 32 run, measures what they cost on parts of the
            CPUs, and writes that into the bundle; ``"device"`` is for single runs.
        runtime: deprecated name of ``backend``: ``"native"`` is ``"cpu"``. It is None once it was read.

    Raises:
        UsageError: a value is of the wrong type or out of its range, or ``runtime`` contradicts ``backend``.

    Example:
        >>> BuildOptions(threads=2, seed=7)
    """

    max_error: float | None = None
    max_perplexity_ratio: float | None = None
    threads: int | None = None
    jobs: int | None = None
    on: str = LOCAL
    seed: int = 0
    backend: str = AUTO
    alternatives: int = 0
    fallback: bool = True
    jetpack: str | None = None
    emulation: bool = True
    keep_tokenizer: bool = True
    prefix: Path | None = None
    texts_at_once: int | None = None
    profile: str = DEVICE
    runtime: str | None = None

    def __post_init__(self) -> None:
        checks.settle(
            self,
            max_error=partial(checks.number, least=1e-12, most=1),
            max_perplexity_ratio=partial(checks.number, least=1 + 1e-9, most=MOST_PERPLEXITY_RATIO),
            threads=checks.whole,
            jobs=checks.whole,
            on=partial(checks.choice, choices=PLACES),
            seed=checks.seed,
            backend=partial(checks.choice, choices=BACKENDS),
            alternatives=partial(checks.whole, least=0, most=MOST_ALTERNATIVES),
            fallback=checks.flag,
            jetpack=partial(checks.text, form='a release, such as "6.2"'),
            emulation=checks.flag,
            keep_tokenizer=checks.flag,
            prefix=checks.path,
            texts_at_once=partial(checks.whole, least=2, most=MOST_TEXTS),
            profile=partial(checks.choice, choices=PROFILES),
        )
        if self.runtime is not None:
            object.__setattr__(self, "backend", join_runtime(self.runtime, self.backend))
            text = f'`runtime` is deprecated: give `backend="{_RUNTIMES[self.runtime]}"`'
            warnings.warn(text, DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "runtime", None)  # so that a copy doesn't warn again


def join_runtime(runtime: str, backend: str) -> str:
    """The backend that the old option ``runtime`` means beside the option ``backend``.

    Raises:
        UsageError: there is no such runtime, or the two contradict each other.
    """
    checks.choice("runtime", runtime, tuple(_RUNTIMES))
    named = _RUNTIMES[runtime]
    if backend not in (AUTO, named):
        raise UsageError(
            f"`runtime={runtime}` and `backend={backend}` contradict each other",
            hint="give `backend` alone: `runtime` is its old name",
        )
    # A native runtime was the default of every target, those with a GPU included.
    return backend if named == CPU else named
