from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgecompile.buckets.evaluation import find_buckets, run_sizes
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.buckets.traffic import Traffic
from edgecompile.errors import PlanError

AXES = (("length", AxisRange(5, 64, 32)), ("batch", AxisRange(2, 8, 8)))


def test_a_padded_bucket_pads_its_length_axis_unless_told_otherwise() -> None:
    assert Bucket("exact", AXES).pad_axes == ()
    assert Bucket("pad", AXES).pad_axes == ("length",)
    assert Bucket("pad", AXES) == Bucket("pad", AXES, ("length",))
    assert Bucket("pad", AXES, ("batch", "length")).pad_axes == ("length", "batch")


def test_sizes_of_a_run() -> None:
    traffic = Traffic(("length", "batch"), np.array([[7, 3]]), np.array([1]))

    def run(bucket: Bucket) -> list[int]:
        (sizes,) = run_sizes((bucket,), traffic, find_buckets((bucket,), traffic)).tolist()
        return sizes

    assert run(Bucket("exact", AXES)) == [7, 3]
    assert run(Bucket("pad", AXES)) == [64, 3]
    assert run(Bucket("pad", AXES, ("length", "batch"))) == [64, 8]


@pytest.mark.parametrize(
    ("bucket", "written"),
    [
        (Bucket("exact", AXES), None),
        (Bucket("pad", AXES), None),
        (Bucket("pad", AXES, ("length", "batch")), ["length", "batch"]),
    ],
)
def test_padded_axes_go_through_json(bucket: Bucket, written: Any) -> None:
    value = json.loads(json.dumps(bucket.to_json()))
    assert value.get("pad_axes") == written
    assert Bucket.from_json(value, "length") == bucket


@pytest.mark.parametrize(
    ("mode", "padded", "message"),
    [
        ("exact", ("length",), "an exact bucket pads nothing, but pads length"),
        ("pad", ("length", "width"), "pads width, but the bucket's axes are length, batch"),
        ("pad", ("batch",), "pads batch, but not the length axis, length"),
        ("pad", ("length", "length"), "occurs twice in length, length"),
    ],
)
def test_bad_padded_axes_are_refused(mode: Any, padded: tuple[str, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Bucket(mode, AXES, padded)
    value = {**Bucket(mode, AXES).to_json(), "pad_axes": list(padded)}
    with pytest.raises(PlanError, match=f"^bucket: .*{message}"):
        Bucket.from_json(value, "length")


@pytest.mark.parametrize("padded", ["length", [3], None, {"length": 1}])
def test_padded_axes_of_another_form_are_refused(padded: object) -> None:
    value = {**Bucket("pad", AXES).to_json(), "pad_axes": padded}
    with pytest.raises(PlanError, match="isn't a list of names"):
        Bucket.from_json(value, "length")


def test_lengths_in_steps() -> None:
    odd = Bucket("exact", (("length", AxisRange(1, 9, 5, 2)),))
    assert Bucket.from_json(odd.to_json(), "length") == odd
    assert odd.to_json()["step"] == 2 and odd.program_json()["length"]["step"] == 2
    assert [n for n in range(12) if odd.serves({"length": n})] == [1, 3, 5, 7, 9]
    assert str(odd.range("length")) == "1..9 in steps of 2"
    assert [odd.range("length").below(n) for n in (0, 4, 5, 20)] == [1, 3, 5, 9]
    for other, held in (((3, 7, 3, 4), True), ((3, 7, 3, 1), False), ((5, 5, 5, 1), True)):
        assert odd.holds(Bucket("exact", (("length", AxisRange(*other)),))) is held
    with pytest.raises(PlanError, match="aren't reached from lo 1 in steps of 2"):
        AxisRange(1, 8, 5, 2)
    with pytest.raises(PlanError, match="step is '2', not a whole number"):
        AxisRange.from_json({"lo": 1, "hi": 9, "step": "2"})
