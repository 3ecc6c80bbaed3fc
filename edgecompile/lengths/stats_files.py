"""The stats files that the runtime writes on devices: read, checked and added up.

A device counts lengths in bins where the axis is very long. Each run then counts as the last length
of its bin, so that a plan made from the counts never falls short.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from edgecompile.errors import LengthsError
from edgecompile.json_files import read_object, refused_as
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.rows import MAX_LENGTH, MAX_TOTAL
from edgecompile.lengths.traffic import (
    STATS_HINT,
    BucketTraffic,
    Cells,
    ServedTraffic,
    merge_traffic,
    parse_time,
)
from edgecompile.runtime.format.document import Problems, Reader, join, shorten

__all__ = ["STATS_VERSION", "BucketTraffic", "ServedTraffic", "merge_traffic", "read_stats"]

STATS_VERSION = 1

_MAX_FILE_BYTES = 64 << 20
_MAX_ENTRIES = 1 << 20
_LENGTH = re.compile(r"[1-9][0-9]{0,18}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")


def read_stats(
    paths: Iterable[str | os.PathLike[str]],
    *,
    any_bundle: bool = False,
    max_length: int | None = None,
) -> ServedTraffic:
    """Reads stats files and adds them up.

    Args:
        paths: the files, one at least.
        any_bundle: also add up files of different bundles (an older build of the same model).
        max_length: the axis' upper end: where lengths were counted in bins, the last length of a
            bin is cut to it.

    Raises:
        LengthsError: files that can't be read, are malformed, contradict themselves, have the same
            content or belong to different bundles; every problem of every file is told.
    """
    parts, problems, seen = [], [], dict[str, str]()
    for path in paths:
        name = os.fspath(path)
        try:
            document, data = read_object(
                path, LengthsError, max_bytes=_MAX_FILE_BYTES, hint=STATS_HINT
            )
            part = _StatsReader(document, name, max_length).read()
        except LengthsError as error:
            problems.append(error.message)
            continue
        digest = hashlib.sha256(data).hexdigest()
        if part.calls and digest in seen:
            problems.append(f"{name}: has the same content as {seen[digest]}; it would count twice")
        seen.setdefault(digest, name)
        parts.append(part)
    if problems:
        raise LengthsError("\n".join(problems), hint=STATS_HINT)
    return merge_traffic(parts, any_bundle=any_bundle)


class _StatsReader:
    """Reads one document; every problem is noted before one error is raised."""

    def __init__(self, document: dict[str, Any], name: str, max_length: int | None) -> None:
        self.document = document
        self.name = name
        self.max_length = max_length
        self.problems = Problems(name)
        self.reader = Reader(self.problems)

    def read(self) -> ServedTraffic:
        top, reader = self.document, self.reader
        if "stats_version" not in top and isinstance(top.get("lengths"), list):
            raise LengthsError(f"{self.name}: is a lengths file, not a device's stats file")
        version = reader.integer(top, "stats_version", "")
        if version is not None and version != STATS_VERSION:
            raise LengthsError(
                f"{self.name}: stats version {version}; this edgecompile reads {STATS_VERSION}",
                hint="use the edgecompile that built the bundle, or a newer one",
            )
        bundle = reader.name(top, "bundle", "")
        sha = reader.string(top, "manifest_sha256", "")
        if sha is not None and not _SHA256.fullmatch(sha):
            self.add("manifest_sha256", f"{shorten(sha)!r} isn't 64 lower-case hex digits")
        since, until = self.time("since"), self.time("until")
        axis = None
        if top.get("length_axis", "") is None:
            self.add("length_axis", "the bundle has no length axis, so no lengths were counted")
        else:
            axis = reader.name(top, "length_axis", "")
        width = self.whole(top, "length_bin", "", least=1)
        runs = self.whole(top, "runs", "")
        refused = self.whole(top, "refused", "")
        served = self.histogram("lengths")
        outside = self.histogram("outside")
        if runs is not None and "lengths" not in self.broken and sum(served.values()) != runs:
            self.add("runs", f"{runs}, but the lengths count {sum(served.values())}")
        buckets = self.buckets(runs)
        cell_axes, cells = self.sizes(axis)
        if runs is not None and cells is not None and "sizes" not in self.broken:
            total = sum(cells.values())
            if total != runs:
                self.add("sizes.cells", f"they count {total} runs, but {runs} are recorded in all")
        with refused_as(LengthsError, STATS_HINT):
            self.problems.raise_if_any()
        assert bundle is not None and sha is not None and axis is not None
        assert width is not None and refused is not None
        lengths = self.last_of_bins(served, width)
        distribution = LengthDistribution.from_counts(lengths, self.name) if lengths else None
        return ServedTraffic(
            bundle=bundle,
            manifests=(sha,),
            length_axis=axis,
            length_bin=width,
            distribution=distribution,
            outside=outside,
            refused=refused,
            since=since,
            until=until,
            buckets=buckets,
            cell_axes=cell_axes,
            cells=cells,
            sources=(self.name,),
        )

    @property
    def broken(self) -> set[str]:
        """The top-level keys that problems were noted for."""
        return {item.where.partition(".")[0].partition("[")[0] for item in self.problems.items}

    def add(self, where: str, text: str) -> None:
        self.problems.add("stats", where, text)

    def whole(self, parent: dict[str, Any], key: str, where: str, least: int = 0) -> int | None:
        """An integer from ``least`` to 2^53."""
        value = self.reader.integer(parent, key, where)
        return None if value is None else self.in_range(value, join(where, key), least)

    def in_range(self, value: int, where: str, least: int, most: int = MAX_TOTAL) -> int | None:
        if least <= value <= most:
            return value
        self.add(where, f"{value} isn't from {least} to {most}")
        return None

    def time(self, key: str) -> str:
        text = self.reader.string(self.document, key, "")
        if text is None:
            return ""
        try:
            if not _TIME.fullmatch(text):
                raise ValueError("not of the form")
            parse_time(text)
        except ValueError:
            self.add(key, f"{shorten(text)!r} isn't a time such as 2026-11-21T10:00:00Z")
        return text

    def histogram(self, key: str) -> Counter[int]:
        """Counts by length; what is over the largest length counts as that."""
        entries = self.reader.mapping(self.document, key, "")
        self.reader.count(len(entries), key, 0, _MAX_ENTRIES)
        result: Counter[int] = Counter()
        for text, value in entries.items():
            where = join(key, text)
            if not _LENGTH.fullmatch(text):
                self.add(where, "isn't a length: lengths are whole numbers from 1 up")
                continue
            count = self.reader.as_integer(value, where)
            if count is not None and self.in_range(count, where, 1):
                result[min(int(text), MAX_LENGTH)] += count
        return result

    def last_of_bins(self, served: Counter[int], width: int) -> Counter[int]:
        """Counts by the last length of each bin instead of the first."""
        limit = MAX_LENGTH if self.max_length is None else self.max_length
        result: Counter[int] = Counter()
        for first, count in served.items():
            result[max(first, min(first + width - 1, limit))] += count
        return result

    def buckets(self, runs: int | None) -> tuple[BucketTraffic, ...]:
        result = []
        for index, value in enumerate(self.reader.items(self.document, "buckets", "", 1, 256)):
            where = f"buckets[{index}]"
            entry = self.reader.as_object(value, where)
            if entry is not value:
                continue
            count = self.whole(entry, "runs", where)
            mean = None
            if entry.get("ms", "") is not None or count:
                times = self.reader.mapping(entry, "ms", where)
                if isinstance(entry.get("ms"), dict):
                    mean = self.reader.number(times, "mean", join(where, "ms"))
                if mean is not None and not 0 <= mean <= 1e12:
                    self.add(f"{where}.ms.mean", f"{mean} isn't a number of milliseconds")
            result.append(BucketTraffic(count or 0, mean))
        if runs is not None and "buckets" not in self.broken:
            total = sum(item.runs for item in result)
            if total != runs:
                self.add("buckets", f"they had {total} runs, but {runs} are recorded in all")
        return tuple(result)

    def sizes(self, axis: str | None) -> tuple[tuple[str, ...], Cells | None]:
        """The axes of the joint counts, and these; ((), None) where there are none."""
        if self.document.get("sizes") is None:
            return (), None
        entry = self.reader.mapping(self.document, "sizes", "")
        axes = [
            self.reader.as_string(item, f"sizes.axes[{i}]") or ""
            for i, item in enumerate(self.reader.items(entry, "axes", "sizes", 2, 2))
        ]
        if axis is not None and axes and "sizes" not in self.broken and axes[0] != axis:
            self.add("sizes.axes", f"begins with {shorten(axes[0])!r}, not the length axis")
        cells: dict[tuple[int, int], int] = {}
        for i, item in enumerate(self.reader.items(entry, "cells", "sizes", 0, _MAX_ENTRIES)):
            where = f"sizes.cells[{i}]"
            if not isinstance(item, list) or len(item) != 3:
                self.add(where, "isn't [size, size, count]")
                continue
            values = [self.reader.as_integer(value, where) for value in item]
            if None in values:
                continue
            length, other, count = (value for value in values if value is not None)
            bad = [
                self.in_range(length, where, 1, MAX_LENGTH) is None,
                self.in_range(other, where, 1, MAX_LENGTH) is None,
                self.in_range(count, where, 1) is None,
            ]
            if any(bad):
                continue
            if (length, other) in cells:
                self.add(where, f"the sizes {length}, {other} occur twice")
            cells[length, other] = count
        return tuple(axes), cells
