"""Writes the recipe that a Jetson builds its TensorRT engine from."""

from __future__ import annotations

from pathlib import Path

from edgecompile.errors import PlanError, TargetError
from edgecompile.onnx_files.memory import HOST_BUILD_8_6, MemoryEstimate, estimate_memory
from edgecompile.precision import min_cosine
from edgecompile.runtime.format.manifest.schema import BucketSpec, Manifest, TensorSpec, Tolerance
from edgecompile.runtime.format.recipe.schema import (
    OtherForm,
    Recipe,
    ShapeRange,
    Side,
    TargetDevice,
    TensorType,
)
from edgecompile.runtime.format.sums import size_of, size_span
from edgecompile.targets.jetpack import JetPack
from edgecompile.targets.profile import TargetProfile

#: TensorRT's own default: 5 takes several times as long for a few per cent.
_LEVEL = 3


def make_recipe(
    manifest: Manifest,
    profile: TargetProfile,
    jetpack: JetPack,
    onnx: Path,
    weights: Path,
    *,
    opset: int,
    precision: str,
    tolerance: Tolerance,
    padding: bool,
    float32: tuple[str, ...] | None = None,
    also: tuple[OtherForm, ...] = (),
    sides: tuple[Side, ...] = (),
) -> Recipe:
    """The recipe for a manifest's inputs, outputs and buckets.

    Args:
        manifest: the manifest of the bundle so far.
        profile: the target; it has a GPU.
        jetpack: the release that the device has.
        onnx, weights: the files, which lie beside the recipe in the bundle.
        opset: the opset of the ONNX.
        precision: the data type that the ONNX computes in.
        tolerance: difference from eager that the ONNX was allowed.
        float32: the values that stay float32 where TensorRT's builder chooses types; else None.
        also: the forms for further versions of TensorRT.
        sides: the graphs of buckets that ``onnx`` doesn't serve; their files lie beside it.
        padding: whether filling inputs up was verified to change nothing.

    Raises:
        PlanError: a build, or then a run, is predicted to need more memory than the module has.
        CompileError: the graph's shapes can't be inferred.
    """
    gpu = profile.gpu
    if gpu is None:
        raise TargetError(f"the profile {profile.name} describes no GPU")
    largest = [
        {name: extent.hi for name, extent in bucket.axes.items()} for bucket in manifest.buckets
    ]
    builds_with_8_6 = profile.kind == "cuda" and jetpack.takes("8.6")
    others = {bucket for side in sides for bucket in side.buckets}
    memory = estimate_memory(
        {
            onnx: [index for index in range(len(largest)) if index not in others],
            **{onnx.with_name(side.onnx): side.buckets for side in sides},
        },
        largest,
        weights.stat().st_size,
        precision,
        gpu.memory_bytes,
        HOST_BUILD_8_6 if builds_with_8_6 else None,
    )
    require_memory(memory, manifest, profile)
    return Recipe(
        onnx=onnx.name,
        weights=weights.name,
        opset=opset,
        precision=precision,
        padding=padding,
        tolerance=tolerance,
        min_cosine=min_cosine(precision),
        jetpack=jetpack.name,
        least=jetpack.tensorrt_least,
        below=jetpack.tensorrt_below,
        device=TargetDevice(
            name=profile.name,
            compute_capability=gpu.compute_capability,
            sm_count=gpu.sm_count,
            memory_bytes=gpu.memory_bytes,
            models=gpu.models,
        ),
        inputs=tuple(TensorType(item.name, item.dtype) for item in manifest.inputs),
        outputs=tuple(TensorType(item.name, item.dtype) for item in manifest.outputs),
        profiles=tuple(
            {
                item.name: shape_ranges(item, bucket, manifest.length_axis)
                for item in manifest.inputs
            }
            for bucket in manifest.buckets
        ),
        optimization_level=_LEVEL,
        workspace_bytes=memory.workspace_bytes,
        predicted=memory.predicted,
        float32=float32,
        also=also,
        sides=sides,
    )


def require_memory(memory: MemoryEstimate, manifest: Manifest, profile: TargetProfile) -> None:
    """Raises PlanError, with the numbers, unless a build and then a run are likely to find their memory."""
    if memory.fits:
        return
    predicted = memory.predicted
    scratch = predicted.scratch_bytes
    worst = max(range(len(scratch)), key=scratch.__getitem__)
    building = predicted.build_bytes >= memory.run_bytes
    what = "building the engine" if building else f"running the engine's {len(scratch)} profiles"
    raise PlanError(
        f"{what} is predicted to take {max(predicted.build_bytes, memory.run_bytes) / 2**20:,.0f} MiB, and "
        f"{profile.name} has {memory.available_bytes / 2**20:,.0f} MiB in all, of which three "
        f"quarters may be free at best; the engine takes {predicted.engine_bytes / 2**20:,.0f} MiB, and the largest profile, "
        f"bucket {worst} ({manifest.buckets[worst]}), {scratch[worst] / 2**20:,.0f} MiB of scratch memory",
        hint="a smaller `max_length` or `batch`, fewer buckets, a narrower `precision`, or a larger module",
    )


def shape_ranges(spec: TensorSpec, bucket: BucketSpec, length_axis: str | None) -> ShapeRange:
    """The shapes of one input in one bucket: the smallest, what it is tuned for, the largest.

    A padded axis has its upper edge alone: with four such profiles TensorRT 8.6 took 0.83 to 0.97 of the time that
    four ranges take, at about 3 % more than engines of their own, and built in 0.79 and 1.05 of the ranges' time
    (docs/benchmarks/gpu-tensorrt.md).
    """
    shapes = []
    for dim in spec.shape:
        if isinstance(dim, int):
            shapes.append((dim, dim, dim))
            continue
        if dim not in bucket.axes:
            hints = {axis: extent.hint or extent.hi for axis, extent in bucket.axes.items()}
            lo, hi = size_span(str(dim), bucket.axes)
            shapes.append((lo, size_of(dim, hints), hi))
            continue
        extent = bucket.axes[str(dim)]
        if dim in bucket.padded(length_axis):
            shapes.append((extent.hi, extent.hi, extent.hi))
        else:
            shapes.append((extent.lo, extent.hint or extent.hi, extent.hi))
    return ShapeRange(*(tuple(shape[edge] for shape in shapes) for edge in range(3)))
