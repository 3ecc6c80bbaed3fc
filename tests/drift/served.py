"""Stats files and bundles with plans, for the tests of what happens after a bundle was shipped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange
from edgecompile.lengths.distribution import LengthDistribution
from tests.runtime.bundles import DummyBundle

SHA = "ab" * 32
BATCH = (("batch", AxisRange(1, 1, 1)),)


def stats_document(
    lengths: Mapping[int, int],
    *,
    outside: Mapping[int, int] | None = None,
    buckets: int = 1,
    ms: float = 2.0,
    **changes: Any,
) -> dict[str, Any]:
    """A stats file's content; all runs were the first bucket's."""
    runs = sum(lengths.values())
    outside = outside or {}
    times = {"mean": ms, "min": ms, "max": ms, "p50": ms, "p90": ms, "p99": ms}
    first = {"runs": runs, "padding": 0.0, "ms": times if runs else None}
    idle = {"runs": 0, "padding": 0.0, "ms": None}
    return {
        "stats_version": 1,
        "bundle": "tiny",
        "manifest_sha256": SHA,
        "variant": "x86-64-v3",
        "since": "2026-11-21T10:00:00Z",
        "until": "2026-11-22T10:00:00Z",
        "axes": ["length"],
        "runs": runs,
        "refused": sum(outside.values()),
        "length_axis": "length",
        "length_bin": 1,
        "lengths": {str(length): count for length, count in lengths.items()},
        "outside": {str(length): count for length, count in outside.items()},
        "sizes": None,
        "padding": 0.0,
        "buckets": [first, *[idle] * (buckets - 1)],
        **changes,
    }


def write_stats(path: Path, document: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def write_bundle(
    folder: Path, plan: BucketPlan, lengths: LengthDistribution | None, /, **reports: bytes
) -> str:
    """A bundle with dummy libraries whose buckets and reports are those of ``plan``, of batch and length.

    Returns:
        The SHA-256 of its manifest.
    """
    bundle = DummyBundle(folder)
    spans: dict[str, dict[str, int]] = {}
    for bucket in plan.buckets:
        for name, span in bucket.axes:
            limits = spans.setdefault(name, {"lo": span.lo, "hi": span.hi})
            limits.update(lo=min(limits["lo"], span.lo), hi=max(limits["hi"], span.hi))
    bundle.document["axes"] = spans
    bundle.document["buckets"] = [
        {
            "mode": bucket.mode,
            "axes": {name: span.to_json() for name, span in bucket.axes},
        }
        for bucket in plan.buckets
    ]
    programs = [f"code/x86-64-v3/bucket-{i}.so" for i in range(len(plan.buckets))]
    bundle.document["variants"][0]["programs"] = programs
    bundle.document["golden"] = []
    bundle.files.update({name: b"no program" for name in programs})
    bundle.files["reports/plan.json"] = json.dumps(plan.to_json()).encode()
    if lengths is not None:
        bundle.files["reports/lengths.json"] = json.dumps(lengths.to_json()).encode()
    bundle.files.update({f"reports/{name}.json": data for name, data in reports.items()})
    bundle.write()
    return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
