"""The calibration files that devices write: read and checked."""

from __future__ import annotations

import os
import re
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
from edgecompile.runtime.format.document import Problems, Reader, join, shorten

__all__ = ["CALIBRATION_VERSION", "parse_calibration", "read_calibration", "read_document"]

CALIBRATION_VERSION = 1

_MAX_FILE_BYTES = 16 << 20
_MAX_POINTS = 1 << 16
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
        CostError: as :func:`read_calibration`.
    """
    return _CalibrationReader(document, name).read()


class _CalibrationReader:
    """Reads one document; every problem is noted before one error is raised."""

    def __init__(self, document: dict[str, Any], name: str) -> None:
        self.document = document
        self.name = name
        self.problems = Problems(name)
        self.reader = Reader(self.problems)

    def read(self) -> Calibration:
        top, reader = self.document, self.reader
        version = reader.integer(top, "calibration_version", "")
        if version is not None and version != CALIBRATION_VERSION:
            raise CostError(
                f"{self.name}: calibration version {version}; this edgecompile reads "
                f"{CALIBRATION_VERSION}",
                hint="calibrate again, with a bundle that this edgecompile built",
            )
        texts = {
            key: reader.string(top, key, "") or ""
            for key in ("model", "variant", "arch", "date", "precision")
        }
        axis = reader.string(top, "length_axis", "") or ""
        version_of, structure = self.text_or_null("edgecompile"), self.text_or_null("structure")
        sha = reader.string(top, "manifest_sha256", "") or ""
        if sha and not _SHA256.fullmatch(sha):
            self.add("manifest_sha256", f"{shorten(sha)!r} isn't 64 lower-case hex digits")
        # Files of before its day have none.
        mode = self.text_or_null("mode") if "mode" in top else None
        gpu = reader.mapping(top, "gpu", "") if top.get("gpu") is not None else {}
        capability = gpu.get("compute_capability")
        threads = self.whole(top, "threads", "", 1, 4096)
        host = reader.mapping(top, "host", "")
        open_ms, load_ms = (
            None if top.get(key, "") is None else self.milliseconds(top, key, "")
            for key in ("open_ms", "load_ms")
        )
        points = self.points(axis)
        cost = BucketCost()
        try:
            cost = BucketCost.from_json(top.get("bucket_cost", {}))
        except PlanError as error:
            self.add("bucket_cost", error.message)
        with refused_as(CostError, CALIBRATION_HINT):
            self.problems.raise_if_any()
        return Calibration(
            source=self.name,
            edgecompile=version_of,
            model=texts["model"],
            structure=structure,
            manifest_sha256=sha,
            variant=texts["variant"],
            arch=texts["arch"],
            threads=threads,
            host=host,
            date=texts["date"],
            length_axis=axis,
            precision=texts["precision"],
            points=points,
            open_ms=open_ms,
            load_ms=load_ms,
            mode=mode,
            capability=capability if isinstance(capability, str) else None,
            bucket_cost=replace(cost, load_ms=load_ms or 0.0),
        )

    def add(self, where: str, text: str) -> None:
        self.problems.add("calibration", where, text)

    def whole(self, parent: dict[str, Any], key: str, where: str, least: int, most: int) -> int:
        value = self.reader.integer(parent, key, where)
        if value is not None and not least <= value <= most:
            self.add(join(where, key), f"{value} isn't from {least} to {most}")
        return value or 0

    def text_or_null(self, key: str) -> str | None:
        value = self.reader.key(self.document, key, "")
        return None if value is None else self.reader.as_string(value, key)

    def milliseconds(self, parent: dict[str, Any], key: str, where: str) -> float:
        """A finite number from 0 up."""
        value = self.reader.number(parent, key, where)
        if value is not None and not 0 <= value <= MOST_MS:
            self.add(join(where, key), f"{value} isn't a number of milliseconds from 0 up")
        return float(value or 0)

    def points(self, axis: str) -> tuple[CalibratedPoint, ...]:
        found: list[CalibratedPoint] = []
        seen: dict[tuple[object, ...], str] = {}
        last: dict[tuple[object, ...], int] = {}
        axes: set[str] | None = None
        for index, value in enumerate(
            self.reader.items(self.document, "points", "", 1, _MAX_POINTS)
        ):
            where = f"points[{index}]"
            noted = len(self.problems.items)
            entry = self.reader.as_object(value, where)
            if entry is not value:
                continue
            bucket = self.whole(entry, "bucket", where, 0, 255)
            mode = self.reader.string(entry, "mode", where)
            if mode is not None and mode not in MODES:
                self.add(f"{where}.mode", f"{shorten(mode)!r} is neither exact nor pad")
            sizes = {
                name: self.whole(entry["sizes"], name, f"{where}.sizes", 1, MAX_LENGTH)
                for name in self.reader.mapping(entry, "sizes", where)
            }
            if isinstance(entry.get("sizes"), dict):
                if axis and axis not in sizes:
                    self.add(f"{where}.sizes", f"has no {shorten(axis)}")
                axes = set(sizes) if axes is None else axes
                if set(sizes) != axes:
                    self.add(f"{where}.sizes", f"has other axes than {', '.join(sorted(axes))}")
            ms = self.reader.number(entry, "ms", where)
            if ms is not None and not LEAST_MS <= ms <= MOST_MS:
                self.add(f"{where}.ms", f"{ms} isn't from {LEAST_MS:g} to {MOST_MS:g} ms")
            spread = self.milliseconds(entry, "spread_ms", where)
            samples = self.whole(entry, "samples", where, 1, 2**53)
            if len(self.problems.items) > noted:
                continue
            assert ms is not None
            pairs = tuple(sorted(sizes.items()))
            point = CalibratedPoint(bucket, cast(Mode, mode), pairs, float(ms), spread, samples)
            found.append(point)
            other = seen.setdefault((mode, pairs), where)
            if other != where:
                self.add(where, f"repeats {other}: {mode} at {spell_sizes(pairs)}")
                continue
            if axis not in sizes:
                continue  # the axis itself is amiss, which was noted
            ladder = (bucket, mode, point.others(axis))
            length = point.size(axis)
            if length < last.get(ladder, 0):
                self.add(where, f"the {axis} {length} comes after {last[ladder]}")
            last[ladder] = length
        return tuple(found)
