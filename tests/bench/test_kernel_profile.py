"""bench --profile on the build host: a process of its own, a table, the page and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgecompile.bench.kernel_profile import COLUMNS, profile_kernels
from edgecompile.bench.report import BenchSettings
from edgecompile.cli import cli
from edgecompile.errors import BenchError
from edgecompile.lengths.distribution import LengthDistribution


def test_rows_say_what_was_measured(tiny_bundle: Path, tmp_path: Path) -> None:
    kernels = profile_kernels(tiny_bundle, BenchSettings(threads=1), seconds=0.1, cache=tmp_path)
    rows = kernels.rows()
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert [row[0] for row in rows] == list(kernels.labels)
    assert sum(kernels.times) == pytest.approx(kernels.report["run_ms"])
    assert "on 1 threads" in kernels.caption


def test_the_runtimes_own_words_are_passed_on(tiny_bundle: Path, tmp_path: Path) -> None:
    far = LengthDistribution.from_samples([10**6])
    with pytest.raises(BenchError, match="every length lies outside the buckets"):
        profile_kernels(tiny_bundle, BenchSettings(), lengths=far, seconds=0.1, cache=tmp_path)


def test_on_the_command_line(tiny_bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    arguments = ["bench", str(tiny_bundle), "--profile", "--threads", "1", "--rounds", "2"]
    arguments += ["--runs", "4", "--cold-runs", "0", "--report", str(page)]
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    kernels = json.loads(done.stdout)["profile"]["kernels"]
    assert kernels and all(kernel["ms"] >= 0 for kernel in kernels)
    text = page.read_text()
    assert "Where the time goes" in text and kernels[0]["kernel"] in text
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0 and "GFLOP/s" in done.output
