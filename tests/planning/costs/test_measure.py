"""From a calibration's points to cost curves and grids; and a real calibration bundle, timed by the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgecompile.errors import CostError, VerificationError
from edgecompile.planning.costs.calibration import CalibratedPoint, Calibration
from edgecompile.planning.costs.measure import measured_costs, run_calibration
from tests.runtime.bundles import DummyBundle


def calibration(*points: tuple[str, int, int | None, float]) -> Calibration:
    """Points of (mode, length, batch or None, ms)."""
    rows = []
    for mode, length, batch, ms in points:
        sizes: tuple[tuple[str, int], ...] = (("length", length),)
        if batch is not None:
            sizes = (("batch", batch), *sizes)
        bucket = 0 if mode == "exact" else length
        rows.append(CalibratedPoint(bucket, mode, sizes, ms, 0.1, 9))  # type: ignore[arg-type]
    fields: dict[str, Any] = {
        "source": "c.json",
        "edgecompile": "0.1.0",
        "model": "m",
        "structure": "0" * 64,
        "manifest_sha256": "1" * 64,
        "variant": "x86-64-v3",
        "arch": "x86-64",
        "threads": 2,
        "host": {},
        "date": "2026-11-21T00:00:00Z",
        "length_axis": "length",
        "precision": "fp32",
        "open_ms": 1.0,
        "load_ms": 1.0,
    }
    return Calibration(points=tuple(rows), **fields)


def test_a_curve_of_this_machine_is_measured_and_of_a_device_calibrated() -> None:
    found = calibration(("exact", 4, None, 1.0), ("exact", 8, None, 2.0), ("pad", 8, None, 1.5))
    here, there = (measured_costs(found, kind) for kind in ("measured", "calibrated"))
    assert (here.kind, there.kind) == ("measured", "calibrated")
    assert here.points == there.points
    assert here.provenance["how"] == "the bundle's own runtime on the build host"


def test_padded_costs_between_sizes_that_have_them_follow_the_ratio() -> None:
    found = calibration(
        *[("exact", n, b, float(n * b)) for n in (4, 8) for b in (1, 2, 3)],
        *[("pad", n, b, n * b * ratio) for n in (4, 8) for b, ratio in ((1, 0.5), (3, 0.7))],
    )
    costs = measured_costs(found, "measured", second="batch")
    assert costs.modes == ("exact", "pad") and costs.kind == "measured"
    assert costs.cost(8, "pad", 2) == pytest.approx(16 * 0.6)
    assert costs.cost(4, "pad", 3) == pytest.approx(12 * 0.7)
    assert costs.cost(8, "exact", 2) == 16


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("kill -KILL $$", "was killed by SIGKILL"),
        ("echo no room >&2; exit 3", "failed with exit code 3:\nno room"),
    ],
)
def test_how_a_runtime_ended_is_said(tmp_path: Path, ends: str, says: str) -> None:
    DummyBundle(tmp_path / "dummy.ecb").write()
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{ends}\n")
    python.chmod(0o755)
    with pytest.raises(VerificationError) as failure:
        run_calibration(tmp_path / "dummy.ecb", python=str(python))
    assert failure.value.message == f"the bundle's runtime {says}"


def test_a_surface_needs_its_axis() -> None:
    with pytest.raises(CostError, match="nothing was measured along batch"):
        measured_costs(calibration(("exact", 4, None, 1.0)), "calibrated", second="batch")
