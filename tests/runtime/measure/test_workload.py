"""workload: lengths files, and what is run for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.format.manifest.schema import BucketSpec, Manifest
from edgecompile.runtime.measure.workload import plan_runs, read_lengths


def test_lengths_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("# seen in May\n5\n\n 7 \n5\n9,3\n5, 2\n")
    assert read_lengths(str(tmp_path / "x")) == {5: 4, 7: 1, 9: 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no lengths"),
        ("5\nsix\n", "line 2: 'six'"),
        ("0\n", "line 1: '0'"),
        ("-3\n", "line 1: '-3'"),
        ("1.5\n", "line 1: '1.5'"),
        ("5,\n", "line 1: '5,'"),
        ("5,1,1\n", "line 1"),
        ("9" * 400, "line 1"),
        ("²\n", "line 1"),
        ("\x00\x01", "line 1"),
    ],
)
def test_bad_lengths_files(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError) as caught:
        read_lengths(str(tmp_path / "x"))
    assert problem in caught.value.message


def test_a_lengths_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read_lengths(str(tmp_path / "x"))
    with pytest.raises(InputError, match="can't be read"):
        read_lengths(str(tmp_path))


def test_runs_of_lengths(manifest: Manifest) -> None:
    runs, outside = plan_runs(manifest, {40: 2, 5: 3, 65: 7})
    assert runs == [
        (5, {"batch": 1, "length": 5}, 3),
        (40, {"batch": 1, "length": 40}, 2),
    ]
    assert outside == {"65": 7}


def test_runs_without_lengths_are_the_hints(manifest: Manifest) -> None:
    runs, outside = plan_runs(manifest, None)
    assert [(length, count) for length, _, count in runs] == [(16, 1), (64, 1)]
    assert outside == {}
    twice = manifest._replace(buckets=manifest.buckets * 2)
    assert plan_runs(twice, None)[0] == runs, "the same sizes are run once"
    exact = tuple(BucketSpec("exact", item.axes) for item in manifest.buckets)
    fixed = manifest._replace(buckets=exact, length_axis=None)
    assert [length for length, _, _ in plan_runs(fixed, {5: 1})[0]] == [None, None]
