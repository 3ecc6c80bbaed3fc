"""Calibration bundles: a few programs, and the sizes to run them at, to find out a model's costs.

Such a bundle is an ordinary one with an unusual set of buckets: one dynamic program for the whole
range, or for each side of the model's conditions on the length, and static programs of a few lengths beside it. Its ``plan`` lists the runs that the
runtime's ``bench --calibrate`` makes, on this machine or on the device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel, CompileOptions, compile_buckets
from edgecompile.buckets.costs.grid import Mode
from edgecompile.buckets.limits import BucketCost
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle.assembly import stage_calibration_bundle
from edgecompile.export.store import export_buckets
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.planning.scope import PlanScope
from edgecompile.planning.subject import Subject
from edgecompile.precision import FP32, Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.targets.profile import TargetProfile, VariantSpec

# A static program has to be compiled for each size, so there are few: where most traffic lies, in
# its tail, and the longest.
_STATIC_QUANTILES = (0.25, 0.6, 0.9)
_STATIC_QUANTILES_JOINT = (0.5,)


@dataclass(frozen=True)
class CalibrationSpec:
    """Programs, and at which sizes to run each.

    Attributes:
        buckets: the programs; they overlap.
        runs: (index of the bucket, size of every axis).
        telling: the number of programs, from the first one on, whose times may tell enough already.
    """

    buckets: tuple[Bucket, ...]
    runs: tuple[tuple[int, Mapping[str, int]], ...]
    telling: int = 0

    @property
    def beginning(self) -> CalibrationSpec:
        """The telling programs and their runs: the whole where nothing can be left out."""
        if not 0 < self.telling < len(self.buckets):
            return self
        runs = tuple(run for run in self.runs if run[0] < self.telling)
        return CalibrationSpec(self.buckets[: self.telling], runs)


@dataclass(frozen=True)
class CalibrationBundle:
    """A calibration bundle that can be run, and the cost of its programs."""

    path: Path
    spec: CalibrationSpec
    compiled: CompiledModel
    cost: BucketCost


def choose_sizes(sample: LengthDistribution, lo: int, hi: int, count: int = 9) -> list[int]:
    """Sizes at which to measure a dynamic program: both ends of ``[lo, hi]``, the quantiles where
    traffic lies, and a geometric ladder for the rest, so that interpolation is never far from a
    point.

    Args:
        sample: the traffic.
        lo, hi: the range that will be served.
        count: the approximate number of sizes to choose.
    """
    chosen = {lo, hi}
    for quantile in (0.1, 0.5, 0.9):
        chosen.add(min(hi, max(lo, sample.quantile(quantile))))
    steps = max(2, count - len(chosen))
    for step in range(1, steps):
        chosen.add(max(lo, min(hi, round(lo * (hi / lo) ** (step / steps)))))
    return sorted(chosen)


def choose_calibration(scope: PlanScope, modes: Sequence[Mode]) -> CalibrationSpec:
    """The programs and runs that tell the costs of ``modes``."""
    statics = _static_lengths(scope, alone="exact" not in modes)
    buckets: list[Bucket] = []
    runs: list[tuple[int, Mapping[str, int]]] = []
    if "exact" in modes:
        # The ratio of the modes is known only where both ran.
        for bucket in scope.exact_buckets:
            sizes = _dynamic_sizes(scope, bucket, statics if "pad" in modes else [])
            runs += [(len(buckets), item) for item in sizes]
            buckets.append(bucket)
    telling = 0
    if "pad" in modes:
        if len(buckets) == 1 and scope.second is None:
            # The ratio of the modes at both ends tells most: these programs come first.
            statics = [*dict.fromkeys((statics[0], statics[-1], *statics))]
            telling = len(buckets) + 2
        for bucket, item in _static_programs(scope, statics):
            runs.append((len(buckets), item))
            buckets.append(bucket)
    return CalibrationSpec(tuple(buckets), tuple(runs), telling)


def _dynamic_sizes(
    scope: PlanScope, bucket: Bucket, also: Sequence[int]
) -> list[Mapping[str, int]]:
    """The sizes to run a dynamic program at; those of the lengths ``also`` that it serves among them."""
    count = 9 if scope.second is None else 6
    served = [length for length in also if bucket.lo <= length <= bucket.hi]
    lengths = sorted({*choose_sizes(scope.traffic, bucket.lo, bucket.hi, count), *served})
    fixed = {name: extent.lo for name, extent in scope.axes}
    return [
        {**fixed, scope.axis: length, **other}
        for other in _others(scope, scope.second_sizes())
        for length in lengths
    ]


def _static_programs(
    scope: PlanScope, lengths: Sequence[int]
) -> list[tuple[Bucket, Mapping[str, int]]]:
    """A program for each length and, with a second axis, for both ends of that; with its sizes."""
    whole = scope.axes[0][1]
    fixed = {name: extent.lo for name, extent in scope.axes}
    ends = scope.second_sizes()
    programs: list[tuple[Bucket, Mapping[str, int]]] = []
    for other in _others(scope, ends[:1] + ends[1:][-1:]):
        for length in lengths:
            axes = {scope.axis: AxisRange(whole.lo, length, length), **dict(scope.axes[1:])}
            for name, size in other.items():
                axes[name] = AxisRange(axes[name].lo, size, size)
            bucket = Bucket("pad", tuple(axes.items()), (scope.axis, *other))
            programs.append((bucket, {**fixed, scope.axis: length, **other}))
    return programs


def _others(scope: PlanScope, sizes: Sequence[int]) -> list[dict[str, int]]:
    """The second axis at each of its sizes; one empty choice where there is no second axis."""
    return [{scope.second: size} for size in sizes] if scope.second is not None else [{}]


def _static_lengths(scope: PlanScope, *, alone: bool) -> list[int]:
    """Lengths of the static programs; ``alone``: no dynamic program fills the gaps between."""
    extent = scope.axes[0][1]
    quantiles = _STATIC_QUANTILES if scope.second is None else _STATIC_QUANTILES_JOINT
    chosen = {*(hi for _, hi in scope.sides), *(scope.traffic.quantile(q) for q in quantiles)}
    if alone:
        chosen |= {scope.traffic.min, round((extent.lo * extent.hi) ** 0.5)}
    lengths = sorted({min(max(length, extent.lo), extent.hi) for length in chosen})
    # Lengths that hardly differ cost the same: of such neighbours the longer one stays.
    distinct = [a for a, b in pairwise(lengths) if b >= 1.25 * a and b > a + 1]
    return [*distinct, lengths[-1]]


def build_calibration_bundle(
    subject: Subject,
    spec: CalibrationSpec,
    variants: Sequence[VariantSpec],
    output: Path,
    *,
    precision: Precision = FP32,
    lasting: bool = False,
    step: StepHandle = NULL_STEP,
) -> CalibrationBundle:
    """Exports, compiles and packs a calibration bundle; a plan that needs its programs finds them later.

    Args:
        subject: the model and its target.
        spec: the programs to build.
        variants: the target's variants to build for.
        output: the bundle to write.
        precision: the data type of the linear layers' weights.
        lasting: see :func:`edgecompile.bundle.assembly.stage_calibration_bundle`.
        step: told what is being built.

    Raises:
        ExportError: a program can't be exported.
        CompileError, AuditError, BundleWriteError: it can't be built or written.
    """
    exports, profile = subject.exports, subject.profile
    count = len(spec.buckets)
    started = time.perf_counter()
    # Those that the plan chooses are kept once it is made.
    exported = export_buckets(exports, spec.buckets, keep=False, step=step)
    export_s = time.perf_counter() - started
    step.update(0, count, f"compiling for {', '.join(v.name for v in variants)}")
    compiled = compile_buckets(
        exported,
        spec.buckets,
        profile,
        subject.work / "artifacts",
        CompileOptions(
            variants,
            precision,
            subject.request.backend_for(profile),
            subject.request.jobs,
            subject.request.on,
        ),
        keys=[exports.key(bucket) for bucket in spec.buckets],
        step=step,
    )
    programs = [a for artifacts in compiled.artifacts.values() for a in artifacts]
    seconds = sum(sum(artifact.seconds.values()) for artifact in programs) / len(programs)
    build_s = export_s / count + len(profile.variants) * seconds
    path = stage_calibration_bundle(
        exports.model,
        spec.buckets,
        compiled,
        output,
        spec.runs,
        bucket_build_s=build_s,
        lasting=lasting,
    )
    return CalibrationBundle(path, spec, compiled, _cost(path, profile, compiled, build_s))


def _cost(
    path: Path, profile: TargetProfile, compiled: CompiledModel, build_s: float
) -> BucketCost:
    """The sizes of buckets in a bundle of all the target's variants, from the variants built here."""
    programs = [a for artifacts in compiled.artifacts.values() for a in artifacts]
    sizes = [artifact.library.stat().st_size for artifact in programs]
    native = sum(runtime.path.stat().st_size for runtime in compiled.natives.values())
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    variants, built = len(profile.variants), len(compiled.variants)
    return BucketCost(
        base_size=total - sum(sizes) + round(native * (variants - built) / built),
        bucket_size=round(variants * sum(sizes) / len(sizes)),
        bucket_build_s=build_s,
    )
