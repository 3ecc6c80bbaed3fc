"""The calibration files that devices write: read and checked."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, cast

from edgecompile.buckets.costs.grid import LEAST_MS, MODES, MOST_MS, Mode
from edgecompile.buckets.limits import BucketCost
from edgecompile.errors import CostError, PlanError
from edgecompile.json_files import read_object, refused_as
from edgecompile.lengths.rows import MAX_LENGTH
from edgecompile.planning.costs.calibration import (
    CALIBRATION_HINT,
    CalibratedPoint,
    Calibration,
    spell_sizes,
)
from edgecompile.runtime.format.document import SHA256, Field, Problems, shorten

CALIBRATION_VERSION = 1

_RULE = "calibration"

_MAX_FILE_BYTES = 16 << 20
_MAX_POINTS = 1 << 16


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Reads a calibration file.

    Raises:
        CostError: it can't be read, is malformed, of an unknown version, or has points that are
            missing, not positive, repeated or not ascending in length within one bucket; all that
            is wrong is said.
    """
    return parse_calibration(read_document(path), os.fspath(path))


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a calibration file; raises CostError where there is none."""
    return read_object(path, CostError, max_bytes=_MAX_FILE_BYTES, hint=CALIBRATION_HINT)[0]


def parse_calibration(document: dict[str, Any], name: str) -> Calibration:
    """Reads the contents of a calibration file called ``name``; unknown keys are ignored.

    Raises:
        CostError: see :func:`read_calibration`.
    """
    problems = Problems(name)
    top = Field(problems, document)
    version = top.at("calibration_version").integer()
    if version is not None and version != CALIBRATION_VERSION:
        raise CostError(
            f"{name}: calibration version {version}; this edgecompile reads {CALIBRATION_VERSION}",
            hint="calibrate again, with a bundle that this edgecompile built",
        )
    texts = {
        key: top.at(key).string() or ""
        for key in ("model", "variant", "arch", "date", "precision", "length_axis")
    }
    edgecompile, structure = (_text_or_null(top.at(key)) for key in ("edgecompile", "structure"))
    sha = top.at("manifest_sha256").formed(SHA256, _RULE, "isn't 64 lower-case hex digits")
    threads = top.at("threads").within(1, 4096, _RULE)
    host = top.at("host").mapping()
    open_ms, load_ms = (
        _milliseconds(top.at(key)) if top.find(key).value is not None else None
        for key in ("open_ms", "load_ms")
    )
    points = _read_points(top.at("points"), texts["length_axis"])
    cost = BucketCost()
    try:
        cost = BucketCost.from_json(document.get("bucket_cost", {}))
    except PlanError as error:
        top.find("bucket_cost").refuse(_RULE, error.message)
    # Files of before its day have no mode.
    mode = _text_or_null(top.find("mode"))
    gpu = top.find("gpu")
    capability = gpu.mapping().get("compute_capability") if gpu.given else None
    with refused_as(CostError, CALIBRATION_HINT):
        problems.raise_if_any()
    return Calibration(
        source=name,
        manifest_sha256=sha or "",
        threads=threads or 0,
        host=host,
        points=points,
        open_ms=open_ms,
        load_ms=load_ms,
        mode=mode,
        capability=capability if isinstance(capability, str) else None,
        bucket_cost=replace(cost, load_ms=load_ms or 0.0),
        edgecompile=edgecompile,
        structure=structure,
        **texts,
    )


def _text_or_null(field: Field) -> str | None:
    return field.string() if field.given else None


def _milliseconds(field: Field) -> float:
    """A finite number from 0 up."""
    value = field.number()
    if value is not None and not 0 <= value <= MOST_MS:
        field.refuse(_RULE, f"{value} isn't a number of milliseconds from 0 up")
    return float(value or 0)


def _read_points(field: Field, axis: str) -> tuple[CalibratedPoint, ...]:
    points: list[CalibratedPoint] = []
    seen: dict[tuple[object, ...], str] = {}
    last: dict[tuple[object, ...], int] = {}
    axes: set[str] | None = None
    for entry in field.objects(1, _MAX_POINTS):
        noted = field.problems.count
        bucket = entry.at("bucket").within(0, 255, _RULE)
        mode = entry.at("mode").choice(MODES, _RULE)
        at = entry.at("sizes")
        sizes = {name: size.within(1, MAX_LENGTH, _RULE) or 0 for name, size in at.members()}
        if isinstance(at.value, dict):
            if axis and axis not in sizes:
                at.refuse(_RULE, f"has no {shorten(axis)}")
            axes = set(sizes) if axes is None else axes
            if set(sizes) != axes:
                at.refuse(_RULE, f"has other axes than {', '.join(sorted(axes))}")
        ms = entry.at("ms").number()
        if ms is not None and not LEAST_MS <= ms <= MOST_MS:
            text = f"{ms} isn't from {LEAST_MS:g} to {MOST_MS:g} ms"
            entry.find("ms").refuse(_RULE, text)
        spread = _milliseconds(entry.at("spread_ms"))
        samples = entry.at("samples").within(1, 2**53, _RULE)
        if field.problems.count > noted:
            continue
        assert bucket is not None and mode is not None and ms is not None and samples is not None
        pairs = tuple(sorted(sizes.items()))
        point = CalibratedPoint(bucket, cast(Mode, mode), pairs, float(ms), spread, samples)
        points.append(point)
        other = seen.setdefault((mode, pairs), entry.where)
        if other != entry.where:
            entry.refuse(_RULE, f"repeats {other}: {mode} at {spell_sizes(pairs)}")
            continue
        if axis not in sizes:
            continue  # the axis itself is amiss, which was noted
        ladder = (bucket, mode, point.others(axis))
        length = point.size(axis)
        if length < last.get(ladder, 0):
            entry.refuse(_RULE, f"the {axis} {length} comes after {last[ladder]}")
        last[ladder] = length
    return tuple(points)
