"""Calibration bundles: which programs are built, and at which sizes they are run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.buckets.ranges import AxisRange
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.planning.costs.calibration_bundle import (
    CalibrationSpec,
    choose_calibration,
    choose_sizes,
)
from edgecompile.planning.scope import PlanScope

TRAFFIC = LengthDistribution.from_counts({3: 5, 9: 10, 20: 50, 41: 30, 90: 5})


def scope(lo: int = 1, hi: int = 128, **changes: Any) -> PlanScope:
    axes = (("length", AxisRange(lo, hi, hi)), ("batch", AxisRange(1, 4, 1)))
    return PlanScope(TRAFFIC, changes.get("axes", axes), changes.get("joint"))


def lengths_of(spec: CalibrationSpec, mode: str) -> list[int]:
    return [s["length"] for i, s in spec.runs if spec.buckets[i].mode == mode]


def test_both_modes_run_where_a_static_program_was_built() -> None:
    spec = choose_calibration(scope(), ("exact", "pad"))
    assert [bucket.mode for bucket in spec.buckets] == ["exact"] + ["pad"] * (len(spec.buckets) - 1)
    assert set(lengths_of(spec, "pad")) <= set(lengths_of(spec, "exact"))
    assert max(lengths_of(spec, "pad")) == 128
    assert {1, 128, 20} <= set(lengths_of(spec, "exact"))


def test_each_side_of_a_condition_is_measured_in_its_own_program() -> None:
    sided = replace(scope(), cuts=(10, 64))
    spec = choose_calibration(sided, ("exact", "pad"))
    assert [(b.lo, b.hi) for b in spec.buckets if b.mode == "exact"] == [
        (1, 9),
        (10, 63),
        (64, 128),
    ]
    # A curve may jump at a cut: both ends of each side are points.
    assert {1, 9, 10, 63, 64, 128} <= set(lengths_of(spec, "exact"))
    assert all(spec.buckets[index].serves(sizes) for index, sizes in spec.runs)
    assert {9, 63, 128} <= set(lengths_of(spec, "pad")) <= set(lengths_of(spec, "exact"))


@given(
    st.dictionaries(st.integers(1, 500), st.integers(1, 50), min_size=1),
    st.integers(1, 30),
    st.integers(0, 600),
    st.sampled_from([("exact",), ("pad",), ("exact", "pad")]),
)
def test_runs_are_within_their_buckets(
    counts: dict[int, int], lo: int, span: int, modes: tuple[Any, ...]
) -> None:
    axes = (("length", AxisRange(lo, lo + span, lo)), ("batch", AxisRange(1, 4, 1)))
    spec = choose_calibration(PlanScope(LengthDistribution.from_counts(counts), axes), modes)
    assert {bucket.mode for bucket in spec.buckets} == set(modes)
    seen = set()
    for index, sizes in spec.runs:
        bucket = spec.buckets[index]
        assert bucket.serves(sizes)
        assert all(sizes[name] == bucket.range(name).hi for name in bucket.pad_axes)
        key = (bucket.mode, tuple(sizes.items()))
        assert key not in seen
        seen.add(key)
    assert {index for index, _ in spec.runs} == set(range(len(spec.buckets)))
    assert all(bucket.lo == lo for bucket in spec.buckets)  # so that they can be run padded


def test_lengths_that_hardly_differ_are_built_once() -> None:
    close = LengthDistribution.from_counts({60: 10, 61: 10, 62: 10, 64: 10})
    axes = (("length", AxisRange(1, 64, 60)),)
    spec = choose_calibration(PlanScope(close, axes), ("exact", "pad"))
    assert lengths_of(spec, "pad") == [64]


def test_two_axes_are_run_as_a_grid() -> None:
    cells = {(9, 1): 4, (9, 3): 2, (40, 1): 5, (90, 4): 1}
    joint = JointDistribution.from_counts(("length", "batch"), cells)
    spec = choose_calibration(scope(joint=joint), ("exact", "pad"))
    exact = {(s["length"], s["batch"]) for i, s in spec.runs if spec.buckets[i].mode == "exact"}
    lengths, batches = {n for n, _ in exact}, {b for _, b in exact}
    assert exact == {(n, b) for n in lengths for b in batches}
    assert {1, 4} <= batches
    for bucket in spec.buckets[1:]:
        assert bucket.pad_axes == ("length", "batch")
    assert {b.range("batch").hi for b in spec.buckets[1:]} == {1, 4}


@pytest.mark.parametrize(("lo", "hi"), [(1, 1), (5, 5), (1, 2), (1, 4096)])
def test_sizes_hold_both_ends(lo: int, hi: int) -> None:
    chosen = choose_sizes(TRAFFIC, lo, hi)
    assert chosen[0] == lo
    assert chosen[-1] == hi
    assert len(chosen) <= 12
