"""Counts what a model is asked for: lengths, bucket hits, padding and times.

Recording takes about a microsecond and memory is bounded: lengths go to at most 4096 bins, and
of the times of each bucket the last 512 are kept.
"""

import threading
from array import array
from typing import Any, Dict, List, Optional

from .manifest import Manifest

MAX_BINS = 4096
KEPT_TIMES = 512


class Stats:
    """Counters of one model; every method is safe from several threads."""

    def __init__(self, manifest: Manifest) -> None:
        self._lock = threading.Lock()
        extent = None if manifest.length_axis is None else manifest.axes[manifest.length_axis]
        self._lo = 0 if extent is None else extent.lo
        span = 1 if extent is None else extent.hi - extent.lo + 1
        self._width = -(-span // MAX_BINS)
        self._bins = array("Q", bytes(8 * -(-span // self._width)))
        self._buckets = [_BucketStats() for _ in manifest.buckets]
        self._axis = manifest.length_axis
        self._refused = 0

    def record(self, bucket: int, length: int, computed: int, nanoseconds: int) -> None:
        """Notes one run: its length, the length that was computed for it, and its time."""
        with self._lock:
            self._bins[(length - self._lo) // self._width] += 1
            self._buckets[bucket].record(length, computed, nanoseconds)

    def record_refusal(self) -> None:
        """Notes a call whose inputs were refused."""
        with self._lock:
            self._refused += 1

    def snapshot(self) -> Dict[str, Any]:
        """Plain JSON values.

        ``lengths`` maps a length (or the first of ``length_bin`` lengths) to its number of runs;
        ``padding`` is the computed share that was padding, 0 to 1; times are milliseconds inside
        ``run``, the percentiles over the last 512 runs of a bucket.
        """
        with self._lock:
            lengths = {
                str(self._lo + i * self._width): count
                for i, count in enumerate(self._bins)
                if count
            }
            buckets = [item.snapshot() for item in self._buckets]
            refused = self._refused
            asked = sum(item.length for item in self._buckets)
            computed = sum(item.computed for item in self._buckets)
        return {
            "runs": sum(item["runs"] for item in buckets),
            "refused": refused,
            "length_axis": self._axis,
            "length_bin": self._width,
            "lengths": {} if self._axis is None else lengths,
            "padding": 1.0 - asked / computed if computed else 0.0,
            "buckets": buckets,
        }


class _BucketStats:
    __slots__ = ("computed", "least", "length", "most", "runs", "times", "total")

    def __init__(self) -> None:
        self.runs = 0
        self.length = 0
        self.computed = 0
        self.total = 0
        self.least: Optional[int] = None
        self.most = 0
        self.times = array("Q")

    def record(self, length: int, computed: int, nanoseconds: int) -> None:
        if len(self.times) < KEPT_TIMES:
            self.times.append(nanoseconds)
        else:
            self.times[self.runs % KEPT_TIMES] = nanoseconds
        self.runs += 1
        self.length += length
        self.computed += computed
        self.total += nanoseconds
        if self.least is None or nanoseconds < self.least:
            self.least = nanoseconds
        if nanoseconds > self.most:
            self.most = nanoseconds

    def snapshot(self) -> Dict[str, Any]:
        if self.runs == 0:
            return {"runs": 0, "padding": 0.0, "ms": None}
        times = sorted(self.times)
        return {
            "runs": self.runs,
            "padding": 1.0 - self.length / self.computed if self.computed else 0.0,
            "ms": {
                "mean": self.total / self.runs / 1e6,
                "min": (self.least or 0) / 1e6,
                "max": self.most / 1e6,
                "p50": percentile(times, 50) / 1e6,
                "p90": percentile(times, 90) / 1e6,
                "p99": percentile(times, 99) / 1e6,
            },
        }


def percentile(ascending: List[int], percent: float) -> float:
    """Percentile of sorted values, linear between neighbours (numpy's default definition)."""
    position = (len(ascending) - 1) * percent / 100.0
    low = int(position)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (position - low)
