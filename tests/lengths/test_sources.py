from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.errors import LengthsError, UsageError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.lengths.sources import read_traffic

LENGTHS = LengthDistribution((7, 12), (1, 3), "lengths")
PAIRS = JointDistribution(("length", "batch"), ((7, 1), (12, 4)), (1, 3), "pairs of sizes")


@pytest.mark.parametrize(
    "source",
    [
        [12, 7, 12, 12],
        (12, 7, 12, 12),
        iter([12, 7, 12, 12]),
        np.array([12, 7, 12, 12], np.uint16),
        [np.int64(12), 7, 12.0, 12],
        {12: 3, 7: 1},
        {np.int64(12): np.int32(3), 7: 1},
        {"12": 3, "7": 1},
        {"lengths": [12, 7], "counts": [3, 1]},
        LENGTHS,
    ],
)
def test_lengths_in_every_form(source: Any) -> None:
    assert read_traffic(source) == LENGTHS


@pytest.mark.parametrize(
    "source",
    [
        [(4, 12), (1, 7), (4, 12), [4, 12]],
        np.array([[4, 12], [1, 7], [4, 12], [4, 12]]),
        {(4, 12): 3, (1, 7): 1},
        PAIRS,
    ],
)
def test_pairs_of_batch_and_length(source: Any) -> None:
    assert read_traffic(source) == PAIRS


def test_the_object_of_a_json_file_has_axes_of_any_name() -> None:
    source = {"axes": ["width", "length"], "sizes": [[4, 12], [1, 7]], "counts": [3, 1]}
    pairs = read_traffic(source)
    assert isinstance(pairs, JointDistribution)
    assert pairs.axes == ("length", "width") and pairs.sizes == PAIRS.sizes


def test_files_of_one_and_two_axes(tmp_path: Path) -> None:
    path = tmp_path / "traffic"
    path.write_text("length,count\n12,3\n7,1\n")
    lengths = read_traffic(str(path))
    assert isinstance(lengths, LengthDistribution) and lengths.lengths == (7, 12)
    path.write_text("batch,length,count\n4,12,3\n1,7,1\n")
    pairs = read_traffic(path)
    assert isinstance(pairs, JointDistribution) and pairs.sizes == PAIRS.sizes
    named = read_traffic(path, ("tokens", "batch"))
    assert isinstance(named, JointDistribution) and named.axes == ("tokens", "batch")
    path.write_text("id,length\n4,12\n")
    assert isinstance(read_traffic(path), LengthDistribution)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ([], "holds no lengths"),
        ({}, "holds no lengths"),
        ([1.5], "isn't a whole number"),
        ([float("nan")], "isn't a finite number"),
        (["12"], "type <U2"),
        ([True], "type bool"),
        ([0], "lengths start at 1"),
        ({12: 0}, "counts start at 1"),
        ([(1, 2), 3], "don't have one shape"),
        ({(1, 2): 1, 3: 1}, "isn't a pair"),
        ({True: 1}, "isn't a number"),
        ({"1.5": 1}, '"1.5" isn\'t a number'),
        ({"3": 1, 4: 1}, '"3" isn\'t a number'),
        ([(1, 2, 3)], "shape"),
        ([(4, 0)], "sizes start at 1"),
        ([{}], "type object"),
        (np.array([1.5]), "isn't a whole number"),
        (np.array(["1"]), "type <U1"),
        (np.zeros((1, 1, 1), np.int64), "shape"),
    ],
)
def test_other_sources_are_refused(source: Any, reason: str) -> None:
    with pytest.raises(LengthsError, match=reason):
        read_traffic(source)


def test_other_types_are_refused() -> None:
    for source in (5, None, b"12"):
        with pytest.raises(UsageError, match="`lengths` is a") as caught:
            read_traffic(source)  # type: ignore[arg-type]
        assert "give a file's path, a list" in (caught.value.hint or "")
