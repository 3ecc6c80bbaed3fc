"""plan(): from a model, or a file of costs, to the buckets of least expected cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from edgecompile.backends import WITH_TRITON
from edgecompile.buckets.assessment import assess_plan
from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.buckets.limits import DEFAULT_MAX_BUCKETS, BucketCost
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.bundle.names import bundle_path
from edgecompile.errors import LengthsError, UsageError
from edgecompile.files import write_json
from edgecompile.models.options import LoadOptions
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import CalibrationBundleResult, PlanResult
from edgecompile.planning.options import PlanOptions
from edgecompile.planning.request import PlanRequest
from edgecompile.progress import NULL_PROGRESS, Progress

#: Why there are no calibration bundles for GPUs.
CALIBRATION_ON_GPU = (
    "`calibration_bundle` is for CPUs; what a GPU takes is measured with a bundle of several padded buckets (build "
    "--mode pad --buckets K, on the device finish and bench --calibrate)"
)


def plan(
    request: BuildRequest, progress: Progress = NULL_PROGRESS, *, files: Iterable[Path] = ()
) -> PlanResult:
    """Plans a model's buckets; leaves the stages' files in the work folder, if one was named.

    Args:
        request: the request.
        progress: the display of the stages.
        files: the files that the caller will write: that they can be written is checked before the
            work begins.

    Raises:
        EdgecompileError: a subclass for each cause.
    """
    profile = request.check_target()

    from edgecompile.pipeline import stages
    from edgecompile.pipeline.preflight import begin_plan
    from edgecompile.pipeline.run import Run, work_folder

    run = Run(request, profile, progress)
    begin_plan(run, files)
    model = stages.load(run)
    about_model = len(run.notes)
    with work_folder(request.work_dir, model.source) as work:
        subject = stages.find_subject(run, model, work)
        resolved = stages.choose_precision(run, subject)
        planned = stages.make_plan(run, subject, resolved.precision, compare=True)
        if run.options.backend in WITH_TRITON:
            from edgecompile.pipeline.triton_backend import note_numbers

            run.notes.add(*note_numbers(run, subject, planned))
        own = replace(planned.plan, notes=tuple(run.notes[about_model:]))
        result = _assessed(own, subject.asked, planned.cost)
        write_json(work / "plan.json", result.to_json())
    return replace(result, choice=resolved.choice, notes=tuple(run.notes[:about_model]))


def plan_from_costs(
    request: PlanRequest, costs: CostGrid, work_dir: Path | None = None
) -> PlanResult:
    """Plans by costs that are known, without a model; leaves its files in the work folder.

    Raises:
        LengthsError: costs are over two axes, and the lengths over one.
        PlanError: the constraints can't be met.
    """
    price, longest = request.price_per_bucket or 0.0, request.max_length
    bounded = request.buckets is not None or price > 0
    joint = request.joint
    if len(costs.axes) == 1:
        joint = None
    elif joint is None:
        raise LengthsError(
            f"the cost points are over {' and '.join(costs.axes)}, the sample only tells "
            f"{costs.axes[0]}",
            hint=f"give rows {','.join(costs.axes)},count",
        )
    made = plan_buckets(
        joint or request.traffic,
        costs,
        max_sizes=None if longest is None else {costs.axes[0]: longest},
        buckets=request.buckets,
        max_buckets=request.max_buckets or (None if bounded else DEFAULT_MAX_BUCKETS),
        price_per_bucket=price,
        modes=request.modes,
    )
    result = _assessed(made, request)
    if work_dir is not None:
        work_dir.mkdir(parents=True, exist_ok=True)
        write_json(work_dir / "lengths.json", request.sizes.to_json())
        write_json(work_dir / "plan.json", result.to_json())
    return result


def write_calibration_bundle(
    request: BuildRequest, output: Path, progress: Progress = NULL_PROGRESS
) -> CalibrationBundleResult:
    """Writes a bundle of programs that a device times with ``bench --calibrate``.

    Raises:
        EdgecompileError: a subclass for each cause.
    """
    profile = request.check_target(CALIBRATION_ON_GPU)

    from edgecompile.pipeline import stages
    from edgecompile.pipeline.run import Run, work_folder
    from edgecompile.planning.costs.sources import make_calibration_bundle

    run = Run(request, profile, progress)
    model = stages.load(run)
    with work_folder(request.work_dir, model.source) as work:
        subject = stages.find_subject(run, model, work)
        precision = stages.choose_precision(run, subject).precision
        built = run.stage(
            "build the calibration bundle",
            lambda step: make_calibration_bundle(
                subject, precision, bundle_path(output), step=step
            ),
        )
    return CalibrationBundleResult(built.path, built.spec, precision, tuple(run.notes))


def _assessed(plan: BucketPlan, request: PlanRequest, cost: BucketCost | None = None) -> PlanResult:
    """The plan beside its rivals, if it has costs."""
    if plan.cost_model is None:
        return PlanResult(plan, None)
    modes, seed = request.modes, request.seed
    return PlanResult(plan, assess_plan(plan, request.sizes, modes=modes, seed=seed, cost=cost))


#: What a plan by cost points heeds; all else needs a model.
_WITHOUT_MODEL = ("buckets", "max_buckets", "price_per_bucket", "mode")


def refuse_model_options(plan: PlanRequest, load: LoadOptions, others: Sequence[str] = ()) -> None:
    """Refuses options that mean nothing without a model.

    Args:
        plan: the request for a plan.
        load: the options for loading the model.
        others: further options of this kind.

    Raises:
        UsageError: names all.
    """
    plain = PlanRequest(None)
    names = [item.name for item in fields(PlanOptions) if item.name not in _WITHOUT_MODEL]
    names += ["precision", "backend"]
    refused = [name for name in names if getattr(plan, name) != getattr(plain, name)]
    refused += [*others, *load.to_json()]
    if refused:
        raise UsageError(
            ", ".join(f"`{name}`" for name in refused)
            + ": only with `model`, as cost points don't say what programs take"
        )
