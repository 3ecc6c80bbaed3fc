"""calibrate: which points are run, what is written, and what is refused before anything is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import BundleError, DamagedBundleError, InputError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import BucketSpec, Extent, Manifest
from edgecompile.runtime.measure.calibrate import (
    Point,
    calibrate_bundle,
    choose_points,
    format_calibration,
    read_points,
)
from tests.runtime.bundles import DummyBundle


def at(length: int, batch: int) -> dict[str, int]:
    return {"length": length, "batch": batch}


def test_chosen_points(manifest: Manifest) -> None:
    points = choose_points(manifest)
    exact = [item.sizes for item in points if item.bucket == 0]
    lengths = sorted({item["length"] for item in exact})
    assert {1, 16, 32} <= set(lengths) and 5 <= len(lengths) <= 7
    assert exact == [at(length, batch) for length in lengths for batch in (1, 2)]
    assert points[len(exact) :] == [Point(1, at(64, 1)), Point(1, at(64, 2))]


def test_chosen_points_of_several_padded_axes(manifest: Manifest) -> None:
    axes = manifest.buckets[1].axes
    both = BucketSpec("pad", axes, ("length", "batch"))
    points = choose_points(manifest._replace(buckets=(both, both)))
    assert points == [Point(0, at(64, 2))], "once, whichever bucket it is"


def test_chosen_points_where_buckets_meet(manifest: Manifest) -> None:
    buckets = tuple(
        BucketSpec("exact", {"batch": Extent(1, 1, 1), "length": Extent(lo, hi, hi)})
        for lo, hi in ((1, 1), (1, 8), (8, 9))
    )
    points = choose_points(manifest._replace(buckets=buckets))
    sizes = [item.sizes["length"] for item in points]
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == 9


def test_chosen_points_without_a_length_axis(manifest: Manifest) -> None:
    exact = (BucketSpec("exact", manifest.buckets[0].axes),)
    changed = manifest._replace(buckets=exact, length_axis=None)
    assert choose_points(changed) == [Point(0, at(1, 1)), Point(0, at(32, 2))]
    static = manifest._replace(buckets=(BucketSpec("exact", {}),), length_axis=None, axes={})
    assert choose_points(static) == [Point(0, {})]


def with_points(manifest: Manifest, entries: Any) -> Manifest:
    return manifest._replace(plan={"calibrate": entries})


def test_points_of_the_bundle(manifest: Manifest) -> None:
    assert read_points(manifest, "x") == []
    entries = [
        {"bucket": 0, "sizes": at(32, 2)},
        {"bucket": 0, "sizes": at(5, 1)},
        {"bucket": 1, "sizes": at(64, 1), "why": "unknown keys don't matter"},
    ]
    points = read_points(with_points(manifest, entries), "x")
    assert points == [Point(item["bucket"], item["sizes"]) for item in entries]


GOOD = {"bucket": 0, "sizes": {"length": 5, "batch": 1}}


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (None, "plan.calibrate: must be a list of 1 to 4096 entries"),
        ({}, "must be a list"),
        ([], "must be a list of 1 to 4096"),
        ([GOOD] * 5000, "must be a list of 1 to 4096"),
        ([GOOD, 7], "plan.calibrate[1]: must be an object, not integer"),
        ([{"sizes": at(5, 1)}], "bucket is None, must be a number from 0 to 1"),
        ([dict(GOOD, bucket=2)], "bucket is 2, must be"),
        ([dict(GOOD, bucket=-1)], "bucket is -1"),
        ([dict(GOOD, bucket=True)], "bucket is True"),
        ([dict(GOOD, bucket="0")], "bucket is 0, must be a number"),
        ([{"bucket": 0}], "sizes must have batch, length"),
        ([dict(GOOD, sizes={"length": 5})], "sizes must have batch, length"),
        ([dict(GOOD, sizes=[5, 1])], "sizes must have batch, length"),
        ([dict(GOOD, sizes=at(33, 1))], "length 33, batch 1 aren't in bucket 0"),
        ([dict(GOOD, sizes={"length": 5.0, "batch": 1})], "length 5.0, batch 1 aren't in"),
        ([dict(GOOD, sizes={"length": "x\n", "batch": 1})], "length x?, batch 1 aren't in"),
        ([{"bucket": 1, "sizes": at(40, 1)}], "length is 40, but bucket 1 always computes 64"),
        ([GOOD, GOOD], "plan.calibrate[1]: measures the same as plan.calibrate[0]"),
    ],
)
def test_points_that_do_not_fit(manifest: Manifest, entries: Any, text: str) -> None:
    with pytest.raises(BundleError) as caught:
        read_points(with_points(manifest, entries), "x.ecb")
    assert text in caught.value.message and caught.value.message.startswith("x.ecb: ")
    assert caught.value.exit_code == 20


def test_every_problem_is_told(manifest: Manifest) -> None:
    with pytest.raises(BundleError) as caught:
        read_points(with_points(manifest, [3] * 30), "x")
    assert "plan.calibrate[19]" in caught.value.message
    assert "... and 10 more" in caught.value.message


def check(report: Any, manifest: Manifest) -> None:
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["calibration_version"] == 1 and report["model"] == manifest.name
    assert report["edgecompile"] == manifest.built_by["edgecompile"]
    assert report["structure"] == manifest.built_by.get("structure")
    assert report["length_axis"] == manifest.length_axis
    assert report["precision"] == manifest.precision
    variant = next(item for item in manifest.variants if item.name == report["variant"])
    assert report["arch"] == variant.arch and report["threads"] >= 1
    assert report["host"]["arch"] == variant.arch
    for item in report["points"]:
        assert item["ms"] > 0 and item["spread_ms"] >= 0 and item["samples"] >= 5
        assert item["mode"] == manifest.buckets[item["bucket"]].mode


def test_a_real_calibration(native_bundle: str, tmp_path: Path) -> None:
    manifest = parse_manifest(Path(native_bundle, "manifest.json").read_bytes())
    said: list[str] = []
    place = tmp_path / "calibration.json"
    report = calibrate_bundle(
        native_bundle, str(place), seconds=0, cold_runs=1, threads=1, say=said.append
    )
    check(report, manifest)
    assert json.loads(place.read_text()) == report
    assert [item.name for item in tmp_path.iterdir()] == ["calibration.json"]
    points = [Point(item["bucket"], item["sizes"]) for item in report["points"]]
    assert points == choose_points(manifest)
    assert all(item["samples"] == 5 for item in report["points"]), "five rounds at least"
    assert report["open_ms"] > 0 and report["load_ms"] > 0
    assert "at least 5 rounds" in said[0] and "wrote" in said[-1]
    lines = format_calibration(report)
    assert len(lines) == len(points) + 3 and "to load one more" in lines[-2]


def test_a_bundle_whose_buckets_overlap(native_copy: Path, tmp_path: Path) -> None:
    """As a planner makes it: one exact bucket, static ones from 1 over the same lengths."""
    place = native_copy / "manifest.json"
    manifest = parse_manifest(place.read_bytes())
    axis = manifest.length_axis
    if axis is None or any(item.pad is None for item in manifest.inputs):
        pytest.skip("the bundle has nothing that can be padded")
    exact = manifest.buckets[-1]
    axes = {name: Extent(1, item.hi, item.hi) for name, item in exact.axes.items()}
    names = tuple(axes)
    changed = manifest._replace(
        buckets=(exact, BucketSpec("pad", axes), BucketSpec("pad", axes, names)),
        axes={name: Extent(1, item.hi) for name, item in axes.items()},
        variants=tuple(
            item._replace(programs=(item.programs[-1],) * 3) for item in manifest.variants
        ),
        golden=(),
        plan={
            "calibrate": [
                {"bucket": 0, "sizes": {name: item.lo for name, item in exact.axes.items()}},
                {"bucket": 2, "sizes": {name: item.hi for name, item in axes.items()}},
            ]
        },
    )
    place.unlink()
    place.write_bytes(changed.to_bytes())
    target = tmp_path / "calibration.json"
    report = calibrate_bundle(str(native_copy), str(target), seconds=0.2, cold_runs=0)
    check(report, parse_manifest(place.read_bytes()))
    assert [(item["bucket"], item["mode"]) for item in report["points"]] == [
        (0, "exact"),
        (2, "pad"),
    ]
    assert report["open_ms"] is None and report["load_ms"] is None
    assert len(format_calibration(report)) == 4


def test_a_damaged_bundle_gives_no_calibration(native_copy: Path, tmp_path: Path) -> None:
    manifest = parse_manifest((native_copy / "manifest.json").read_bytes())
    weights = native_copy / manifest.weights[manifest.precision]
    data = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (tmp_path / "calibration.json").write_text("old")
    with pytest.raises(DamagedBundleError, match="file-hash"):
        calibrate_bundle(str(native_copy), str(tmp_path / "calibration.json"), seconds=0)
    assert (tmp_path / "calibration.json").read_text() == "old"


def test_a_bad_target_is_refused_first(bundle: DummyBundle, tmp_path: Path) -> None:
    path = bundle.write()
    for place, text in (
        (str(tmp_path), "is a folder"),
        (str(tmp_path / "nowhere" / "x"), "doesn't exist"),
        (os.path.join(path, "reports", "calibration.json"), "is in the bundle"),
    ):
        with pytest.raises(InputError, match=text):
            calibrate_bundle(path, place)
    for options in ({"seconds": float("nan")}, {"cold_runs": -1}):
        with pytest.raises(InputError, match="must be from 0"):
            calibrate_bundle(path, str(tmp_path / "x"), **options)  # type: ignore[arg-type]
