from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.buckets.costs.sources import CostCurve, CostPoint, read_cost_points, roofline
from edgecompile.errors import CostError

POINTS = (CostPoint(8, 1.5, 1.25), CostPoint(64, 9.0, 7.5))


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "points"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "length,exact_ms,pad_ms\n8,1.5,1.25\n64,9,7.5\n",
        "# by hand\n64,9,7.5\n\n8,1.5,1.25 # short\n",
        "pad_ms,note,Length,exact_ms\n7.5,x,64.0,9\n1.25,y,8,1.5\n",
        "\ufefflength,exact_ms,pad_ms\r\n8,1.5,1.25\r\n64,9,7.5\r\n",
    ],
)
def test_reads_csv(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    curve = read_cost_points(path, "calibrated")
    assert curve.points == POINTS
    assert curve.kind == "calibrated"
    assert curve.provenance == {"file": str(path)}


def test_reads_spreads_and_missing_modes(tmp_path: Path) -> None:
    text = "length,exact_ms,pad_ms,pad_spread_ms\n8,,1.25,0.1\n64,,7.5,\n"
    curve = read_cost_points(write(tmp_path, text))
    assert curve.points == (
        CostPoint(8, None, 1.25, 0.0, 0.1),
        CostPoint(64, None, 7.5, 0.0, 0.0),
    )
    assert curve.modes == ("pad",)


def test_reads_json_of_a_curve_or_of_a_plan(tmp_path: Path) -> None:
    curve = CostCurve(POINTS, "calibrated", {"machine": "m"})
    for value in (curve.to_json(), {"buckets": [], "cost_model": curve.to_json()}):
        assert read_cost_points(write(tmp_path, json.dumps(value))) == curve


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ["no cost points"]),
        ("length,exact_ms,pad_ms\n", ["no cost points"]),
        ("8,1\n", ["line 1", "2 columns without a header"]),
        ("8,1,1\n9,1\n", ["line 2", "2 columns"]),
        ("length,ms\n8,1\n", ["neither exact_ms nor pad_ms"]),
        ("length,pad_ms,pad_ms\n8,1,1\n", ["pad_ms occurs twice"]),
        ("8,x,1\n9.5,1,y\n", ["3 bad values", 'exact_ms "x"', 'length "9.5"', 'pad_ms "y"']),
        ("8,0,1\n9,nan,1\n", ["line 1", "exact_ms 0.0", "line 2", "exact_ms nan"]),
        ("8,1,1\n8,2,2\n", ["length 8 occurs more than once"]),
        ("8,,\n", ["neither exact_ms nor pad_ms"]),
        ("8,1,1\n9,,1\n", ["exact_ms is missing at length 9"]),
        ("-8,1,1\n", ["length -8"]),
        ("9" * 400 + ",1,1\n", ["length"]),
        ("{", ["not valid JSON"]),
        ("{}", ["points"]),
        (b"\xff\xfe", ["not text"]),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str | bytes, wanted: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(CostError) as caught:
        read_cost_points(path)
    assert str(path) in caught.value.message
    assert [part for part in wanted if part not in caught.value.message] == []
    assert caught.value.hint


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no"):
        with pytest.raises(CostError, match="can't be read"):
            read_cost_points(path)


def test_roofline_is_bound_by_memory_then_by_arithmetic() -> None:
    # 2 GFLOP per element at 100 GFLOP/s: 20 ms an element. 1 GB at 10 GB/s: 100 ms a run.
    curve = roofline(
        [1, 5, 10],
        peak_gflops=100,
        bandwidth_gb_s=10,
        flops_per_element=2e9,
        fixed_bytes=1e9,
        overhead_ms=1.0,
        dynamic_factor=1.5,
        provenance={"target": "t"},
    )
    assert curve.kind == "modelled"
    assert [point.pad_ms for point in curve.points] == pytest.approx([101.0, 101.0, 201.0])
    assert [point.exact_ms for point in curve.points] == pytest.approx([151.5, 151.5, 301.5])
    assert curve.provenance["target"] == "t"
    assert curve.provenance["peak_gflops"] == "100"


def test_roofline_grows_with_the_square_of_the_length() -> None:
    curve = roofline(
        [100, 200], peak_gflops=1, bandwidth_gb_s=1, flops_per_element=0, flops_per_pair=1e3
    )
    assert curve.points[1].pad_ms == pytest.approx(4 * (curve.points[0].pad_ms or 0.0))


@pytest.mark.parametrize("name", ["peak_gflops", "bandwidth_gb_s", "flops_per_element"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_roofline_refuses_bad_parameters(name: str, value: float) -> None:
    parameters = {"peak_gflops": 1.0, "bandwidth_gb_s": 1.0, "flops_per_element": 1.0}
    with pytest.raises(CostError, match=name):
        roofline([1], **{**parameters, name: value})
