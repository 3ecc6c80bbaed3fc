"""A bundle's own plan: the buckets, the costs, and the lengths it was made for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.buckets.plan import BucketPlan
from edgecompile.errors import BundleError, CostError, LengthsError, PlanError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.runtime.format.document import parse_json
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import Manifest

PLAN_REPORT = "reports/plan.json"
LENGTHS_REPORT = "reports/lengths.json"

_MAX_BYTES = 256 << 20
_TOKENIZER = Path("tokenizer", "tokenizer.json")


@dataclass(frozen=True)
class ShippedPlan:
    """A bundle's plan.

    Attributes:
        name: the name of the bundle.
        manifest_sha256: the SHA-256 of its manifest.
        plan: its buckets, in the manifest's order, and the costs they were planned with.
        lengths: the lengths that it was planned for, also those that it doesn't serve.
        lo, hi: the extent of the length axis.
    """

    name: str
    manifest_sha256: str
    plan: BucketPlan
    lengths: LengthDistribution
    lo: int
    hi: int


def shipped_tokenizer(bundle: str | os.PathLike[str]) -> Path | None:
    """The bundle's tokenizer; None: it has none."""
    path = Path(bundle) / _TOKENIZER
    return path if path.is_file() else None


def read_shipped_plan(
    bundle: str | os.PathLike[str], lengths: LengthDistribution | None = None
) -> ShippedPlan:
    """Reads a bundle's plan and the lengths it was planned for; the files' hashes are checked.

    Args:
        bundle: the folder.
        lengths: the lengths that it was planned for, in place of those in the bundle.

    Raises:
        BundleError: there is no bundle, it has no length axis, it doesn't say what it was planned
            for, or its reports contradict its manifest.
    """
    folder = BundleFolder(os.fspath(bundle))
    try:
        manifest = folder.manifest
        if manifest.length_axis is None:
            raise BundleError(f"{folder.path}: has no length axis, so its lengths can't move")
        plan = _read_plan(folder, manifest)
        if lengths is None:
            value = _read(folder, LENGTHS_REPORT)
            try:
                lengths = LengthDistribution.from_json(value, f"{folder.path}/{LENGTHS_REPORT}")
            except LengthsError as error:
                raise BundleError(error.message, error.hint) from error
        extent = manifest.axes[manifest.length_axis]
        return ShippedPlan(
            name=manifest.name,
            manifest_sha256=folder.manifest_sha256,
            plan=plan,
            lengths=lengths,
            lo=extent.lo,
            hi=extent.hi,
        )
    finally:
        folder.close()


def _read_plan(folder: BundleFolder, manifest: Manifest) -> BucketPlan:
    place = f"{folder.path}/{PLAN_REPORT}"
    try:
        plan = BucketPlan.from_json(_read(folder, PLAN_REPORT))
    except (PlanError, CostError) as error:
        raise BundleError(f"{place}: {error.message}", error.hint) from error
    ours = [
        (bucket.mode, {name: (span.lo, span.hi, span.step) for name, span in bucket.axes})
        for bucket in plan.buckets
    ]
    theirs = [
        (bucket.mode, {name: (span.lo, span.hi, span.step) for name, span in bucket.axes.items()})
        for bucket in manifest.buckets
    ]
    if plan.length_axis != manifest.length_axis or ours != theirs:
        raise BundleError(
            f"{place}: isn't the plan of this bundle: it has {len(ours)} buckets along "
            f"{plan.length_axis}, the manifest {len(theirs)} along {manifest.length_axis}"
            + ("" if len(ours) != len(theirs) else ", with other sizes or modes")
        )
    return plan


def _read(folder: BundleFolder, name: str) -> dict[str, Any]:
    """A report of the bundle, after its hash was checked."""
    if name not in folder.manifest.files:
        raise BundleError(
            f"{folder.path}: has no {name}, so it doesn't say what it was planned for",
            hint="build it again with this edgecompile and `lengths`"
            + (", or give them as `lengths`" if name == LENGTHS_REPORT else ""),
        )
    with os.fdopen(folder.open_checked(name), "rb") as stream:
        data = stream.read(_MAX_BYTES + 1)
    return parse_json(data, f"{folder.path}/{name}", _MAX_BYTES)
