"""Costs measured on the device by ``python -m edgecompile.runtime bench --calibrate``.

A calibration holds for one model, precision, kind of machine, version and number of threads;
:func:`check_calibration` compares all of them before anything is planned with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from edgecompile.buckets.costs.grid import MODES, CostGrid, CostPoint, Mode
from edgecompile.buckets.costs.merge import merge_modes
from edgecompile.buckets.limits import BucketCost
from edgecompile.errors import CostError
from edgecompile.runtime.format.document import shorten
from edgecompile.runtime.format.manifest.schema import TRITON
from edgecompile.runtime.gpu.engines import PLANNED
from edgecompile.targets.profile import TargetProfile

CALIBRATION_HINT = (
    "write one on the device: python -m edgecompile.runtime bench BUNDLE --calibrate FILE, with a "
    "bundle of this model"
)

OtherSizes = tuple[tuple[str, int], ...]  # name and size of each axis but the length axis


@dataclass(frozen=True)
class CalibratedPoint:
    """One program at one set of sizes.

    Attributes:
        bucket: index in the bundle that was run.
        mode: ``exact`` or ``pad``.
        sizes: (axis, size) pairs by name; what was computed, so a padded program's own sizes.
        ms: median milliseconds of a run.
        spread_ms: distance of its quartiles.
        samples: the number of runs.
    """

    bucket: int
    mode: Mode
    sizes: tuple[tuple[str, int], ...]
    ms: float
    spread_ms: float
    samples: int

    def size(self, axis: str) -> int:
        """The size of one axis; raises KeyError if there is no such axis."""
        return dict(self.sizes)[axis]

    def others(self, axis: str) -> OtherSizes:
        """The sizes of all axes but one."""
        return tuple(item for item in self.sizes if item[0] != axis)


@dataclass(frozen=True)
class Calibration:
    """A device's measurements.

    Attributes:
        source: the file.
        edgecompile: version that built the bundle that was run; None if it doesn't say.
        model: name of the bundle.
        structure: hash of the model's structure; None if the bundle recorded none.
        manifest_sha256: the SHA-256 of the bundle's manifest.
        variant, arch: the code that ran.
        threads: the threads of one run.
        host: the device, as ``describe_host`` tells it.
        date: when, UTC.
        length_axis: name of the axis that plans divide.
        precision: the precision of the weights.
        points: the points in the file's order.
        open_ms: median milliseconds of opening the bundle; None if it wasn't measured.
        load_ms: milliseconds that loading one more program takes, likewise.
        bucket_cost: the cost of building and shipping a bucket; all 0 where the file doesn't say.
        mode: the mode in which a GPU ran, as in ``Model.info``; None if the file doesn't say.
        capability: the GPU's compute capability, such as 8.7; likewise.
    """

    source: str
    edgecompile: str | None
    model: str
    structure: str | None
    manifest_sha256: str
    variant: str
    arch: str
    threads: int
    host: Mapping[str, Any] = field(hash=False)
    date: str
    length_axis: str
    precision: str
    points: tuple[CalibratedPoint, ...]
    open_ms: float | None
    load_ms: float | None
    bucket_cost: BucketCost = field(default_factory=BucketCost)
    mode: str | None = None
    capability: str | None = None

    @cached_property
    def slices(self) -> dict[OtherSizes, tuple[CalibratedPoint, ...]]:
        """The points by the sizes of the axes other than the length axis, smallest first.

        Within a slice they are ascending in length, ``exact`` before ``pad``.
        """

        def key(point: CalibratedPoint) -> tuple[Any, ...]:
            others = point.others(self.length_axis)
            order = [size for _, size in others]
            return order, others, point.size(self.length_axis), MODES.index(point.mode)

        ordered = sorted(self.points, key=key)
        groups = groupby(ordered, key=lambda point: point.others(self.length_axis))
        return {others: tuple(points) for others, points in groups}

    def curve(self, axis: str | None = None, at: Mapping[str, int] | None = None) -> CostGrid:
        """Costs over the length axis, of kind ``calibrated``.

        Modes that were measured at different lengths are merged by
        :func:`edgecompile.buckets.costs.merge.merge_modes`; the provenance says where each was measured.

        Args:
            axis: the length axis, to make sure that it is the one meant; None: don't check.
            at: sizes of the other axes; None: the smallest that were measured.

        Raises:
            CostError: the calibration divides another axis, or wasn't measured at these sizes.
        """
        if axis is not None and axis != self.length_axis:
            raise CostError(
                f"{self.source}: measured along {self.length_axis}, not along {axis}",
                hint=CALIBRATION_HINT,
            )
        sizes = next(iter(self.slices)) if at is None else tuple(sorted(at.items()))
        if sizes not in self.slices:
            measured = "; ".join(spell_sizes(others) for others in self.slices)
            raise CostError(
                f"{self.source}: nothing was measured at {spell_sizes(sizes)}",
                hint=f"it has points at: {measured}",
            )
        exact = [
            CostPoint(point.size(self.length_axis), point.ms, None, point.spread_ms)
            for point in self.slices[sizes]
            if point.mode == "exact"
        ]
        pad = [
            CostPoint(point.size(self.length_axis), None, point.ms, pad_spread_ms=point.spread_ms)
            for point in self.slices[sizes]
            if point.mode == "pad"
        ]
        provenance = {
            "how": "the runtime on the device (bench --calibrate)",
            "model": self.model,
            "variant": self.variant,
            "threads": str(self.threads),
            "machine": _machine(self.host),
            "date": self.date,
            "edgecompile": self.edgecompile or "unknown",
        }
        if sizes:
            provenance["at"] = spell_sizes(sizes)
        for mode, points in (("exact", exact), ("pad", pad)):
            if points:
                provenance[f"{mode}_measured_at"] = ", ".join(str(p.length) for p in points)
        try:
            return CostGrid(merge_modes(exact, pad), "calibrated", provenance)
        except CostError as error:
            raise CostError(f"{self.source}: {error.message}", hint=CALIBRATION_HINT) from error


def check_calibration(
    calibration: Calibration,
    *,
    structure: str,
    target: TargetProfile,
    edgecompile_version: str,
    threads: int | None = None,
    length_axis: str = "length",
    precision: str = "fp32",
    triton: bool = False,
) -> None:
    """Makes sure that a calibration may be used for a model and a target.

    Args:
        calibration: the measurements of a device.
        structure: hash of the structure of the model that is planned for.
        target: the target of the build; its variants are the machines that are accepted, of a
            target with a GPU that alone.
        edgecompile_version: the version that builds.
        threads: the threads that are planned for; None accepts any number.
        length_axis: the axis that the plan divides.
        precision: the precision that the bundle will state.
        triton: whether a GPU's programs are Triton kernels.

    Raises:
        CostError: tells every difference.
    """
    problems = []
    if calibration.structure is None:
        problems.append("it doesn't say of which model: the bundle recorded no structure")
    elif calibration.structure != structure:
        problems.append(
            f"it is of another model, {calibration.model}: its structure is {calibration.structure}"
            f", this model's {structure}"
        )
    variants = {variant.name: variant.arch for variant in target.variants}
    if target.gpu is not None:
        # The bundle calls the GPU's variant after the target. Its own cores cost something else.
        variants = {target.name: target.archs[0]}
        if triton:
            # These are called after the host; a GPU of the same code costs much the same.
            variants = {f"{TRITON}-{arch}": arch for arch in target.archs}
            served = target.gpu.cubins or (target.gpu.compute_capability,)
            if calibration.capability not in served:
                problems.append(
                    f"it is of a GPU of compute capability {calibration.capability or 'unknown'}, "
                    f"the target's code is for {', '.join(served)}"
                )
        if calibration.mode != PLANNED:
            # Others launch kernels where the plan replays graphs, or pad what it doesn't.
            problems.append(
                f"it was measured in the mode {calibration.mode or 'unknown'}, not in {PLANNED} "
                "(EDGECOMPILE_MODE)"
            )
    if variants.get(calibration.variant) != calibration.arch:
        names = ", ".join(f"{name} ({arch})" for name, arch in variants.items())
        problems.append(
            f"it is of another machine: it ran {calibration.variant} ({calibration.arch}), the "
            f"target {target.name} has {names}"
        )
    if calibration.edgecompile != edgecompile_version:
        problems.append(
            f"it is of another version: edgecompile {calibration.edgecompile or 'unknown'}, this "
            f"is {edgecompile_version}"
        )
    if threads is not None and calibration.threads != threads:
        problems.append(f"it was measured with {calibration.threads} threads, not {threads}")
    # A GPU's float32 weights have a name of their own.
    if calibration.precision.removesuffix("-gpu") != precision:
        problems.append(f"it was measured in {calibration.precision}, not in {precision}")
    if calibration.length_axis != length_axis:
        problems.append(f"it was measured along {calibration.length_axis}, not along {length_axis}")
    if problems:
        raise CostError(
            f"{calibration.source}: this calibration can't be used: " + "; ".join(problems),
            hint=CALIBRATION_HINT,
        )


def _machine(host: Mapping[str, Any]) -> str:
    model = host.get("model")
    return shorten(model, 200) if isinstance(model, str) and model else "unknown"


def spell_sizes(sizes: OtherSizes) -> str:
    """``batch 1, length 64``."""
    return ", ".join(f"{name} {size}" for name, size in sizes) or "no other axes"
