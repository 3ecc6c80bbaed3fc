"""Bundles of the tiny language models of :mod:`tests.zoo.generation_families`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.zoo.generation_families import LONGEST_RUN, LONGEST_SOURCE, TARGET


def build_family(
    loaded: Any,
    output: Path,
    work: Path,
    *,
    padded: bool = False,
    texts: int = 0,
    precision: str = "fp32",
    step: Any = None,
) -> Path:
    """Compiles a model for one token and for prompts, packs it and lets packing verify it.

    Args:
        loaded: of ``load_family``.
        output: the bundle.
        work: where programs are left; a second build of the same model reuses them.
        padded: whether prompts of up to 12 tokens are padded instead of run as they are.
        texts: the largest number of texts that a further program gives a token each; 0: there is none.
        precision: the data type of the linear layers' weights.
        step: is called with what is being done.

    Raises:
        EdgecompileError: it can't be exported, compiled or verified.
    """
    from edgecompile.buckets.ranges import AxisRange, Bucket

    # A model with nothing but states of a fixed size has no such axis.
    limits = loaded.axes.get("context")
    context = [("context", AxisRange(limits.lo, limits.hi, limits.lo))] if limits else []

    def bucket(mode: Any, lo: int, hi: int) -> Bucket:
        return Bucket(mode, (("length", AxisRange(lo, hi, hi)), *context))

    lookup = loaded.generation.spec.lookup
    prompts = [bucket("exact", lookup + 1, LONGEST_RUN)]
    if lookup > 1:
        prompts.insert(0, bucket("exact", 2, lookup))
    if padded:
        prompts = [bucket("pad", 2, 12), bucket("exact", 13, LONGEST_RUN)]
    own = (bucket("exact", 1, 1), *prompts)
    return _build(loaded, own, output, work, step, texts=texts, precision=precision)


def build_source_family(loaded: Any, output: Path, work: Path, *, step: Any = None) -> Path:
    """The same of a model that goes on from a source: its encoder, and the decoder around it.

    Sources of up to 12 tokens are padded.
    """
    from edgecompile.buckets.ranges import AxisRange, Bucket
    from edgecompile.planning.generation_plan import decoder_buckets

    encoder = loaded.generation.encoder
    axis = encoder.length_axis
    buckets: tuple[Bucket, ...] = (Bucket("exact", ((axis, AxisRange(1, 1, 1)),)),)
    if axis == "length":
        buckets = (
            Bucket("pad", ((axis, AxisRange(1, 12, 12)),)),
            Bucket("exact", ((axis, AxisRange(13, LONGEST_SOURCE, LONGEST_SOURCE)),)),
        )
    inner = _build(encoder, buckets, work / "encoder.ecb", work / "encoder", step)
    return _build(loaded, decoder_buckets(loaded).buckets, output, work, step, inner)


def _build(
    loaded: Any,
    buckets: tuple[Any, ...],
    output: Path,
    work: Path,
    step: Any,
    encoder: Path | None = None,
    texts: int = 0,
    precision: str = "fp32",
) -> Path:
    from edgecompile.backends.compilation import CompileOptions, compile_buckets
    from edgecompile.buckets.plan import BucketPlan
    from edgecompile.bundle.staging import Staging
    from edgecompile.export.store import ExportStore, export_buckets
    from edgecompile.loaders.generators.texts_step import texts_buckets, texts_model
    from edgecompile.pipeline.packing import Contents, pack_bundle
    from edgecompile.precision import Precision
    from edgecompile.targets.profile import load_target

    tell: Callable[[str], None] = step or (lambda text: None)
    tell("exporting")
    # It changes how single tokens are scanned.
    together = texts_model(loaded, texts) if texts else None
    store = ExportStore(loaded, work / "exported")
    exported, programs = export_buckets(store, buckets), buckets
    keys = [store.key(item) for item in buckets]
    if together is not None:
        several = ExportStore(together, work / "exported")
        batches = texts_buckets(together)
        exported += export_buckets(several, batches)
        keys, programs = keys + [several.key(item) for item in batches], (*buckets, *batches)
    tell("compiling")
    compiled = compile_buckets(
        exported,
        programs,
        load_target(TARGET),
        work / "artifacts",
        CompileOptions(precision=Precision(precision)),
        keys=keys,
    )
    if texts:
        compiled = compiled.split_batch()
    tell("verifying")
    plan = BucketPlan(buckets[0].length_axis, buckets)
    with Staging(output, force=True) as claim:
        contents = Contents(loaded, plan, compiled, encoder=encoder, texts_at_once=texts)
        packed = pack_bundle(contents, claim)
    return packed.bundle_path
