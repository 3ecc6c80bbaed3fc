from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgecompile.buckets.costs.grid import CostGrid
from edgecompile.errors import CostError
from edgecompile.planning.costs.calibration import Calibration, check_calibration
from edgecompile.planning.costs.calibration_files import read_calibration
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.measure.calibrate import _summarise, choose_points
from edgecompile.targets.profile import load_target
from tests.runtime.bundles import DummyBundle

TARGET = load_target("cpu-x86-64")


def point(
    length: int, ms: float, mode: str = "exact", batch: int = 1, **changes: Any
) -> dict[str, Any]:
    return {
        "bucket": 0 if mode == "exact" else 1,
        "mode": mode,
        "sizes": {"length": length, "batch": batch},
        "ms": ms,
        "spread_ms": 0.1,
        "samples": 37,
        **changes,
    }


def document(*points: Any, **changes: Any) -> dict[str, Any]:
    return {
        "calibration_version": 1,
        "edgecompile": "0.1.0",
        "model": "tiny",
        "structure": "5eed",
        "manifest_sha256": "ab" * 32,
        "variant": "x86-64-v3",
        "arch": "x86-64",
        "threads": 2,
        "host": {"model": "A CPU", "cpus": 2},
        "date": "2026-11-21T10:00:00Z",
        "length_axis": "length",
        "precision": "fp32",
        "points": list(points) or [point(8, 1.0), point(64, 4.0)],
        "open_ms": 100.5,
        "load_ms": 3,
        **changes,
    }


def read(folder: Path, content: dict[str, Any]) -> Calibration:
    path = folder / "calibration.json"
    path.write_text(json.dumps(content))
    return read_calibration(path)


def refused(folder: Path, content: dict[str, Any]) -> str:
    with pytest.raises(CostError) as caught:
        read(folder, content)
    assert caught.value.exit_code == 44
    return caught.value.message


def test_a_file_becomes_a_curve(tmp_path: Path) -> None:
    points = [point(8, 1.0), point(16, 2.0), point(64, 4.0)]
    points += [point(8, 0.5, "pad"), point(64, 4.0, "pad")]
    found = read(tmp_path, document(*points))
    curve = found.curve("length")
    assert curve.kind == "calibrated" and curve.modes == ("exact", "pad")
    assert [(p.length, p.exact_ms, p.pad_ms) for p in curve.points] == [
        (8, 1.0, 0.5),
        (16, 2.0, pytest.approx(2.0 * (0.5 + 0.5 * 8 / 56))),
        (64, 4.0, 4.0),
    ]
    assert curve.points[0].exact_spread_ms == 0.1 and curve.points[1].pad_spread_ms == 0
    told = curve.provenance
    assert told["exact_measured_at"] == "8, 16, 64" and told["pad_measured_at"] == "8, 64"
    assert (told["machine"], told["threads"], told["at"]) == ("A CPU", "2", "batch 1")
    assert CostGrid.from_json(json.loads(json.dumps(curve.to_json()))) == curve
    assert (found.open_ms, found.load_ms) == (100.5, 3.0)


def test_slices_keep_all_sizes(tmp_path: Path) -> None:
    points = [point(n, n * b, batch=b) for b in (8, 1) for n in (4, 32)] + [
        point(32, 9.0, "pad", 8)
    ]
    found = read(tmp_path, document(*points))
    assert list(found.slices) == [(("batch", 1),), (("batch", 8),)]
    large = found.slices[("batch", 8),]
    assert [(p.size("length"), p.mode, p.ms) for p in large] == [
        (4, "exact", 32.0),
        (32, "exact", 256.0),
        (32, "pad", 9.0),
    ]
    assert large[0].sizes == (("batch", 8), ("length", 4)) and large[0].samples == 37
    assert found.curve().cost(32, "exact") == 32.0  # the smallest sizes, if none are named
    assert found.curve("length", {"batch": 8}).cost(32, "pad") == 9.0
    with pytest.raises(CostError, match="nothing was measured at batch 3"):
        found.curve("length", {"batch": 3})
    with pytest.raises(CostError, match="along length, not along frames"):
        found.curve("frames")


def test_without_a_common_length_one_mode_is_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, document(point(8, 1.0), point(64, 4.0), point(32, 2.0, "pad")))
    curve = found.curve()
    assert curve.modes == ("exact",)
    assert curve.provenance["pad_measured_at"] == "32"


def test_other_axes_are_optional(tmp_path: Path) -> None:
    found = read(tmp_path, document(point(8, 1.0, sizes={"length": 8})))
    assert found.slices.keys() == {()}
    assert "at" not in found.curve().provenance


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([point(8, 0.0)], "points[0].ms: 0.0 isn't from 1e-09 to 1e+12 ms"),
        ([point(8, -1)], "points[0].ms: -1 isn't"),
        ([point(8, None)], "points[0].ms: must be a number, not null"),  # type: ignore[arg-type]
        ([point(8, True)], "points[0].ms: must be a number, not true/false"),
        (
            [point(8, 1.0), point(8, 2.0)],
            "points[1]: repeats points[0]: exact at batch 1, length 8",
        ),
        ([point(8, 1.0), point(8, 1.0, bucket=1)], "points[1]: repeats points[0]"),
        ([point(8, 1.0), point(4, 2.0)], "points[1]: the length 4 comes after 8"),
        ([point(0, 1.0)], "points[0].sizes.length: 0 isn't within 1.."),
        ([point(2**31, 1.0)], "points[0].sizes.length: 2147483648 isn't"),
        ([point(8, 1.0, sizes={"batch": 1})], "points[0].sizes: has no length"),
        ([point(8, 1.0), point(9, 1.0, sizes={"length": 9})], "points[1].sizes: has other axes"),
        ([point(8, 1.0, sizes=[8])], "points[0].sizes: must be an object, not list"),
        ([point(8, 1.0, "fast")], "points[0].mode: 'fast' isn't one of exact, pad"),
        ([point(8, 1.0, bucket=-1)], "points[0].bucket: -1 isn't"),
        ([point(8, 1.0, spread_ms=-0.5)], "points[0].spread_ms: -0.5 isn't"),
        ([point(8, 1.0, samples=0)], "points[0].samples: 0 isn't"),
        (["x"], "points[0]: must be an object, not string"),
        ([{}], "points[0].ms: is required"),
    ],
)
def test_bad_points_are_refused(tmp_path: Path, points: list[Any], expected: str) -> None:
    assert expected in refused(tmp_path, document(*points))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"calibration_version": 2}, "calibration version 2; this edgecompile reads 1"),
        ({"points": []}, "points: has 0 entries"),
        ({"points": None}, "points: must be a list"),
        ({"structure": 5}, "structure: must be a string"),
        ({"manifest_sha256": "x"}, "64 lower-case hex digits"),
        ({"threads": 0}, "threads: 0 isn't within 1.."),
        ({"open_ms": -1}, "open_ms: -1 isn't"),
        ({"host": None}, "host: must be an object"),
        ({"length_axis": 3}, "length_axis: must be a string"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    assert expected in refused(tmp_path, document(**change))


def test_not_json(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    with pytest.raises(CostError, match=r"can't be read.*\nhint: write one on the device"):
        read_calibration(path)
    for text in (b'{"points": [NaN]}', b"{", b"\xff"):
        path.write_bytes(text)
        with pytest.raises(CostError):
            read_calibration(path)


@pytest.mark.parametrize("key", [*document()])
def test_every_key_is_required(tmp_path: Path, key: str) -> None:
    content = document()
    del content[key]
    assert f"{key}: is required" in refused(tmp_path, content)


def test_all_problems_are_told(tmp_path: Path) -> None:
    message = refused(tmp_path, document(point(8, -1), point(0, 1.0), threads=0))
    for text in ("3 problems", "points[0].ms", "points[1].sizes.length", "threads: 0"):
        assert text in message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(sorted(point(8, 1.0))),
    st.none()
    | st.integers(-(2**64), 2**64)
    | st.floats()
    | st.text(max_size=4)
    | st.lists(st.none()),
)
@example("ms", 1.9e-79)
@example("ms", 5e-324)
@example("ms", 1e12)
@example("ms", 10**400)
@example("spread_ms", 5e-324)
def test_any_value_in_a_point_is_read_or_refused(tmp_path: Path, key: str, value: Any) -> None:
    try:
        found = read(tmp_path, document({**point(8, 1.0), key: value}))
    except CostError:
        return
    assert len(found.curve().points) == 1


def test_opening_need_not_be_measured(tmp_path: Path) -> None:
    found = read(tmp_path, document(open_ms=None, load_ms=None, edgecompile=None))
    assert found.open_ms is None and found.load_ms is None
    with pytest.raises(CostError, match="another version: edgecompile unknown"):
        check(found)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_points_that_the_runtime_chooses_are_a_curve(tmp_path: Path, batch: int) -> None:
    """Its own choice for a bundle with an exact and a padded bucket, with times made up."""
    manifest = parse_manifest(json.dumps(DummyBundle(tmp_path).listed()).encode())
    points = [
        _summarise(manifest, item, [1.0 * item.sizes["length"], 2.0 * item.sizes["length"]])
        for item in choose_points(manifest)
    ]
    curve = read(tmp_path, document(*points)).curve("length", {"batch": batch})
    assert curve.modes == ("exact",)  # the one padded program is longer than any exact run
    assert curve.points[0].length == 1 and curve.points[-1].length == 32
    assert curve.provenance["pad_measured_at"] == "64"


def check(calibration: Calibration, **changes: Any) -> None:
    options = {"structure": "5eed", "target": TARGET, "edgecompile_version": "0.1.0"}
    check_calibration(calibration, **{**options, **changes})


def test_the_right_calibration_passes(tmp_path: Path) -> None:
    found = read(tmp_path, document())
    check(found)
    check(found, threads=2, length_axis="length")


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        ({"structure": None}, {}, "doesn't say of which model"),
        (
            {},
            {"structure": "other"},
            "another model, tiny: its structure is 5eed, this model's other",
        ),
        (
            {"variant": "armv8.2"},
            {},
            "another machine: it ran armv8.2 (x86-64), the target cpu-x86-64",
        ),
        ({"arch": "aarch64"}, {}, "another machine: it ran x86-64-v3 (aarch64)"),
        ({}, {"edgecompile_version": "0.2.0"}, "another version: edgecompile 0.1.0, this is 0.2.0"),
        ({}, {"threads": 4}, "measured with 2 threads, not 4"),
        ({}, {"length_axis": "frames"}, "measured along length, not along frames"),
        ({}, {"precision": "int8"}, "measured in fp32, not in int8"),
        ({"precision": "int8"}, {"precision": "int8-mixed-0a"}, "in int8, not in int8-mixed-0a"),
    ],
)
def test_another_calibration_is_refused(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], expected: str
) -> None:
    found = read(tmp_path, document(**change))
    with pytest.raises(CostError, match=re.escape(expected)) as caught:
        check(found, **options)
    assert ";" not in caught.value.message and "bench BUNDLE --calibrate" in str(caught.value)


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "planned"])
def test_a_gpu_is_calibrated_as_it_is_planned(tmp_path: Path, mode: str | None) -> None:
    target = load_target("jetson-orin-nano")
    gpu = {"variant": target.name, "arch": target.archs[0], "precision": "fp16"}
    found = read(tmp_path, document(**gpu, **({} if mode is None else {"mode": mode})))
    assert found.mode == mode
    if mode == "planned":
        check(found, target=target, precision="fp16")
    else:
        text = f"it was measured in the mode {mode or 'unknown'}, not in planned"
        with pytest.raises(CostError, match=text):
            check(found, target=target, precision="fp16")
    check(read(tmp_path, document(mode="default")))  # a CPU's only one


def test_a_bundle_of_triton_kernels_is_calibrated_on_a_gpu_of_its_code(tmp_path: Path) -> None:
    target = load_target("cuda-sm90")
    ran = {"variant": "triton-x86-64", "arch": "x86-64", "mode": "planned"}

    def read_of(capability: str, precision: str) -> Calibration:
        gpu = {"name": "a GPU", "compute_capability": capability}
        return read(tmp_path, document(**ran, gpu=gpu, precision=precision))

    check(read_of("9.0", "fp16"), target=target, precision="fp16", triton=True)
    check(read_of("9.0", "fp32-gpu"), target=target, precision="fp32", triton=True)
    with pytest.raises(CostError, match=r"compute capability 8\.0, the target's code is for 9\.0"):
        check(read_of("8.0", "fp16"), target=target, precision="fp16", triton=True)
    with pytest.raises(CostError, match="it is of another machine"):
        check(read_of("9.0", "fp16"), target=target, precision="fp16")


def test_a_mode_is_text(tmp_path: Path) -> None:
    assert "mode: must be a string" in refused(tmp_path, document(mode=1))


def test_every_difference_is_told(tmp_path: Path) -> None:
    found = replace(read(tmp_path, document()), structure="a", variant="b", edgecompile="c")
    with pytest.raises(CostError) as caught:
        check(found, threads=7, length_axis="d")
    for text in ("another model", "another machine", "another version", "7", "along d"):
        assert text in caught.value.message
