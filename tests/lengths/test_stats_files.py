from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.served_traffic import BucketTraffic, merge_traffic
from edgecompile.lengths.stats_files import read_stats
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.stats.counters import Stats
from edgecompile.runtime.stats.file import StatsWriter
from tests.drift.served import SHA, stats_document, write_stats
from tests.runtime.bundles import DummyBundle

OTHER = "cd" * 32
histograms = st.dictionaries(st.integers(1, 2**31 - 1), st.integers(1, 10**6), max_size=20)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read(folder: Path, *documents: dict[str, Any], **options: Any) -> Any:
    paths = [write_stats(folder / f"{i}.json", document) for i, document in enumerate(documents)]
    return read_stats(paths, **options)


def refused(folder: Path, *documents: Any, **options: Any) -> str:
    with pytest.raises(LengthsError) as caught:
        read(folder, *documents, **options)
    assert caught.value.hint
    return caught.value.message


def cells(traffic: Any) -> dict[tuple[int, ...], int]:
    return dict(zip(traffic.joint.sizes, traffic.joint.counts, strict=True))


def test_one_file(tmp_path: Path) -> None:
    traffic = read(tmp_path, stats_document({5: 3, 9: 1}, outside={700: 2}, refused=4, buckets=2))
    assert traffic.distribution == LengthDistribution((5, 9), (3, 1), traffic.distribution.source)
    assert (traffic.runs, traffic.refused, traffic.calls) == (4, 4, 6)
    assert traffic.outside == {700: 2}
    assert traffic.manifests == (SHA,) and traffic.bundle == "tiny"
    assert traffic.buckets == (BucketTraffic(4, 2.0), BucketTraffic(0, None))
    assert traffic.joint is None
    assert (traffic.since, traffic.until) == ("2026-11-21T10:00:00Z", "2026-11-22T10:00:00Z")
    assert traffic.demand().lengths == (5, 9, 700)
    assert traffic.demand(outside=False).lengths == (5, 9)
    assert traffic.demand().source == (
        "stats of tiny, 2026-11-21T10:00:00Z to 2026-11-22T10:00:00Z, 1 file"
    )


def test_what_the_runtime_writes_is_read(tmp_path: Path) -> None:
    bundle = DummyBundle(tmp_path / "tiny.ecb")
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    stats = Stats(manifest)
    writer = StatsWriter(stats, manifest, SHA, "x86-64-v3", str(bundle.folder))
    assert read_stats([writer.write(tmp_path / "empty.json")]).calls == 0
    stats.record(0, {"length": 5, "batch": 1}, 1_000_000)
    stats.record(0, {"length": 5, "batch": 2}, 3_000_000)
    stats.record(1, {"length": 40, "batch": 1}, 5_000_000)
    stats.record_refusal({"length": 99, "batch": 1})
    stats.record_refusal({"length": 7, "batch": 9})
    stats.record_refusal()
    traffic = read_stats([writer.write(tmp_path / "stats.json")], max_length=64)
    assert traffic.demand(outside=False).counts == (2, 1)
    assert traffic.outside == {7: 1, 99: 1} and traffic.refused == 3
    assert traffic.buckets == (BucketTraffic(2, 2.0), BucketTraffic(1, 5.0))
    lengths, joint = traffic.sizes()
    assert lengths == traffic.demand()
    assert (
        joint is not None and joint.axes == ("length", "batch") and joint.source == lengths.source
    )
    assert cells(traffic) == {(5, 1): 1, (5, 2): 1, (40, 1): 1}


def test_binned_files_of_the_runtime_are_read(tmp_path: Path) -> None:
    bundle = DummyBundle(tmp_path / "tiny.ecb")
    bundle.document["axes"]["length"]["hi"] = 10_001
    bundle.document["buckets"][1]["axes"]["length"] = {"lo": 33, "hi": 10_001, "hint": 10_001}
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    stats = Stats(manifest)
    for length in (1, 3, 4, 10_001):
        stats.record(0, {"length": length, "batch": 1}, 1000)
    path = StatsWriter(stats, manifest, SHA, "v", str(bundle.folder)).write(tmp_path / "s.json")
    assert read_stats([path], max_length=10_001).demand().lengths == (3, 6, 10_001)
    assert read_stats([path]).demand().lengths == (3, 6, 10_002)


def test_no_traffic_yet(tmp_path: Path) -> None:
    traffic = read(tmp_path, stats_document({}))
    assert traffic.distribution is None and traffic.runs == traffic.calls == 0
    with pytest.raises(LengthsError, match="no call was counted yet"):
        traffic.demand()
    only = read(tmp_path, stats_document({}, outside={40: 2}))
    assert only.calls == 2 and only.demand().counts == (2,)
    with pytest.raises(LengthsError):
        only.demand(outside=False)


@in_one_folder
@given(first=histograms, second=histograms, lost=histograms)
def test_files_are_added_up(
    tmp_path: Path, first: dict[int, int], second: dict[int, int], lost: dict[int, int]
) -> None:
    traffic = read(
        tmp_path,
        stats_document(first, ms=1.0, since="2026-11-20T23:00:00.5Z"),
        stats_document(second, outside=lost, ms=4.0, until="2026-11-23T00:00:00Z"),
    )
    total = Counter(first) + Counter(second)
    if total:
        found = dict(zip(traffic.distribution.lengths, traffic.distribution.counts, strict=True))
        assert found == total
        times = sum(first.values()) * 1.0 + sum(second.values()) * 4.0
        assert traffic.buckets[0].mean_ms == pytest.approx(times / sum(total.values()))
    else:
        assert traffic.distribution is None
    assert traffic.outside == lost
    assert (traffic.since, traffic.until) == ("2026-11-20T23:00:00.5Z", "2026-11-23T00:00:00Z")
    assert len(traffic.sources) == 2


def test_only_files_of_one_bundle_unless_told(tmp_path: Path) -> None:
    documents = stats_document({5: 3}), stats_document({9: 1}, manifest_sha256=OTHER, bundle="old")
    message = refused(tmp_path, *documents)
    assert SHA in message and OTHER in message and "0.json" in message and "1.json" in message
    traffic = read(tmp_path, *documents, any_bundle=True)
    assert traffic.distribution.lengths == (5, 9)
    assert traffic.manifests == (SHA, OTHER)
    assert traffic.bundle == "tiny, old"
    assert traffic.buckets == ()
    other_axis = stats_document({9: 1}, manifest_sha256=OTHER, length_axis="frames")
    assert "frames, length" in refused(tmp_path, documents[0], other_axis, any_bundle=True)


def test_the_same_content_twice_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, stats_document({5: 3}), stats_document({5: 3}))
    assert "1.json: has the same content as" in message and "count twice" in message
    assert read(tmp_path, stats_document({}), stats_document({})).calls == 0


@pytest.mark.parametrize(
    ("max_length", "expected"), [(None, (10, 20, 30)), (25, (10, 20, 25)), (30, (10, 20, 30))]
)
def test_binned_lengths_count_as_the_last_of_their_bin(
    tmp_path: Path, max_length: int | None, expected: tuple[int, ...]
) -> None:
    document = stats_document({1: 2, 11: 3, 21: 4}, length_bin=10)
    traffic = read(tmp_path, document, max_length=max_length)
    assert traffic.distribution.lengths == expected
    assert traffic.distribution.counts == (2, 3, 4)
    assert traffic.length_bin == 10


def test_joint_counts(tmp_path: Path) -> None:
    def sizes(*cells: list[int]) -> dict[str, Any]:
        return {"axes": ["length", "batch"], "bins": [1, 1], "cells": list(cells)}

    one = stats_document({5: 3}, sizes=sizes([5, 1, 2], [5, 8, 1]))
    two = stats_document({5: 1, 6: 1}, sizes=sizes([5, 1, 1], [6, 2, 1]))
    traffic = read(tmp_path, one, two)
    assert cells(traffic) == {(5, 1): 3, (5, 8): 1, (6, 2): 1}
    assert traffic.joint.axes == ("length", "batch")
    assert read(tmp_path, one, stats_document({7: 1})).joint is None
    assert cells(read(tmp_path, one, stats_document({}))) == {(5, 1): 2, (5, 8): 1}
    other = stats_document({5: 1}, sizes={**sizes([5, 1, 1]), "axes": ["length", "frames"]})
    assert read(tmp_path, one, other).joint is None
    message = refused(
        tmp_path,
        stats_document({5: 9}, sizes=sizes([5, 1], [0, 1, 1], [5, 1, -3], [5, 1, 2], [5, 1, 2])),
    )
    for text in (
        "cells[0]: isn't",
        "cells[1][0]: 0 isn't",
        "cells[2][2]: -3 isn't",
        "5, 1 occur twice",
    ):
        assert text in message
    wrong = stats_document({5: 1}, sizes={**sizes([5, 1, 1]), "axes": ["batch", "length"]})
    assert "'batch', not the length axis" in refused(tmp_path, wrong)
    assert "count 2 runs, but 3" in refused(
        tmp_path, stats_document({5: 3}, sizes=sizes([5, 1, 2]))
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"stats_version": 2}, "stats version 2; this edgecompile reads 1"),
        ({"stats_version": "1"}, "stats_version: must be an integer, not string"),
        ({"manifest_sha256": "AB" * 32}, "64 lower-case hex digits"),
        ({"bundle": "../up"}, "isn't a name"),
        ({"since": "yesterday"}, "since: 'yesterday' isn't a time"),
        ({"until": "2026-13-21T10:00:00Z"}, "until: '2026-13-21T10:00:00Z' isn't a time"),
        ({"length_axis": None, "lengths": {}}, "has no length axis"),
        ({"length_bin": 0}, "length_bin: 0 isn't within 1.."),
        ({"runs": -1}, "runs: -1 isn't within 0.."),
        ({"runs": 2**60}, "runs: 1152921504606846976 isn't"),
        ({"runs": 5}, "runs: 5, but the lengths count 3"),
        ({"runs": 3.0}, "runs: must be an integer, not number"),
        ({"refused": True}, "refused: must be an integer, not true/false"),
        ({"lengths": {"5": -3}}, "lengths.5: -3 isn't within 1.."),
        ({"lengths": {"5": 0}}, "lengths.5: 0 isn't within 1.."),
        ({"lengths": {"5": None}}, "lengths.5: must be an integer, not null"),
        ({"lengths": {"0": 3}}, "lengths.0: isn't a length"),
        ({"lengths": {"05": 3}}, "lengths.05: isn't a length"),
        ({"lengths": {"-5": 3}}, "lengths.-5: isn't a length"),
        ({"lengths": {"x": 3}}, "lengths.x: isn't a length"),
        ({"lengths": [5, 5, 5]}, "lengths: must be an object, not list"),
        ({"outside": {"1e3": 1}}, "outside.1e3: isn't a length"),
        ({"outside": 3}, "outside: must be an object"),
        ({"buckets": []}, "buckets: has 0 entries"),
        ({"buckets": [3]}, "buckets[0]: must be an object"),
        ({"buckets": [{"runs": 2, "ms": {"mean": 1.0}}]}, "they had 2 runs, but 3 are recorded"),
        ({"buckets": [{"runs": 3, "ms": None}]}, "buckets[0].ms: must be an object, not null"),
        ({"buckets": [{"runs": 3, "ms": {}}]}, "buckets[0].ms.mean: is required"),
        ({"buckets": [{"runs": 3, "ms": {"mean": -1}}]}, "-1 isn't a number of milliseconds"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    message = refused(tmp_path, {**stats_document({5: 3}), **change})
    assert expected in message and "0.json" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "json-syntax"),
        ("[]", "must be an object"),
        ('{"a": NaN}', "NaN isn't a JSON number"),
        ('{"a": 1e999}', "isn't a finite double"),
        ('{"a": ' + "9" * 5000 + "}", "doesn't fit in 64 bits"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ("[" * 100_000, "nested deeper"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_hostile_json_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "stats.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(LengthsError, match=re.escape(expected)):
        read_stats([path])


def test_truncation_anywhere_is_noticed(tmp_path: Path) -> None:
    text = json.dumps(stats_document({5: 3, 9: 1}, outside={700: 2}))
    path = tmp_path / "stats.json"
    for end in range(len(text)):
        path.write_text(text[:end])
        with pytest.raises(LengthsError):
            read_stats([path])
    path.write_text(text)
    assert read_stats([path]).runs == 4


@pytest.mark.parametrize("key", [*stats_document({5: 3})])
def test_every_key_that_is_used_is_required(tmp_path: Path, key: str) -> None:
    document = stats_document({5: 3})
    del document[key]
    if key in ("axes", "variant", "padding", "sizes"):  # not used, or null by default
        assert read(tmp_path, document).runs == 3
    else:
        assert f"{key}: is required" in refused(tmp_path, document)


def test_all_problems_of_all_files_are_told(tmp_path: Path) -> None:
    bad = {**stats_document({5: 3}), "refused": -1, "lengths": {"5": "x", "0": 2}}
    write_stats(tmp_path / "bad.json", bad)
    with pytest.raises(LengthsError) as caught:
        read_stats([tmp_path / "absent.json", tmp_path / "bad.json", tmp_path])
    for text in ("absent.json: can't be read", "refused: -1", "lengths.5: must", "Is a directory"):
        assert text in caught.value.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@in_one_folder
@given(st.sampled_from(sorted(stats_document({5: 3}))), json_values)
def test_any_value_anywhere_is_read_or_refused(tmp_path: Path, key: str, value: Any) -> None:
    try:
        traffic = read(tmp_path, {**stats_document({5: 3}), key: value})
    except LengthsError:
        return
    assert traffic.runs == 3


def test_absurd_lengths_and_totals(tmp_path: Path) -> None:
    traffic = read(tmp_path, stats_document({5: 1}, outside={2**31: 2, 2**40: 1}))
    assert traffic.outside == {2**31 - 1: 3}
    half = 2**52 + 1
    with pytest.raises(LengthsError, match="over 9007199254740992 samples"):
        read(tmp_path, stats_document({5: half}), stats_document({6: half}))


def test_nothing_to_read() -> None:
    with pytest.raises(LengthsError, match="no stats files"):
        read_stats([])
    with pytest.raises(LengthsError, match="no stats files"):
        merge_traffic([])
