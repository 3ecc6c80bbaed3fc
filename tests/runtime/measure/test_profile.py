"""profile: where the time of a real bundle's runs goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgecompile.runtime
from edgecompile.runtime.base.errors import InputError, UnsupportedHostError
from edgecompile.runtime.cpu.functions import ProfileRow
from edgecompile.runtime.measure.profile import (
    MOST_LENGTHS,
    OUTSIDE,
    REST,
    _kernels,
    _summary,
    _thin,
    profile_bundle,
)
from edgecompile.runtime.measure.profile_table import format_profile, format_scaling

ROOT = str(Path(edgecompile.runtime.__path__[0]).parents[1])


def test_a_run_is_divided_among_kernels(native_bundle: str) -> None:
    said: list[str] = []
    report = profile_bundle(native_bundle, seconds=0.2, threads=1, say=said.append)
    assert report["threads"] == 1 and len(said) == 1
    ceilings = report["ceilings"]
    assert ceilings["gflops"] > 0.1 and ceilings["gb_per_s"] > 0.1
    for part in (report, *report["lengths"]):
        rows = part["kernels"]
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert sum(row["ms"] for row in rows) == pytest.approx(part["run_ms"])
        assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
        assert {REST, OUTSIDE} <= {row["kernel"] for row in rows}
    linear = [row for row in report["kernels"] if row["kernel"].startswith("linear float32 [")]
    assert linear, "the model has linear layers"
    for row in linear:
        # Whole calls in a mean run, and no faster than the machine (whose speed may change by some).
        assert row["calls"] == pytest.approx(round(row["calls"]))
        assert 0 < row["gflops"] < 3 * ceilings["gflops"]
        assert row["gb_per_s"] > 0
    # One thread never waits for another one.
    assert report["joins"] == 0 and report["idle"] == pytest.approx(0, abs=0.02)
    lines = format_profile(report)
    assert len(lines) == len(report["kernels"]) + 2
    assert all(len(line) < 100 for line in lines)


def test_joins_and_idle_threads_are_counted(native_bundle: str) -> None:
    alone, shared = (profile_bundle(native_bundle, seconds=0.2, threads=n) for n in (1, 2))
    assert shared["joins"] > 0 and 0 < shared["idle"] < 1
    for row in shared["kernels"]:
        assert 0 <= row["alone"] <= 1 and 0 <= row["idle"] <= 1
        if row["kernel"] == OUTSIDE:
            assert row["joins"] is None and row["idle"] == pytest.approx(0.5)
    divided = [row for row in shared["kernels"] if row["joins"]]
    assert divided and all(row["alone"] < 1 for row in divided)
    lines = format_scaling([alone, shared])
    assert len(lines) == len(shared["kernels"]) + 3 and lines[0].split()[1:3] == ["1", "thr"]
    assert all(len(line) < 100 for line in lines)


def test_what_no_kernel_counts_keeps_its_threads() -> None:
    """Sorts and scans divide their lines among threads, and no kernel of theirs is timed."""
    run = ProfileRow(b"run", calls=2, ns=2000, regions=6, alone_ns=400, busy_ns=3000)
    linear = ProfileRow(
        b"linear", n=8, k=4, calls=2, ns=1200, regions=2, alone_ns=100, busy_ns=2200
    )
    kernels = _kernels(2400.0, 2, [run, linear])
    assert kernels[REST] == [400, 0, 0, 0, 2, 150, 400]
    assert kernels[OUTSIDE] == [200, 0, 0, 0, 0, 200, 200]
    assert sum(counts[0] for counts in kernels.values()) == 1200


def test_shares_stay_within_a_whole_whatever_rounding_does() -> None:
    """Sums of weighted runs round apart: a part may come out greater than its whole."""
    linear = [0.3, 1, 0, 0, 1, 0.3 + 1e-15, 0.6 + 2e-15]
    report = _summary([(1.0, {"linear": linear, "copy": [1.0, 1, 0, 0, 0, 1.0, 0.0]})], threads=2)
    rows = {row["kernel"]: row for row in report["kernels"]}
    assert rows["linear"]["alone"] == 1 and rows["linear"]["idle"] == 0
    assert rows["copy"]["idle"] == 1


def test_more_threads_are_shown_last_and_no_kernel_is_left_out() -> None:
    def report(threads: int, *kernels: str) -> dict[str, Any]:
        rows = [{"kernel": name, "ms": 8 / threads, "joins": 1.0, "idle": 0.25} for name in kernels]
        return {
            "threads": threads,
            "run_ms": 8 / threads,
            "joins": 1.0,
            "idle": 0.25,
            "kernels": rows,
        }

    lines = format_scaling([report(4, "linear"), report(1, "linear", "copy")])
    assert lines[0].split() == ["ms", "1", "thr", "4", "thr", "times", "joins", "idle"]
    assert lines[1].split() == ["linear", "8.000", "2.000", "4.0", "1", "25%"]
    assert lines[2].split() == ["copy", "8.000", "0.000"]
    assert lines[-1].endswith("with 4 threads")


def test_many_lengths_are_thinned_by_their_traffic() -> None:
    runs = [(length, {"length": length}, 1 + (length == 7) * 1000) for length in range(1, 41)]
    thin = _thin(runs)
    assert 0 < len(thin) <= MOST_LENGTHS
    assert sum(count for _, _, count in thin) == MOST_LENGTHS
    assert dict((length, count) for length, _, count in thin)[7] >= MOST_LENGTHS - 1
    assert _thin(runs[:3]) == runs[:3]


def test_refusals(native_bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="every length lies outside the buckets"):
        profile_bundle(native_bundle, lengths={10**6: 1}, seconds=0)
    with pytest.raises(InputError, match="seconds is -1"):
        profile_bundle(native_bundle, seconds=-1)
    from edgecompile.runtime.cpu.library import RuntimeLibrary

    monkeypatch.setattr(RuntimeLibrary, "can_profile", False)
    with pytest.raises(UnsupportedHostError, match="its native runtime keeps no profile"):
        profile_bundle(native_bundle, seconds=0)


def test_on_the_command_line(native_bundle: str) -> None:
    command = [sys.executable, "-m", "edgecompile.runtime", "bench", native_bundle, "--profile"]
    environment = {**os.environ, "PYTHONPATH": ROOT}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, env=environment, cwd=ROOT
        )

    done = run("--seconds", "0.1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_ms"] > 0
    table = run("--seconds", "0.1").stdout
    assert table.startswith("kernel") and "GFLOP/s (float32)" in table
    scaling = json.loads(run("--seconds", "0.1", "--threads", "1,2", "--json").stdout)
    assert [report["threads"] for report in scaling["by_threads"]] == [1, 2]
    command.remove("--profile")
    several = run("--threads", "1,2")
    assert several.returncode == InputError.exit_code
    assert "several numbers with --profile only" in several.stderr
    command.append("--profile")
    both = run("--calibrate", "calibration.json")
    assert both.returncode == InputError.exit_code
    assert "--profile and --calibrate don't go together" in both.stderr
