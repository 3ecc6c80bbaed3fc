"""bench: lengths files, weighing, and a short real measurement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.bench import _summary, format_bench, read_lengths, read_memory, run_bench
from edgecompile.runtime.errors import InputError, NativeError
from edgecompile.runtime.manifest import parse_manifest


def test_lengths_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("# seen in May\n5\n\n 7 \n5\n9,3\n5, 2\n")
    assert read_lengths(str(tmp_path / "x")) == {5: 4, 7: 1, 9: 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no lengths"),
        ("5\nsix\n", "line 2: 'six'"),
        ("0\n", "line 1: '0'"),
        ("-3\n", "line 1: '-3'"),
        ("1.5\n", "line 1: '1.5'"),
        ("5,\n", "line 1: '5,'"),
        ("5,1,1\n", "line 1"),
        ("9" * 400, "line 1"),
        ("²\n", "line 1"),
        ("\x00\x01", "line 1"),
    ],
)
def test_bad_lengths_files(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError) as caught:
        read_lengths(str(tmp_path / "x"))
    assert problem in caught.value.message


def test_a_lengths_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read_lengths(str(tmp_path / "x"))
    with pytest.raises(InputError, match="can't be read"):
        read_lengths(str(tmp_path))


def test_percentiles_are_weighted() -> None:
    equal = _summary([(float(i), 1.0) for i in range(101)])
    assert (equal["p50_ms"], equal["p99_ms"], equal["mean_ms"]) == (50, 99, 50)
    skewed = _summary([(1.0, 98.0), (10.0, 2.0)])
    assert (skewed["p50_ms"], skewed["p90_ms"], skewed["p99_ms"]) == (1, 1, 10)
    assert skewed["mean_ms"] == pytest.approx(1.18)


def test_memory_of_this_process() -> None:
    before = read_memory()
    assert before["peak"] >= before["resident"] > 10 << 20
    block = np.ones(8 << 20)
    assert read_memory()["anonymous"] - before["anonymous"] > 60 << 20
    del block


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


def test_a_cold_start_that_fails_says_why() -> None:
    from edgecompile.runtime.bench import measure_cold_start

    with pytest.raises(NativeError, match=r"ended with 20: error: .*nowhere"):
        measure_cold_start("/nowhere", None, threads=None, variant=None, verify="auto", count=1)
