"""Puts code, weights and runtime into the folder that becomes a bundle."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import edgecompile
from edgecompile.backends.artifact import Artifact
from edgecompile.backends.compilation import CompiledModel
from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.names import manifest_name
from edgecompile.bundle.staging import Staging
from edgecompile.bundle.writer import BundleWriter, VariantParts, merge_constants
from edgecompile.export.halves import tolerance_of
from edgecompile.export.program import common_inputs, common_outputs
from edgecompile.models.loaded import LoadedModel, model_structure
from edgecompile.models.specs import InputSpec
from edgecompile.runtime.format.dtypes import Number
from edgecompile.runtime.format.manifest.schema import (
    TORCH,
    BucketSpec,
    Extent,
    Manifest,
    TensorSpec,
)
from edgecompile.runtime.format.sums import size_span


def stage_calibration_bundle(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    compiled: CompiledModel,
    output: Path,
    runs: Sequence[tuple[int, Mapping[str, int]]],
    *,
    bucket_build_s: float = 0.0,
    force: bool = False,
    lasting: bool = False,
) -> Path:
    """Writes a bundle to be timed, not served: without golden vectors and verification.

    Args:
        model: the compiled model.
        buckets: its programs; they may overlap.
        compiled: the programs of these buckets.
        output: the bundle to write.
        runs: the bucket to run at each size; the runtime finds them in the manifest's plan.
        bucket_build_s: seconds that a bucket takes to build, for all variants of the target.
        force: replace a bundle of the same name.
        lasting: the bundle is for somebody else, and must survive a power cut.
    """
    plan: dict[str, object] = {
        "calibrate": [{"bucket": index, "sizes": dict(sizes)} for index, sizes in runs],
        "bucket_build_s": round(bucket_build_s, 3),
    }
    with Staging(output, force=force) as claim:
        writer = BundleWriter(claim)
        manifest = stage(writer, buckets, compiled, built_by(model, compiled))
        writer.write_manifest(manifest._replace(plan=plan))
        return writer.commit(lasting=lasting)


def built_by(model: LoadedModel, compiled: CompiledModel) -> dict[str, str]:
    """Versions of the tools that shaped the bundle, and the model's structure."""
    import torch

    return {
        "edgecompile": edgecompile.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "compilers": "; ".join(sorted(compiled.compilers)),
        "structure": model_structure(model),
    }


def stage(
    writer: BundleWriter,
    buckets: Sequence[Bucket],
    compiled: CompiledModel,
    built_by: Mapping[str, str],
) -> Manifest:
    """Puts code, weights and runtime into the staging folder; returns the manifest so far."""
    variants = [
        writer.add_variant(
            VariantParts(
                spec=spec,
                native=compiled.natives.get(spec.name),
                artifacts=_per_bucket(compiled.artifacts[spec.name], len(buckets)),
                glibc=compiled.glibc(spec.name),
                torch=_torch_version() if compiled.backend == TORCH else "",
            )
        )
        for spec in compiled.variants
    ]
    probes = {
        arch: writer.add_file(path, f"code/{arch}/{path.name}")
        for arch, path in compiled.probes.items()
    }
    made = itertools.chain(*compiled.artifacts.values(), compiled.batch.values())
    constants = merge_constants(list(made))
    precision = compiled.precision.label
    weights = {}
    if compiled.variants:
        weights[precision] = writer.add_weights(constants, compiled.store, precision)
    writer.add_runtime(torch=compiled.backend == TORCH)
    return Manifest(
        name=manifest_name(writer.output.stem),
        precision=precision,
        inputs=tuple(
            tensor_spec(item, _axes(buckets)) for item in common_inputs(compiled.exported)
        ),
        outputs=tuple(
            TensorSpec(o.name, o.dtype, o.shape) for o in common_outputs(compiled.exported)
        ),
        axes=_axes(buckets),
        length_axis=buckets[0].length_axis,
        buckets=tuple(bucket_spec(b) for b in buckets),
        variants=tuple(variants),
        probes=probes,
        weights=weights,
        golden=(),
        tolerance=tolerance_of(
            compiled.precision.name,
            *(item.program.graph_module for item in compiled.exported),
        ),
        files={},
        built_by=dict(built_by),
    )


def tensor_spec(item: InputSpec, axes: Mapping[str, Extent]) -> TensorSpec:
    """The manifest's entry of an input; bounds that follow axes have the widest numbers beside them."""
    bounds: tuple[Number, Number] | None = None
    reach: tuple[str | None, str | None] = (None, None)
    if item.bounds is not None:
        low, high = item.bounds
        bounds = (
            size_span(low, axes)[0] if isinstance(low, str) else low,
            size_span(high, axes)[1] if isinstance(high, str) else high,
        )
        reach = (low if isinstance(low, str) else None, high if isinstance(high, str) else None)
    default = 1 if item.is_mask else None
    return TensorSpec(item.name, item.dtype, tuple(item.shape), item.pad, bounds, default, reach)


def _torch_version() -> str:
    """The version of torch's C interface, which builds for CPUs and for each CUDA share: 2.13.0 of 2.13.0+cpu."""
    import torch

    return str(torch.__version__).partition("+")[0]


def _per_bucket(artifacts: tuple[Artifact, ...], count: int) -> tuple[Artifact, ...]:
    return artifacts * count if len(artifacts) == 1 else artifacts


def _axes(buckets: Sequence[Bucket]) -> dict[str, Extent]:
    result: dict[str, Extent] = {}
    for bucket in buckets:
        for name, extent in bucket.axes:
            union = result.get(name, Extent(extent.lo, extent.hi))
            result[name] = Extent(min(union.lo, extent.lo), max(union.hi, extent.hi))
    return result


def bucket_spec(bucket: Bucket) -> BucketSpec:
    """A plan's bucket as the manifest has it."""
    axes = {name: Extent(e.lo, e.hi, e.hint, e.step) for name, e in bucket.axes}
    return BucketSpec(bucket.mode, axes, bucket.pad_axes if len(bucket.pad_axes) > 1 else ())
