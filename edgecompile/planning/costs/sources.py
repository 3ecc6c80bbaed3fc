"""Finds a model's costs in the best source that there is.

That is a calibration file of the device, or with ``--on ray`` a measurement on a machine of the cluster that is
the target; else a calibration bundle (:mod:`edgecompile.planning.costs.calibration_bundle`) run by the shipped
runtime on this host; else, where this host can't run the target's code, a roofline. The cost model says which.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import edgecompile
from edgecompile.backends import RAY
from edgecompile.buckets.costs.grid import CostGrid, Mode
from edgecompile.buckets.limits import BucketCost
from edgecompile.errors import CostError, PlanError
from edgecompile.export.workcount import count_work
from edgecompile.hosts.cluster import open_cluster
from edgecompile.models.loaded import model_structure
from edgecompile.planning.costs.cache import cost_key, find_kept, keep_costs
from edgecompile.planning.costs.calibration import Calibration, check_calibration
from edgecompile.planning.costs.calibration_bundle import (
    CalibrationBundle,
    CalibrationSpec,
    build_calibration_bundle,
    choose_calibration,
)
from edgecompile.planning.costs.calibration_files import parse_calibration, read_calibration
from edgecompile.planning.costs.engine_cost import ENGINE_NOTE, engine_cost
from edgecompile.planning.costs.gpu_roofline import MLPERF_RECORD, TENSORRT_8_6, gpu_curve
from edgecompile.planning.costs.lowest import TOLERANCE, lowest_costs
from edgecompile.planning.costs.measure import calibrate, measured_costs
from edgecompile.planning.costs.remote import calibrate_there, target_resource
from edgecompile.planning.costs.roofline import modelled_curve
from edgecompile.planning.scope import PlanScope
from edgecompile.planning.subject import Subject
from edgecompile.precision import FP32, INT8, Precision
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.runtime.format.manifest.schema import TRITON
from edgecompile.targets.gpu import GPU_PRECISION
from edgecompile.targets.profile import VariantSpec

_MODELLED_POINTS = 64


@dataclass(frozen=True)
class Costs:
    """Costs, and where they come from.

    Attributes:
        model: milliseconds by size and mode.
        scope: the sizes that can be served; narrower than requested where the model allows less.
        cost: the cost of a bucket.
        measured: the programs that were timed here, if any were.
        calibration: their times.
    """

    model: CostGrid
    scope: PlanScope
    cost: BucketCost = field(default_factory=BucketCost)
    measured: CalibrationSpec | None = None
    calibration: Calibration | None = None

    def lowest(self) -> Costs:
        """The same with the lowest costs of static programs that the times allow."""
        assert self.calibration is not None
        return replace(self, model=lowest_costs(self.model, self.calibration))


def find_costs(
    subject: Subject,
    precision: Precision,
    step: StepHandle = NULL_STEP,
    *,
    clear: Callable[[Costs], bool] | None = None,
) -> Costs:
    """The costs of what can be served: measured by a machine of the Ray cluster that is the target, if
    there is one; or here, now or before; or else modelled.

    Args:
        subject: the model and its target.
        precision: the data type of the linear layers' weights.
        step: told what is being done.
        clear: a function that tells from the lowest costs that static programs may have whether one
            dynamic program is best all the same. No more programs are then built to be measured. None:
            all are wanted.

    Raises:
        CostError: the target's profile lacks what a modelled curve needs; or what was measured is
            another machine's.
        VerificationError, ClusterError, MissingDependencyError: it couldn't be measured on the cluster.
        ExportError, CompileError: a program to measure can't be built.
    """
    if subject.request.on == RAY and subject.profile.gpu is None:
        there = _measured_there(subject, precision, step)
        if there is not None:
            return there
    if subject.profile.gpu is not None or not subject.runnable:
        return _modelled(subject, precision)
    serving = subject.serving
    spec = choose_calibration(serving.scope, serving.modes)
    subject.notes.add(serving.note)
    calibration = _find_kept(subject, spec, precision)
    if calibration is None and clear is not None and spec.beginning is not spec:
        costs = _measured(subject, spec.beginning, precision, step)
        if clear(costs.lowest()):
            first, last = (bucket.hi for bucket in spec.beginning.buckets[1:])
            subject.notes.add(
                f"Static programs of the lengths {first} and {last} alone were measured: they save so "
                f"little that padding pays only if one between them is over {TOLERANCE:.0%} faster."
            )
            return costs
    return _measured(subject, spec, precision, step)


def _find_kept(subject: Subject, spec: CalibrationSpec, precision: Precision) -> Calibration | None:
    """Costs that were measured here before, unless they are to be measured again."""
    key = cost_key(subject, spec, subject.runnable[-1], precision)
    return None if key is None or subject.request.measure_again else find_kept(key, spec)


def _measured(
    subject: Subject, spec: CalibrationSpec, precision: Precision, step: StepHandle
) -> Costs:
    """The costs that this machine measures, or measured before."""
    serving, variant = subject.serving, subject.runnable[-1]
    calibration = _find_kept(subject, spec, precision)
    if calibration is None:
        document, cost = _measure(subject, spec, variant, precision, step)
        key = cost_key(subject, spec, variant, precision)
        if key is not None:
            keep_costs(key, document, cost)
        calibration = parse_calibration(
            {**document, "bucket_cost": cost.to_json()}, "the measurement"
        )
    else:
        subject.notes.add(
            f"costs that were measured here on {calibration.date} are used, as long as nobody asks "
            "to measure again"
        )
    model = measured_costs(calibration, "measured", second=serving.scope.second)
    return Costs(model, serving.scope, calibration.bucket_cost, spec, calibration)


def _measured_there(subject: Subject, precision: Precision, step: StepHandle) -> Costs | None:
    """As a device calibrates, on a machine of the cluster; None: no machine says that it is the target."""
    name = subject.profile.name
    scratch = subject.work / "calibrated.ecb"
    with open_cluster() as cluster:
        if not cluster.has(target_resource(name)):
            return None
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            built = make_calibration_bundle(subject, precision, scratch, step=step)
            step.update(None, None, "measuring on a machine of the Ray cluster")
            request = subject.request
            document = calibrate_there(
                cluster,
                built.path,
                name,
                request.threads,
                _seconds(built.spec),
                request.noise_decides,
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    subject.notes.add(f"costs were measured on a machine of the Ray cluster that says it is {name}")
    return _calibrated(
        subject, precision, parse_calibration(document, f"the {name} of the cluster")
    )


def _seconds(spec: CalibrationSpec) -> float:
    """The time for measuring."""
    return min(60.0, max(3.0, 0.4 * len(spec.runs)))


def _measure(
    subject: Subject,
    spec: CalibrationSpec,
    variant: VariantSpec,
    precision: Precision,
    step: StepHandle,
) -> tuple[dict[str, Any], BucketCost]:
    """The runtime's measurements of a calibration bundle, and the sizes of buckets."""

    def show(text: str) -> None:
        # "12 rounds, 4 of 6 s"
        match = re.search(r"(\d+) of ([\d.]+) s$", text)
        done, total = (float(match[1]), float(match[2])) if match else (None, None)
        step.update(done, total, f"measuring {len(spec.runs)} sizes: {text}")

    scratch = subject.work / "measured.ecb"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        built = build_calibration_bundle(
            subject, spec, [variant], scratch, precision=precision, step=step
        )
        seconds = _seconds(spec)
        show(f"0 of {seconds:g} s")
        document = calibrate(
            built.path,
            threads=subject.request.threads,
            seconds=seconds,
            noise_decides=subject.request.noise_decides,
            tell=show,
        )
        return document, built.cost
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def calibrated_costs(subject: Subject, precision: Precision, file: str | os.PathLike[str]) -> Costs:
    """The costs that a device measured.

    Raises:
        CostError: they are another model's, machine's or version's; names every difference.
    """
    return _calibrated(subject, precision, read_calibration(file))


def _calibrated(subject: Subject, precision: Precision, calibration: Calibration) -> Costs:
    profile, request, scope = subject.profile, subject.request, subject.scope
    if len({point.bucket for point in calibration.points if point.mode == "exact"}) > 1:
        # Of the model's programs for ranges of lengths, perhaps: no bucket may cross these.
        scope = subject.serving.scope
        _refuse_strided(scope)
    check_calibration(
        calibration,
        structure=model_structure(subject.model),
        target=profile,
        edgecompile_version=edgecompile.__version__,
        threads=request.threads,
        length_axis=scope.axis,
        precision=request.precision_for(profile) if profile.gpu else precision.label,
        triton=request.backend == TRITON,
    )
    # Costs at another batch would make another plan.
    at = {name: extent.lo for name, extent in scope.axes[1:]}
    costs = measured_costs(calibration, "calibrated", second=scope.second, at=at)
    return Costs(_only(costs, request.modes), scope, calibration.bucket_cost)


def _refuse_strided(scope: PlanScope) -> None:
    """Raises a PlanError if remainders of the length decide about the buckets."""
    if scope.strided:
        raise PlanError(
            "the model's code looks at remainders of the length, so it needs a bucket for each of "
            f"{len(scope.strided)} remainders or ranges, and no costs decide about them",
            hint="build it without a calibration",
        )


def _modelled(subject: Subject, weights: Precision) -> Costs:
    profile, request, serving = subject.profile, subject.request, subject.serving
    scope = serving.scope
    extent = scope.axes[0][1]
    span, count = extent.hi - extent.lo, min(extent.hi - extent.lo + 1, _MODELLED_POINTS)
    lengths = [extent.lo + round(i * span / max(1, count - 1)) for i in range(count)]
    # The work is counted for each side of a condition: a fit through several would be of none.
    sides = [
        sorted({lo, hi, *(length for length in lengths if lo <= length <= hi)})
        for lo, hi in scope.sides
    ]
    gpu = profile.gpu is not None
    note = (
        f"this host can't run the code of {profile.name}, so the costs are a roofline of its "
        "profile; measure on the device: "
        + ("finish, " if gpu else "plan --calibration-bundle, ")
        + "bench --calibrate; then plan with that calibration"
        + (f"; {serving.note}" if serving.note else "")
    )
    precision = request.precision_for(profile) if gpu else weights.name
    if not gpu and precision != FP32.name and precision not in dict(profile.peak_gflops):
        note += f"; the profile states no peak for {precision}, so they are those of fp32"
        precision = FP32.name
    subject.notes.add(note)

    engine = request.uses_tensorrt(profile)
    if engine and (request.runs is not None or request.max_build_time is not None):
        subject.notes.add(ENGINE_NOTE)
    stored = 4 * sum(item.numel() for item in subject.model.module.parameters())
    costs: list[BucketCost] = []

    def curve(sizes: dict[str, int]) -> CostGrid:
        parts = [side(sizes, lengths) for lengths in sides]
        return replace(parts[0], points=tuple(point for part in parts for point in part.points))

    def side(sizes: dict[str, int], lengths: list[int]) -> CostGrid:
        work = count_work(subject.model, lengths, sizes=sizes)
        costs.append(engine_cost(work, stored, precision) if engine else BucketCost())
        if gpu:
            one_shape = all(r.lo == r.hi for _, r in scope.axes[1:])
            # Triton's programs store int8 and multiply float16.
            products = GPU_PRECISION if request.backend == TRITON and precision == INT8 else None
            # Of a Jetson the records are of Jetsons.
            own = engine and profile.kind == "cuda" and profile.tensorrt.startswith("8.")
            whole = gpu_curve(
                work,
                profile,
                lengths,
                precision=precision,
                products=products,
                graphs=one_shape,
                efficiency=TENSORRT_8_6[precision] if own else MLPERF_RECORD,
            )
        else:
            whole = modelled_curve(
                work, profile, lengths, precision=precision, threads=request.threads
            )
        return _only(whole, serving.modes)

    fixed = {name: r.lo for name, r in scope.axes[1:]}
    second = scope.second
    if second is None:
        return Costs(curve(fixed), scope, costs[0])
    lines = {size: curve({**fixed, second: size}) for size in scope.second_sizes()}
    provenance = dict(next(iter(lines.values())).provenance)
    return Costs(CostGrid.join((scope.axis, second), lines, provenance), scope, costs[0])


def _only(curve: CostGrid, modes: tuple[Mode, ...]) -> CostGrid:
    """The curve without the costs of other modes.

    Raises:
        CostError: nothing is left.
    """
    if not set(modes) & set(curve.modes):
        raise CostError(
            f"`mode` {' or '.join(modes)}: there are only costs of the mode {curve.modes[0]}",
            hint="calibrate with a bundle made with the same `mode`",
        )
    return curve.only(modes)


def make_calibration_bundle(
    subject: Subject, precision: Precision, output: Path, *, step: StepHandle = NULL_STEP
) -> CalibrationBundle:
    """Writes a bundle for all variants of the target that a device times with
    ``bench --calibrate``; :class:`PlanRequest` then takes the file that it writes.

    Raises:
        As :func:`edgecompile.planning.planning.plan_model`.
    """
    serving = subject.serving
    _refuse_strided(serving.scope)
    spec = choose_calibration(serving.scope, serving.modes)
    variants = subject.profile.variants
    return build_calibration_bundle(
        subject, spec, variants, output, precision=precision, lasting=True, step=step
    )
