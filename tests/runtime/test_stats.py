"""stats: counts, bounded memory, threads."""

from __future__ import annotations

import dataclasses
import json
import threading

import numpy as np
import pytest

from edgecompile.runtime.manifest import Extent, Manifest
from edgecompile.runtime.stats import KEPT_TIMES, MAX_BINS, Stats, percentile


def test_counts(manifest: Manifest) -> None:
    stats = Stats(manifest)
    assert stats.snapshot()["runs"] == 0 and stats.snapshot()["buckets"][0]["ms"] is None
    stats.record(0, 10, 10, 2_000_000)
    stats.record(0, 10, 10, 4_000_000)
    stats.record(1, 48, 64, 10_000_000)
    stats.record_refusal()
    seen = stats.snapshot()
    assert json.loads(json.dumps(seen)) == seen
    assert (seen["runs"], seen["refused"]) == (3, 1)
    assert seen["lengths"] == {"10": 2, "48": 1}
    assert seen["padding"] == pytest.approx(16 / 84)
    assert [item["runs"] for item in seen["buckets"]] == [2, 1]
    assert seen["buckets"][1]["padding"] == pytest.approx(0.25)
    assert seen["buckets"][0]["ms"] == pytest.approx(
        {"mean": 3, "min": 2, "max": 4, "p50": 3, "p90": 3.8, "p99": 3.98}
    )


def test_memory_is_bounded(manifest: Manifest) -> None:
    wide = {"batch": Extent(1, 2), "length": Extent(5, 1_000_000)}
    stats = Stats(dataclasses.replace(manifest, axes=wide))
    for length in range(5, 1_000_001, 1000):
        stats.record(0, length, length, length)
    stats.record(0, 1_000_000, 1_000_000, 7)
    seen = stats.snapshot()
    assert len(stats._bins) <= MAX_BINS
    assert sum(seen["lengths"].values()) == seen["runs"] == 1001
    assert len(stats._buckets[0].times) == KEPT_TIMES
    assert seen["buckets"][0]["ms"]["min"] == 5 / 1e6, "extremes are of all runs"


def test_percentiles_of_the_last_runs(manifest: Manifest) -> None:
    stats = Stats(manifest)
    for _ in range(KEPT_TIMES):
        stats.record(0, 1, 1, 10**9)
    for i in range(KEPT_TIMES):
        stats.record(0, 1, 1, 1000 + i)
    assert stats.snapshot()["buckets"][0]["ms"]["p99"] < 0.01


def test_threads_lose_nothing(manifest: Manifest) -> None:
    stats = Stats(manifest)

    def work() -> None:
        for _ in range(2000):
            stats.record(0, 3, 3, 100)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats.snapshot()["lengths"] == {"3": 8000}


def test_percentile_is_numpys() -> None:
    rng = np.random.RandomState(0)
    for count in (1, 2, 7, 100):
        values = sorted(int(v) for v in rng.randint(0, 1000, count))
        for percent in (0, 50, 90, 99, 100):
            assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_without_a_length_axis(manifest: Manifest) -> None:
    stats = Stats(dataclasses.replace(manifest, length_axis=None))
    stats.record(0, 0, 0, 5)
    seen = stats.snapshot()
    assert (seen["runs"], seen["lengths"], seen["padding"]) == (1, {}, 0.0)
