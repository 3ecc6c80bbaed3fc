"""bench: weighing, and a short real measurement."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.measure.bench import _summary, format_bench, run_bench


def test_percentiles_are_weighted() -> None:
    equal = _summary([(float(i), 1.0) for i in range(101)])
    assert (equal["p50_ms"], equal["p99_ms"], equal["mean_ms"]) == (50, 99, 50)
    skewed = _summary([(1.0, 98.0), (10.0, 2.0)])
    assert (skewed["p50_ms"], skewed["p90_ms"], skewed["p99_ms"]) == (1, 1, 10)
    assert skewed["mean_ms"] == pytest.approx(1.18)


def test_a_real_bench(native_bundle: str) -> None:
    manifest = parse_manifest(Path(native_bundle, "manifest.json").read_bytes())
    axis = manifest.length_axis
    lengths, inside = None, []
    if axis is not None:
        inside = sorted({bucket.axes[axis].lo for bucket in manifest.buckets})
        lengths = {length: 3 for length in inside}
        lengths[manifest.axes[axis].hi + 1] = 7
    said: list[str] = []
    report = run_bench(
        native_bundle, lengths=lengths, seconds=0.2, cold_runs=1, threads=1, say=said.append
    )
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    for item in [*report["lengths"], report["overall"]]:
        assert item["samples"] >= 3
        assert 0 < item["min_ms"] <= item["p50_ms"] <= item["p90_ms"] <= item["p99_ms"]
    if axis is not None:
        assert [item["length"] for item in report["lengths"]] == inside
        assert report["outside"] == {str(manifest.axes[axis].hi + 1): 7}
    cold = report["cold_start"]
    parts = cold["start_ms"] + cold["open_ms"] + cold["run_ms"]
    assert parts == pytest.approx(cold["total_ms"], rel=0.01)
    assert cold["memory"]["resident"] > 0 and len(said) == 2
    assert any("cold start" in line for line in format_bench(report))


def test_lengths_that_no_bucket_takes(native_bundle: str) -> None:
    manifest = parse_manifest(Path(native_bundle, "manifest.json").read_bytes())
    if manifest.length_axis is None:
        pytest.skip("the bundle has no length axis")
    hi = manifest.axes[manifest.length_axis].hi
    with pytest.raises(InputError, match="every length lies outside"):
        run_bench(native_bundle, lengths={hi + 1: 1}, cold_runs=0)


@pytest.mark.parametrize(
    ("option", "value"),
    [("seconds", -1), ("seconds", math.nan), ("seconds", math.inf), ("cold_runs", -1)],
)
def test_numbers_out_of_range(option: str, value: Any) -> None:
    with pytest.raises(InputError, match=option.replace("_", "-")):
        run_bench("/nowhere", **{option: value})
