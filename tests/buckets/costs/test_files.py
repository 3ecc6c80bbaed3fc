"""Surfaces from files; tests/buckets/costs/test_sources.py has the files of curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.buckets.costs.files import read_costs
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.errors import CostError
from tests.buckets.costs.grids import two_axes

AXES = ("length", "batch")
POINTS = [
    (1, CostPoint(8, 1.5, 1.25)),
    (1, CostPoint(64, 9.0, 7.5)),
    (4, CostPoint(8, 5.0, 4.0)),
    (4, CostPoint(64, 30.0, 28.0)),
]
ROWS = "8,1,1.5,1.25\n64,1,9,7.5\n8,4,5,4\n64,4,30,28\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "points"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "length,batch,exact_ms,pad_ms\n" + ROWS,
        "# by hand\nlength,batch,exact_ms,pad_ms\n64,4.0,30,28\n8,4,5,4\n\n64,1,9,7.5\n8,1,1.5,1.25",
        "pad_ms,exact_ms,Batch,Length\n1.25,1.5,1,8\n7.5,9,1,64\n4,5,4,8\n28,30,4,64\n",
    ],
)
def test_reads_csv(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    surface = two_axes(AXES, POINTS, "calibrated", {"file": str(path)})
    assert read_costs(path, "calibrated") == surface


def test_reads_json(tmp_path: Path) -> None:
    surface = two_axes(AXES, POINTS, "modelled", {"machine": "m"})
    for value in (surface.to_json(), {"buckets": [], "cost_model": surface.to_json()}):
        path = write(tmp_path, json.dumps(value))
        assert read_costs(path) == surface
    curve = CostGrid((POINTS[0][1],), "measured")
    assert read_costs(write(tmp_path, json.dumps(curve.to_json()))) == curve


def test_curves_stay_curves(tmp_path: Path) -> None:
    for text in (
        "length,exact_ms,pad_ms\n8,1,1\n",
        "8,1,1\n9,2,2\n",
        "length,note,exact_ms\n8,a,1\n9,b,2\n",
        "length,repeats,exact_ms\n8,5,1\n9,5,2\n",
    ):
        assert read_costs(write(tmp_path, text)).axes == ("length",)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "holds no cost points"),
        ("length,batch,exact_ms\n", "holds no cost points"),
        ("8,1,1,1\n", "line 1: 4 columns without a header"),
        ("batch,exact_ms,pad_ms\n8,1,1\n", "line 1: the header has no column length"),
        ("length,batch,ms\n8,1,1\n", "neither exact_ms nor pad_ms"),
        ("length,batch,batch,pad_ms\n8,1,1,1\n", "batch occurs twice"),
        ("length,batch,pad_ms\n8,0,1\n8,1,1\n", "line 2: batch 0 isn't a whole number"),
        ("length,batch,pad_ms\n8,x,y\n8,1,1\n", "2 bad values: line 2: batch 'x'"),
        ("length,batch,pad_ms\n8,,1\n8,1,1\n", "batch '' isn't"),
        ("length,batch,pad_ms\n8,1\n", "2 columns where 3 were expected"),
        ("length,batch,pad_ms\n8,1,1\n8,1,2\n", "length 8 with batch 1 occurs more than once"),
        (
            "length,batch,pad_ms\n8,1,1\n16,1,1\n8,4,1\n",
            "the grid lacks length 16 with batch 4",
        ),
        ("length,batch,pad_ms\n8,1,-1\n", "pad_ms -1.0 isn't a positive number"),
        ("length,batch,pad_ms\n8,1,1e308\n", "pad_ms isn't from 1e-09 to 1e+12 ms"),
        ("length,batch,pad_ms\n8,1,1e-320\n", "pad_ms isn't from 1e-09 to 1e+12 ms"),
        ("length,batch,pad_ms\n8,1,1_0\n", "pad_ms '1_0' isn't a positive number"),
        ("length,batch,pad_ms\n2147483648,1,1\n", "over the largest length, 2147483647"),
        ("{", "not valid JSON"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, wanted: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(CostError) as caught:
        read_costs(path)
    assert wanted in caught.value.message
    assert str(path) in caught.value.message
    assert "length,batch,exact_ms,pad_ms" in (caught.value.hint or "")
