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
from datetime import datetime
from typing import Any

from edgecompile.errors import LengthsError
from edgecompile.json_files import read_object, refused_as
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.lengths.rows import MAX_LENGTH, MAX_TOTAL
from edgecompile.lengths.traffic import STATS_HINT, BucketTraffic, ServedTraffic, merge_traffic
from edgecompile.runtime.format.document import Problems, Reader, join, shorten

__all__ = ["STATS_VERSION", "read_stats"]

STATS_VERSION = 1

_MAX_FILE_BYTES = 64 << 20
_MAX_ENTRIES = 1 << 20
_MAX_MS = 1e12
_RULE = "stats"
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
            content or belong to different bundles; the problems of all files are listed.
    """
    parts, problems, seen = [], [], dict[str, str]()
    for path in paths:
        name = os.fspath(path)
        try:
            document, data = read_object(
                path, LengthsError, max_bytes=_MAX_FILE_BYTES, hint=STATS_HINT
            )
            part = _StatsReader(document, name).read(max_length)
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


class _StatsReader(Reader):
    """Reads one document; every problem is noted before one error is raised."""

    def __init__(self, document: dict[str, Any], name: str) -> None:
        super().__init__(Problems(name))
        self.document = document

    def read(self, max_length: int | None) -> ServedTraffic:
        top, name = self.document, self.problems.source
        if "stats_version" not in top and isinstance(top.get("lengths"), list):
            raise LengthsError(f"{name}: is a lengths file, not a device's stats file")
        version = self.integer(top, "stats_version", "")
        if version not in (None, STATS_VERSION):
            raise LengthsError(
                f"{name}: stats version {version}; this edgecompile reads {STATS_VERSION}",
                hint="use the edgecompile that built the bundle, or a newer one",
            )
        bundle = self.name(top, "bundle", "")
        sha = self.string(top, "manifest_sha256", "")
        self.check_form(sha, "manifest_sha256", _SHA256, _RULE, "isn't 64 lower-case hex digits")
        since, until = self.time("since"), self.time("until")
        axis = None
        if top.get("length_axis", "") is None:
            self.add("length_axis", "the bundle has no length axis, so no lengths were counted")
        else:
            axis = self.name(top, "length_axis", "")
        width = self.within(top, "length_bin", "", 1, MAX_TOTAL, _RULE)
        runs = self.within(top, "runs", "", 0, MAX_TOTAL, _RULE)
        refused = self.within(top, "refused", "", 0, MAX_TOTAL, _RULE)
        served, outside = self.histogram("lengths"), self.histogram("outside")
        buckets = self.buckets()
        axes, cells = self.cells()
        if not self.problems.items:  # else the sums would be wrong for a reason that is known
            in_buckets = sum(bucket.runs for bucket in buckets)
            in_cells = runs if cells is None else sum(cells.values())
            if sum(served.values()) != runs:
                self.add("runs", f"{runs}, but the lengths count {sum(served.values())}")
            if in_buckets != runs:
                self.add("buckets", f"they had {in_buckets} runs, but {runs} are recorded in all")
            if in_cells != runs:
                self.add(
                    "sizes.cells", f"they count {in_cells} runs, but {runs} are recorded in all"
                )
            if axes and axes[0] != axis:
                self.add("sizes.axes", f"begins with {shorten(axes[0])!r}, not the length axis")
        with refused_as(LengthsError, STATS_HINT):
            self.problems.raise_if_any()
        assert bundle is not None and sha is not None and axis is not None
        assert width is not None and refused is not None
        limit = MAX_LENGTH if max_length is None else max_length
        lengths: Counter[int] = Counter()
        for first, count in served.items():
            lengths[max(first, min(first + width - 1, limit))] += count
        return ServedTraffic(
            bundle=bundle,
            manifests=(sha,),
            length_axis=axis,
            length_bin=width,
            distribution=LengthDistribution.from_counts(lengths, name) if lengths else None,
            outside=outside,
            refused=refused,
            since=since,
            until=until,
            buckets=buckets,
            joint=JointDistribution.from_counts(axes, cells, name) if cells else None,
            sources=(name,),
        )

    def add(self, where: str, text: str) -> None:
        self.problems.add(_RULE, where, text)

    def time(self, key: str) -> str:
        text = self.string(self.document, key, "")
        if text is None:
            return ""
        try:
            if not _TIME.fullmatch(text):
                raise ValueError("not of the form")
            datetime.fromisoformat(text[:19])
        except ValueError:
            self.add(key, f"{shorten(text)!r} isn't a time such as 2026-11-21T10:00:00Z")
        return text

    def histogram(self, key: str) -> Counter[int]:
        """Counts by length; what is over the largest length counts as that."""
        entries = self.mapping(self.document, key, "")
        self.count(len(entries), key, 0, _MAX_ENTRIES)
        result: Counter[int] = Counter()
        for text in entries:
            if not _LENGTH.fullmatch(text):
                self.add(join(key, text), "isn't a length: lengths are whole numbers from 1 up")
                continue
            count = self.within(entries, text, key, 1, MAX_TOTAL, _RULE)
            result[min(int(text), MAX_LENGTH)] += count or 0
        return result

    def buckets(self) -> tuple[BucketTraffic, ...]:
        result = []
        for where, entry in self.objects(self.document, "buckets", "", 1, 256):
            count = self.within(entry, "runs", where, 0, MAX_TOTAL, _RULE)
            mean = None
            if entry.get("ms", "") is not None or count:
                times = self.mapping(entry, "ms", where)
                if times or entry.get("ms") == {}:
                    mean = self.number(times, "mean", join(where, "ms"))
                if mean is not None and not 0 <= mean <= _MAX_MS:
                    self.add(f"{where}.ms.mean", f"{mean} isn't a number of milliseconds")
            result.append(BucketTraffic(count or 0, mean))
        return tuple(result)

    def cells(self) -> tuple[tuple[str, ...], dict[tuple[int, ...], int] | None]:
        """The axes of the joint counts, and these; ((), None) where there are none."""
        if self.document.get("sizes") is None:
            return (), None
        entry = self.mapping(self.document, "sizes", "")
        axes = self.strings(entry, "axes", "sizes", 2, 2)
        cells: dict[tuple[int, ...], int] = {}
        for i, item in enumerate(self.items(entry, "cells", "sizes", 0, _MAX_ENTRIES)):
            where = f"sizes.cells[{i}]"
            if not isinstance(item, list) or len(item) != 3:
                self.add(where, "isn't [size, size, count]")
                continue
            values = [self.as_integer(value, where) for value in item]
            for value, most in zip(values, (MAX_LENGTH, MAX_LENGTH, MAX_TOTAL), strict=True):
                if value is not None:
                    self.check_range(value, where, 1, most, _RULE)
            length, other, count = (value or 0 for value in values)
            if (length, other) in cells:
                self.add(where, f"the sizes {length}, {other} occur twice")
            cells[length, other] = count
        return axes, cells
