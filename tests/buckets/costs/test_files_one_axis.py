from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.buckets.costs.files import read_costs
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
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
    curve = read_costs(path, "calibrated")
    assert curve.points == POINTS
    assert curve.kind == "calibrated"
    assert curve.provenance == {"file": str(path)}


def test_reads_spreads_and_missing_modes(tmp_path: Path) -> None:
    text = "length,exact_ms,pad_ms,pad_spread_ms\n8,,1.25,0.1\n64,,7.5,\n"
    curve = read_costs(write(tmp_path, text))
    assert curve.points == (
        CostPoint(8, None, 1.25, 0.0, 0.1),
        CostPoint(64, None, 7.5, 0.0, 0.0),
    )
    assert curve.modes == ("pad",)


def test_reads_json_of_a_curve_or_of_a_plan(tmp_path: Path) -> None:
    curve = CostGrid(POINTS, "calibrated", {"machine": "m"})
    for value in (curve.to_json(), {"buckets": [], "cost_model": curve.to_json()}):
        assert read_costs(write(tmp_path, json.dumps(value))) == curve


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ["no cost points"]),
        ("length,exact_ms,pad_ms\n", ["no cost points"]),
        ("8,1\n", ["line 1", "2 columns without a header"]),
        ("8,1,1\n9,1\n", ["line 2", "2 columns"]),
        ("length,ms\n8,1\n", ["neither exact_ms nor pad_ms"]),
        ("length,pad_ms,pad_ms\n8,1,1\n", ["pad_ms occurs twice"]),
        ("8,x,1\n9.5,1,y\n", ["3 bad values", "exact_ms 'x'", "length 9.5", "pad_ms 'y'"]),
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
        read_costs(path)
    assert str(path) in caught.value.message
    assert [part for part in wanted if part not in caught.value.message] == []
    assert caught.value.hint


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no"):
        with pytest.raises(CostError, match="can't be read"):
            read_costs(path)
