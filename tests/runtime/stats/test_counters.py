"""stats: counts, bounded memory, threads."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from edgecompile.runtime.format.manifest.schema import BucketSpec, Extent, Manifest
from edgecompile.runtime.stats.counters import KEPT_TIMES, MAX_BINS, MAX_PENDING, Stats, percentile


def at(length: int, batch: int = 1) -> dict[str, int]:
    return {"batch": batch, "length": length}


def test_counts(manifest: Manifest) -> None:
    stats = Stats(manifest)
    assert stats.snapshot()["runs"] == 0 and stats.snapshot()["buckets"][0]["ms"] is None
    assert stats.empty
    stats.record(0, at(10), 2_000_000)
    assert not stats.empty
    stats.record(0, at(10), 4_000_000)
    stats.record(1, at(48, 2), 10_000_000)
    stats.record_refusal()
    seen = stats.snapshot()
    assert json.loads(json.dumps(seen)) == seen
    assert (seen["runs"], seen["refused"]) == (3, 1)
    assert seen["lengths"] == {"10": 2, "48": 1}
    assert seen["sizes"] == {
        "axes": ["length", "batch"],
        "bins": [1, 1],
        "cells": [[10, 1, 2], [48, 2, 1]],
    }
    assert seen["outside"] == {}
    assert seen["padding"] == pytest.approx(16 / 84)
    assert [item["runs"] for item in seen["buckets"]] == [2, 1]
    assert seen["buckets"][1]["padding"] == pytest.approx(0.25)
    assert seen["buckets"][0]["ms"] == pytest.approx(
        {"mean": 3, "min": 2, "max": 4, "p50": 3, "p90": 3.8, "p99": 3.98}
    )


def test_memory_is_bounded(manifest: Manifest) -> None:
    wide = {"batch": Extent(1, 2), "length": Extent(5, 1_000_000)}
    stats = Stats(manifest._replace(axes=wide))
    for length in range(5, 1_000_001, 1000):
        stats.record(0, at(length), length)
        assert len(stats._pending) < MAX_PENDING
    stats.record(0, at(1_000_000), 7)
    seen = stats.snapshot()
    assert len(stats._bins) <= MAX_BINS
    assert sum(seen["lengths"].values()) == seen["runs"] == 1001
    assert len(stats._times[0].times) == KEPT_TIMES
    assert seen["buckets"][0]["ms"]["min"] == 5 / 1e6, "extremes are of all runs"


def test_percentiles_of_the_last_runs(manifest: Manifest) -> None:
    stats = Stats(manifest)
    for _ in range(KEPT_TIMES + 3):
        stats.record(0, at(1), 10**9)
    for i in range(KEPT_TIMES):
        stats.record(0, at(1), 1000 + i)
    times = stats.snapshot()["buckets"][0]["ms"]
    assert times["p99"] < 0.01 and times["max"] == 1000
    assert times["mean"] == pytest.approx(1000 * (KEPT_TIMES + 3) / (2 * KEPT_TIMES + 3), rel=1e-3)


def test_threads_lose_nothing(manifest: Manifest) -> None:
    stats = Stats(manifest)

    def work() -> None:
        for i in range(2000):
            if i % 500 == 0:
                stats.snapshot()
            stats.record(0, at(3), 100)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = stats.snapshot()
    assert seen["lengths"] == {"3": 8000} and seen["buckets"][0]["runs"] == 8000


def test_percentile_is_numpys() -> None:
    rng = np.random.RandomState(0)
    for count in (1, 2, 7, 100):
        values = sorted(int(v) for v in rng.randint(0, 1000, count))
        for percent in (0, 50, 90, 99, 100):
            assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_without_a_length_axis(manifest: Manifest) -> None:
    stats = Stats(manifest._replace(length_axis=None))
    stats.record(0, at(3), 5)
    stats.record_refusal(at(99))
    seen = stats.snapshot()
    assert (seen["runs"], seen["lengths"], seen["padding"]) == (1, {}, 0.0)
    assert seen["sizes"] is None and seen["outside"] == {} and seen["refused"] == 1


def test_without_any_axis(manifest: Manifest) -> None:
    whole = (BucketSpec("exact", {}),)
    stats = Stats(manifest._replace(length_axis=None, axes={}, buckets=whole))
    stats.record(0, {}, 5)
    assert stats.snapshot()["runs"] == 1


def test_one_axis(manifest: Manifest) -> None:
    axes = {"length": Extent(1, 64)}
    buckets = tuple(
        BucketSpec(item.mode, {"length": item.axes["length"]}) for item in manifest.buckets
    )
    stats = Stats(manifest._replace(axes=axes, buckets=buckets))
    stats.record(1, {"length": 48}, 5)
    seen = stats.snapshot()
    assert seen["lengths"] == {"48": 1} and seen["padding"] == pytest.approx(0.25)


def test_pairs_only_where_the_length_and_one_other_axis_vary(manifest: Manifest) -> None:
    def sizes(**axes: Extent) -> object:
        stats = Stats(manifest._replace(axes=axes))
        stats.record(0, {axis: extent.lo for axis, extent in axes.items()}, 1)
        return stats.snapshot()["sizes"]

    one, two = Extent(5, 5), Extent(1, 2)
    assert sizes(length=two, batch=one) is None
    assert sizes(length=one, batch=two, other=two) is None
    assert sizes(length=two, batch=two, other=two) is None
    pairs = sizes(other=two, batch=one, length=two)
    assert pairs == {"axes": ["length", "other"], "bins": [1, 1], "cells": [[1, 1, 1]]}


def test_padding_over_several_axes(manifest: Manifest) -> None:
    """A run's elements are the product over every axis that any bucket pads."""
    low, high = manifest.buckets
    joint = BucketSpec("pad", high.axes, ("length", "batch"))
    stats = Stats(manifest._replace(buckets=(low, high, joint)))
    stats.record(0, at(10, 2), 1)  # exact: 20 of 20
    stats.record(1, at(48, 2), 1)  # the length alone: 96 of 128
    stats.record(2, at(48, 1), 1)  # both: 48 of 128
    stats.record(2, at(64, 2), 1)  # 128 of 128
    seen = stats.snapshot()
    shares = [item["padding"] for item in seen["buckets"]]
    assert shares == pytest.approx([0, 1 - 96 / 128, 1 - 176 / 256])
    assert seen["padding"] == pytest.approx(1 - (20 + 96 + 176) / (20 + 128 + 256))


def test_sizes_outside_every_bucket(manifest: Manifest) -> None:
    stats = Stats(manifest)
    for length, batch in ((70, 1), (70, 2), (10, 3), (0, 1)):
        stats.record_refusal(at(length, batch))
    stats.record_refusal()
    seen = stats.snapshot()
    assert seen["outside"] == {"10": 1, "70": 2} and seen["refused"] == 5 and not stats.empty


def test_beginning_anew(manifest: Manifest) -> None:
    stats = Stats(manifest)
    fresh, since = stats.snapshot(), stats.since
    stats.record(1, at(48), 7)
    stats.record_refusal(at(99))
    assert stats._lock.acquire()  # as a thread of the parent may have at the fork
    stats.reset()
    assert stats.snapshot() == fresh and stats.empty and stats.since >= since
