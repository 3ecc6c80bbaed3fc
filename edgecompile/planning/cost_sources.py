"""The costs of a model, from the best source that there is.

A calibration file of the device; else a measuring kit (:mod:`edgecompile.planning.kits`) run by the shipped
runtime on this host; else, where this host can't run the target's code, a roofline. The cost model
says which.
"""

from __future__ import annotations

import platform
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edgecompile
from edgecompile.buckets.costs.grid import MODES, CostGrid, Mode
from edgecompile.buckets.limits import BucketCost
from edgecompile.errors import CostError
from edgecompile.export.store import ExportStore
from edgecompile.export.workcount import count_work
from edgecompile.machines.detection import host_variants
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.structure import model_structure
from edgecompile.planning.calibration import check_calibration
from edgecompile.planning.calibration_files import parse_calibration, read_calibration
from edgecompile.planning.cost_cache import cost_key, find_kept, keep_costs
from edgecompile.planning.forms import Form, find_form
from edgecompile.planning.gpu_roofline import gpu_curve
from edgecompile.planning.kits import BuiltKit, KitScope, MeasuringKit, build_kit, make_kit
from edgecompile.planning.measure import calibrate, measured_costs
from edgecompile.planning.request import PlanRequest, plan_scope
from edgecompile.planning.roofline import modelled_curve
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.runtime.cpu.host import architecture
from edgecompile.targets.profile import TargetProfile, VariantSpec
from edgecompile.toolchain.native import build_probe

__all__ = ["Costs", "calibrated_costs", "find_costs", "make_measuring_kit", "runnable_variants"]

_MODELLED_POINTS = 64


@dataclass(frozen=True)
class Costs:
    """Costs, and where they come from.

    Attributes:
        model: milliseconds by size and mode.
        scope: what can be served; narrower than what was asked about where the model allows less.
        cost: what buckets take.
        kit: what was measured here, if it was.
        notes: what a person should know of the source.
    """

    model: CostGrid
    scope: KitScope
    cost: BucketCost = field(default_factory=BucketCost)
    kit: MeasuringKit | None = None
    notes: tuple[str, ...] = ()


def find_costs(
    exports: ExportStore,
    profile: TargetProfile,
    request: PlanRequest,
    form: Form,
    work: Path,
    step: StepHandle,
) -> Costs:
    """The costs of what can be served: measured here, now or before, or else modelled.

    Raises:
        CostError: the target's profile lacks what a modelled curve needs.
        ExportError, CompileError: a program to measure can't be built.
    """
    runnable = [] if profile.gpu is not None else runnable_variants(profile, work)
    if not runnable:
        return _modelled(exports.model, profile, request, form)
    kit, variant = make_kit(form.scope, form.modes), runnable[-1]
    key = cost_key(exports, kit, profile, variant, request)
    calibration = None if key is None or request.measure_again else find_kept(key, kit)
    reused = ""
    if calibration is None:
        document, cost = _measure(exports, profile, request, kit, variant, work, step)
        if key is not None:
            keep_costs(key, document, cost)
        calibration = parse_calibration(
            {**document, "bucket_cost": cost.to_json()}, "the measurement"
        )
    else:
        reused = f"costs that were measured here on {calibration.date} are used; --measure-again repeats it"
    model = measured_costs(calibration, "measured", second=form.scope.second)
    notes = tuple(note for note in (form.note, reused) if note)
    return Costs(model, form.scope, calibration.bucket_cost, kit, notes)


def _measure(
    exports: ExportStore,
    profile: TargetProfile,
    request: PlanRequest,
    kit: MeasuringKit,
    variant: VariantSpec,
    work: Path,
    step: StepHandle,
) -> tuple[dict[str, Any], BucketCost]:
    """The runtime's measurements of a kit, and the cost of buckets."""

    def tell(text: str) -> None:
        # "12 rounds, 4 of 6 s"
        match = re.search(r"(\d+) of ([\d.]+) s$", text)
        done, total = (float(match[1]), float(match[2])) if match else (None, None)
        step.update(done, total, f"measuring {len(kit.runs)} sizes: {text}")

    scratch = work / "measured.ecb"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        built = build_kit(
            exports,
            kit,
            profile,
            [variant],
            scratch,
            work,
            precision=request.precision,
            runtime=request.runtime,
            jobs=request.jobs,
            step=step,
        )
        seconds = min(60.0, max(3.0, 0.4 * len(kit.runs)))
        tell(f"0 of {seconds:g} s")
        return calibrate(
            built.path, threads=request.threads, seconds=seconds, tell=tell
        ), built.cost
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def calibrated_costs(
    model: LoadedModel, profile: TargetProfile, request: PlanRequest, scope: KitScope, file: Path
) -> Costs:
    """The costs that a device measured.

    Raises:
        CostError: they are another model's, machine's or version's; names every difference.
    """
    calibration = read_calibration(file)
    check_calibration(
        calibration,
        structure=model_structure(model),
        target=profile,
        edgecompile_version=edgecompile.__version__,
        threads=request.threads,
        length_axis=scope.axis,
        precision=request.gpu_precision if profile.gpu else request.precision.label,
    )
    # Costs at another batch would make another plan.
    at = {name: extent.lo for name, extent in scope.axes[1:]}
    costs = measured_costs(calibration, "calibrated", second=scope.second, at=at)
    return Costs(_only(costs, _asked_modes(request)), scope, calibration.bucket_cost)


def _modelled(
    model: LoadedModel, profile: TargetProfile, request: PlanRequest, form: Form
) -> Costs:
    modes, why, scope = form.modes, form.note, form.scope
    extent = scope.axes[0][1]
    span, count = extent.hi - extent.lo, min(extent.hi - extent.lo + 1, _MODELLED_POINTS)
    lengths = [extent.lo + round(i * span / max(1, count - 1)) for i in range(count)]
    gpu = profile.gpu is not None
    note = (
        f"this host can't run the code of {profile.name}, so the costs are a roofline of its "
        "profile; measure on the device: "
        + ("finish, " if gpu else "plan --kit, ")
        + "bench --calibrate, plan --calibration"
        + (f"; {why}" if why else "")
    )

    precision = request.precision.name
    if not gpu and precision != "fp32" and precision not in dict(profile.peak_gflops):
        note += f"; the profile states no peak for {precision}, so they are those of fp32"
        precision = "fp32"

    def curve(sizes: dict[str, int]) -> CostGrid:
        work = count_work(model, lengths, sizes=sizes)
        if gpu:
            one_shape = all(r.lo == r.hi for _, r in scope.axes[1:])
            whole = gpu_curve(
                work, profile, lengths, precision=request.gpu_precision, graphs=one_shape
            )
            return _only(whole, modes)
        threads = request.threads
        whole = modelled_curve(work, profile, lengths, precision=precision, threads=threads)
        return _only(whole, modes)

    fixed = {name: r.lo for name, r in scope.axes[1:]}
    second = scope.second
    if second is None:
        return Costs(curve(fixed), scope, notes=(note,))
    lines = {size: curve({**fixed, second: size}) for size in scope.second_sizes()}
    provenance = dict(next(iter(lines.values())).provenance)
    grid = CostGrid.join((scope.axis, second), lines, provenance)
    return Costs(grid, scope, notes=(note,))


def _asked_modes(request: PlanRequest) -> tuple[Mode, ...]:
    return tuple(mode for mode in MODES if request.mode in (mode, "auto"))


def _only(curve: CostGrid, modes: tuple[Mode, ...]) -> CostGrid:
    """The curve without the costs of other modes.

    Raises:
        CostError: nothing is left.
    """
    if not set(modes) & set(curve.modes):
        raise CostError(
            f"--mode {' or '.join(modes)}: there are only costs of the mode {curve.modes[0]}",
            hint="calibrate with a kit made with the same --mode",
        )
    return curve.only(modes)


def runnable_variants(profile: TargetProfile, work: Path) -> list[VariantSpec]:
    """The target's variants that this host can run, the best one last."""
    arch = architecture(platform.machine())
    if arch not in profile.archs:
        return []
    return host_variants(profile, build_probe(arch, work / "probe"))


def make_measuring_kit(
    exports: ExportStore,
    profile: TargetProfile,
    request: PlanRequest,
    output: Path,
    work: Path,
    *,
    force: bool = False,
    step: StepHandle = NULL_STEP,
) -> BuiltKit:
    """Writes a bundle for all variants of the target that a device times with
    ``bench --calibrate``; :class:`PlanRequest` then takes the file that it writes.

    Raises:
        As :func:`plan_model`.
    """
    scope = plan_scope(exports.model, request)
    form = find_form(exports, request, scope)
    return build_kit(
        exports,
        make_kit(form.scope, form.modes),
        profile,
        profile.variants,
        output,
        work,
        precision=request.precision,
        runtime=request.runtime,
        jobs=request.jobs,
        force=force,
        step=step,
    )
