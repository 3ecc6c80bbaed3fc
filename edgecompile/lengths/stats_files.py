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

from edgecompile.errors import LengthsError
from edgecompile.json_files import read_object, refused_as
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.lengths.rows import MAX_LENGTH, MAX_TOTAL
from edgecompile.lengths.served_traffic import (
    STATS_HINT,
    BucketTraffic,
    ServedTraffic,
    merge_traffic,
)
from edgecompile.runtime.format.document import SHA256, Field, Problems, shorten

STATS_VERSION = 1

_MAX_FILE_BYTES = 64 << 20
_MAX_ENTRIES = 1 << 20
_MAX_MS = 1e12
_RULE = "stats"
_LENGTH = re.compile(r"[1-9][0-9]{0,18}")
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
            part = _read_stats(Field(Problems(name), document), max_length)
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


def _read_stats(top: Field, max_length: int | None) -> ServedTraffic:
    """The traffic of one document; every problem is noted before one error is raised."""
    problems, name = top.problems, top.problems.source
    if not top.find("stats_version") and isinstance(top.find("lengths").value, list):
        raise LengthsError(f"{name}: is a lengths file, not a device's stats file")
    version = top.at("stats_version").integer()
    if version not in (None, STATS_VERSION):
        raise LengthsError(
            f"{name}: stats version {version}; this edgecompile reads {STATS_VERSION}",
            hint="use the edgecompile that built the bundle, or a newer one",
        )
    bundle = top.at("bundle").name()
    sha = top.at("manifest_sha256").formed(SHA256, _RULE, "isn't 64 lower-case hex digits")
    release = top.find("release")
    number = release.within(0, 2**53, _RULE) if release.given else None
    since, until = _time(top.at("since")), _time(top.at("until"))
    axis = None
    if top.find("length_axis").value is None:
        text = "the bundle has no length axis, so no lengths were counted"
        top.find("length_axis").refuse(_RULE, text)
    else:
        axis = top.at("length_axis").name()
    width = top.at("length_bin").within(1, MAX_TOTAL, _RULE)
    runs = top.at("runs").within(0, MAX_TOTAL, _RULE)
    refused = top.at("refused").within(0, MAX_TOTAL, _RULE)
    served, outside = _histogram(top.at("lengths")), _histogram(top.at("outside"))
    buckets = _read_buckets(top.at("buckets"))
    axes, cells = _read_cells(top.find("sizes"))
    if not problems.items:  # else the sums would be wrong for a reason that is known
        in_buckets = sum(bucket.runs for bucket in buckets)
        in_cells = runs if cells is None else sum(cells.values())
        if sum(served.values()) != runs:
            text = f"{runs}, but the lengths count {sum(served.values())}"
            top.find("runs").refuse(_RULE, text)
        if in_buckets != runs:
            text = f"they had {in_buckets} runs, but {runs} are recorded in all"
            top.find("buckets").refuse(_RULE, text)
        if in_cells != runs:
            text = f"they count {in_cells} runs, but {runs} are recorded in all"
            top.find("sizes").find("cells").refuse(_RULE, text)
        if axes and axes[0] != axis:
            text = f"begins with {shorten(axes[0])!r}, not the length axis"
            top.find("sizes").find("axes").refuse(_RULE, text)
    with refused_as(LengthsError, STATS_HINT):
        problems.raise_if_any()
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
        release=number,
    )


def _time(field: Field) -> str:
    text = field.string()
    if text is None:
        return ""
    try:
        if not _TIME.fullmatch(text):
            raise ValueError("not of the form")
        datetime.fromisoformat(text[:19])
    except ValueError:
        field.refuse(_RULE, f"{shorten(text)!r} isn't a time such as 2026-11-21T10:00:00Z")
    return text


def _histogram(entries: Field) -> Counter[int]:
    """Counts by length; what is over the largest length counts as that."""
    result: Counter[int] = Counter()
    for text, field in entries.members(0, _MAX_ENTRIES):
        if not _LENGTH.fullmatch(text):
            field.refuse(_RULE, "isn't a length: lengths are whole numbers from 1 up")
            continue
        result[min(int(text), MAX_LENGTH)] += field.within(1, MAX_TOTAL, _RULE) or 0
    return result


def _read_buckets(entries: Field) -> tuple[BucketTraffic, ...]:
    result = []
    for entry in entries.objects(1, 256):
        count = entry.at("runs").within(0, MAX_TOTAL, _RULE)
        mean = None
        if entry.find("ms").value is not None or count:
            field = entry.at("ms").object().at("mean")
            mean = field.number()
            if mean is not None and not 0 <= mean <= _MAX_MS:
                field.refuse(_RULE, f"{mean} isn't a number of milliseconds")
        result.append(BucketTraffic(count or 0, mean))
    return tuple(result)


def _read_cells(entry: Field) -> tuple[tuple[str, ...], dict[tuple[int, ...], int] | None]:
    """The axes of the joint counts, and these; ((), None) where there are none."""
    if not entry.given:
        return (), None
    entry = entry.object()
    axes = entry.at("axes").strings(2, 2)
    cells: dict[tuple[int, ...], int] = {}
    for item in entry.at("cells").items(0, _MAX_ENTRIES):
        if not isinstance(item.value, list) or len(item.value) != 3:
            item.refuse(_RULE, "isn't [size, size, count]")
            continue
        limits = (MAX_LENGTH, MAX_LENGTH, MAX_TOTAL)
        values = [
            number.within(1, most, _RULE) or 0
            for number, most in zip(item.items(3, 3), limits, strict=True)
        ]
        length, other, count = values
        if (length, other) in cells:
            item.refuse(_RULE, f"the sizes {length}, {other} occur twice")
        cells[length, other] = count
    return axes, cells
