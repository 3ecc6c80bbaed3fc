"""build() for a GPU: all that can be done away from the device.

No TensorRT engine can be built elsewhere than on the GPU that runs it. The bundle holds the ONNX,
checked against eager, a recipe that the device finishes, and a program for the module's own cores to
fall back to.
"""

from __future__ import annotations

from dataclasses import replace

from edgecompile.backends.compilation import CompiledModel, compile_buckets
from edgecompile.bundle.staging import Staging
from edgecompile.errors import ModelError, PlanError
from edgecompile.export.padding.check import ASSUMED
from edgecompile.export.store import ExportStore
from edgecompile.files import write_json
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import text_samples
from edgecompile.onnx.build import build_onnx
from edgecompile.onnx.operators import OnnxTarget, known_releases
from edgecompile.onnx.report import OnnxArtifact
from edgecompile.pipeline.packing import pack_bundle
from edgecompile.pipeline.request import TORCH_TENSORRT, BuildRequest, BuildResult
from edgecompile.pipeline.stages import Stages, work_folder
from edgecompile.planning.generation_plan import require_native
from edgecompile.planning.kits import whole_bucket
from edgecompile.planning.planning import Planned, plan_model
from edgecompile.planning.request import with_padding
from edgecompile.progress import StepHandle
from edgecompile.runtime.gpu.device import DeviceIdentity
from edgecompile.targets.gpu import GPU_PRECISION
from edgecompile.targets.jetpack import find_jetpack
from edgecompile.targets.profile import TargetProfile
from edgecompile.tensorrt.parts import GpuParts, engine_notes, rtx_notes
from edgecompile.tensorrt.rtx import RtxReport, bucket_profiles, check_rtx, has_rtx
from edgecompile.tensorrt.torch_tensorrt import BuiltEngine, build_engine
from edgecompile.tensorrt.torch_tensorrt_check import need_torch_tensorrt

__all__ = ["build_for_gpu"]


def build_for_gpu(
    request: BuildRequest,
    profile: TargetProfile,
    staging: Staging,
    stages: Stages,
) -> BuildResult:
    """Builds, verifies and writes a bundle that a device with a GPU finishes.

    Args:
        request: what is asked for.
        profile: its target; it has a GPU.
        staging: where the bundle goes, claimed.
        stages: runs the steps.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    jetpack = find_jetpack(profile, request.jetpack)
    precision = request.precision or GPU_PRECISION
    device: DeviceIdentity | None = None
    if request.backend == TORCH_TENSORRT:
        device = need_torch_tensorrt(profile, precision)
    traffic = request.plan.joint or request.plan.lengths
    model = stages.run(
        "load the model", lambda _: load_model(request.model, request.load, batch=request.batch)
    )
    with work_folder(request.work_dir, model.source) as work:
        write_json(work / "lengths.json", traffic.to_json())
        require_native(model, gpu=True)
        exports = ExportStore(model, work / "exported")
        wanted = replace(request.plan, gpu_precision=precision)
        planned = stages.run(
            "plan", lambda step: plan_model(exports, profile, wanted, work, step=step)
        )
        write_json(work / "plan.json", planned.plan.to_json())
        whole = whole_bucket(planned.scope)
        exported = stages.run("export", lambda _: exports.get(whole))
        samples = None
        if request.texts is not None:
            samples = text_samples(model, request.texts, planned.plan.max_length)

        def make_onnx(step: StepHandle) -> OnnxArtifact:
            return build_onnx(
                model,
                planned.plan.buckets,
                precision,
                OnnxTarget(jetpack.tensorrt_least, jetpack.opset),
                samples,
                work / "onnx",
                step,
                exported=exported,
                also=[
                    OnnxTarget(name, jetpack.opset) for name in jetpack.releases(known_releases())
                ],
            )

        artifact = stages.run("write and check the ONNX", make_onnx)
        artifact, planned = _with_padding(artifact, model, request, planned)
        rtx: RtxReport | None = None
        if has_rtx():
            profiles = bucket_profiles(planned.plan.buckets, model.inputs)
            rtx = stages.run(
                "parse and build it with TensorRT-RTX", lambda _: check_rtx(artifact.path, profiles)
            )
        compiled: CompiledModel = stages.run(
            "compile for the module's own cores",
            lambda step: compile_buckets(
                [exported],
                [whole],
                profile,
                work / "artifacts",
                keys=[exports.key(whole)],
                jobs=request.plan.jobs,
                step=step,
            ),
        )
        engine: BuiltEngine | None = None
        if device is not None:
            here = device
            engine = stages.run(
                "convert with torch-tensorrt",
                lambda _: build_engine(
                    exported, planned.plan.buckets, precision, here, work / "torch-tensorrt"
                ),
            )
        gpu = GpuParts(profile, jetpack, artifact, rtx, engine)
        packed = stages.run(
            "verify and pack",
            lambda step: pack_bundle(
                model,
                planned.plan,
                compiled,
                staging.output,
                claimed=staging,
                emulate=request.emulate,
                lengths=traffic,
                cost=planned.cost,
                samples=samples,
                gpu=gpu,
                seed=request.seed,
                tokenizer=request.tokenizer,
                force=request.force,
                step=step,
            ),
        )
    return BuildResult.of(
        packed,
        plan=planned.plan,
        audit=compiled.audit,
        seconds=stages.seconds,
        notes=(
            *model.notes,
            *exported.notes,
            *planned.notes,
            *artifact.notes,
            *packed.notes,
            *rtx_notes(rtx),
            *engine_notes(engine),
        ),
        gpu=artifact,
        rtx=rtx,
        engine=engine,
    )


def _with_padding(
    artifact: OnnxArtifact, model: LoadedModel, request: BuildRequest, planned: Planned
) -> tuple[OnnxArtifact, Planned]:
    """The artifact and the plan; padding, which its own runs found harmless, is also to be proven so.

    A device that fills up every bucket does that along all axes.
    """
    if not artifact.check.padding:
        return artifact, planned
    wanted, given = request.plan, request.plan.plan
    assume = wanted.assume_paddable or (given is not None and given.padding == ASSUMED)
    try:
        plan = with_padding(planned.plan, model, assume=assume, also=model.axes)
    except (ModelError, PlanError) as error:
        check = replace(artifact.check, padding=False, padding_reason=error.message)
        return replace(artifact, check=check), planned
    told = [note for note in plan.notes if note not in planned.plan.notes]
    return artifact, replace(planned, plan=plan, notes=(*planned.notes, *told))
