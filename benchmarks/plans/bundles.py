"""A bundle for each plan, of programs that are compiled once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgecompile.backends.compilation import CompiledModel, CompileOptions, compile_buckets
from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.assembly import stage_calibration_bundle
from edgecompile.export.store import ExportStore, export_buckets
from edgecompile.progress import Progress
from edgecompile.targets.profile import TargetProfile, VariantSpec


def union_of_programs(
    plans: Iterable[Sequence[Bucket]], key: Callable[[Bucket], str]
) -> dict[str, Bucket]:
    """The programs that these plans need, each once, in the order in which they are first needed.

    Args:
        plans: the buckets of each.
        key: gives equal texts for buckets that one program serves.
    """
    union: dict[str, Bucket] = {}
    for buckets in plans:
        for bucket in buckets:
            union.setdefault(key(bucket), bucket)
    return union


def pick_programs(union: CompiledModel, places: Sequence[int]) -> CompiledModel:
    """The programs at these places of ``union``, as if a plan of them had been compiled."""
    return replace(
        union,
        artifacts={
            variant: tuple(replace(items[place], bucket=i) for i, place in enumerate(places))
            for variant, items in union.artifacts.items()
        },
        exported=tuple(union.exported[place] for place in places),
    )


def build_bundles(
    exports: ExportStore,
    plans: Mapping[str, Sequence[Bucket]],
    profile: TargetProfile,
    variant: VariantSpec,
    work: Path,
    folder: Path,
    progress: Progress,
) -> dict[str, Path]:
    """A bundle for each plan; a program that several need is compiled once.

    Args:
        exports: of the model.
        plans: the buckets by policy.
        profile: the target.
        variant: the one to build.
        work: where programs are left.
        folder: gets the bundles.
        progress: told about the steps.
    """
    # The planner's come last: they may change from time to time, and compile_buckets finds what it
    # left by its place.
    names = [*list(plans)[1:], *list(plans)[:1]]
    needed = union_of_programs((plans[name] for name in names), exports.key)
    with progress.step(f"export {len(needed)} programs") as step:
        exported = export_buckets(exports, list(needed.values()), step=step)
    with progress.step(f"compile them for {variant.name}") as step:
        union = compile_buckets(
            exported,
            list(needed.values()),
            profile,
            work / "programs",
            CompileOptions(variants=[variant]),
            keys=list(needed),
            step=step,
        )
    places = {key: place for place, key in enumerate(needed)}
    bundles = {}
    with progress.step("write a bundle for each policy") as step:
        for done, (name, buckets) in enumerate(plans.items()):
            step.update(done, len(plans), name)
            picked = pick_programs(union, [places[exports.key(bucket)] for bucket in buckets])
            runs = [(i, {axis: r.hi for axis, r in b.axes}) for i, b in enumerate(buckets)]
            bundles[name] = stage_calibration_bundle(
                exports.model, buckets, picked, folder / name, runs
            )
    return bundles
