"""Exports that are kept for other processes, and those that only this one needs."""

from __future__ import annotations

from pathlib import Path

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.export.store import ExportStore, export_buckets
from edgecompile.loaders.load import load_model


def test_what_is_only_measured_is_not_stored(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(str(tiny_model))
    bucket = Bucket(
        "pad",
        tuple((name, AxisRange(axis.lo, 4, 4) if name == model.length_axis else AxisRange(1, 1, 1))
              for name, axis in model.axes.items()),
    )  # fmt: skip
    exports = ExportStore(model, tmp_path / "exported")
    (measured,) = export_buckets(exports, [bucket], keep=False)
    assert not exports.place(bucket).exists()
    # A plan that chooses it stores it, and exports nothing again.
    assert exports.get(bucket) is measured
    other = ExportStore(model, tmp_path / "exported").get(bucket)
    assert isinstance(other.source, Path) and other.source.parent == exports.place(bucket)
    # The same limits of the model share what was stored.
    kept = other.source.stat().st_mtime_ns
    assert exports.of(model).get(bucket) is measured
    assert other.source.stat().st_mtime_ns == kept
