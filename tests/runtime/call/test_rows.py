"""Rows of a batch: together as alone, equal where they are equal; and which models are checked so."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgecompile import ModelSpec
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle.cases import rows_cases
from edgecompile.bundle.writer import save_case
from edgecompile.loaders.load import load_model
from edgecompile.runtime.call.rows import (
    ROWS,
    check_rows,
    compare_rows,
    equal_rows,
    rows_alone,
)
from edgecompile.runtime.format.manifest.schema import BucketSpec, Extent, TensorSpec, Tolerance

Arrays = Mapping[str, Any]
TOLERANCE = Tolerance(1e-6, 1e-5)
INPUTS = {"x": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)}


def right(arrays: Arrays) -> Arrays:
    return {"y": arrays["x"] * 2, "best": arrays["x"].argmax(1)}


def first_alone_is_right(arrays: Arrays) -> Arrays:
    found = right(arrays)
    found["y"][1:] += 1
    return found


def leaks(arrays: Arrays) -> Arrays:
    return {"y": arrays["x"] + arrays["x"].mean(0)}


def reuses_memory() -> Callable[[Arrays], Arrays]:
    memory = np.zeros((4, 3), np.float32)

    def run(arrays: Arrays) -> Arrays:
        memory[: len(arrays["x"])] = arrays["x"] * 2
        return {"y": memory[: len(arrays["x"])]}

    return run


@pytest.mark.parametrize(
    ("run", "equal", "alone"),
    [
        (right, True, True),
        (first_alone_is_right, False, False),
        (leaks, True, False),
        (reuses_memory(), True, True),
    ],
)
def test_what_each_check_finds(run: Callable[[Arrays], Arrays], equal: bool, alone: bool) -> None:
    for check, expected in ((equal_rows, equal), (rows_alone, alone)):
        found = compare_rows(*check(run, INPUTS, 1), TOLERANCE)
        assert all(item.ok for item in found.values()) == expected


def test_rows_in_pairs_are_never_parted() -> None:
    sizes = []

    def run(arrays: Arrays) -> Arrays:
        sizes.append(len(arrays["x"]))
        return right(arrays)

    rows_alone(run, INPUTS, 2)
    assert sizes == [4, 2, 2]


def test_choices_may_differ_where_few_do() -> None:
    for rows, length, count, ok in (
        (4, 16, 8, True),
        (4, 16, 16, False),  # one row
        (4, 1, 1, True),
        (4, 1, 2, False),
        (2, 3, 3, False),
    ):
        want = {"best": np.arange(rows * length).reshape(rows, length)}
        got = {"best": np.where(want["best"] < count, 100, want["best"])}
        assert compare_rows(got, want, TOLERANCE)["best"].ok == ok


def test_a_bucket_is_run_with_as_few_rows_as_it_takes(tmp_path: Path) -> None:
    axes = ("batch", 3)
    inputs, outputs = TensorSpec("x", "float32", axes), TensorSpec("y", "float32", axes)
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    save_case(tmp_path / "rows.npz", {"x": x}, {"y": x})
    sizes = []

    class Runner:
        tolerance, min_cosine = TOLERANCE, None
        manifest = SimpleNamespace(
            inputs=(inputs,),
            outputs=(outputs,),
            axes={"batch": Extent(1, 8)},
            buckets=[BucketSpec("exact", {"batch": Extent(*ends)}) for ends in ((1, 2), (3, 8))],
            golden=[SimpleNamespace(bucket=1, case=ROWS, file="rows.npz")],
            plan={},
        )

        def open_file(self, name: str) -> int:
            return os.open(tmp_path / name, os.O_RDONLY)

        def run_bucket(self, bucket: int, arrays: Arrays) -> Arrays:
            sizes.append(len(arrays["x"]))
            return {"y": arrays["x"]}

    runner: Any = Runner()
    assert [item["ok"] for item in check_rows(runner)] == [True, True]
    assert sizes == [6, 6, 3, 3]


class Net(nn.Module):
    def __init__(self, mixes: str) -> None:
        super().__init__()
        self.mixes, self.layer, self.norm = mixes, nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.norm.track_running_stats = False  # as in training, also in eval
        self.norm.running_mean = self.norm.running_var = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.mixes == "norm":
            y = self.norm(y.transpose(1, 2)).transpose(1, 2)
        if self.mixes == "sum":
            y = y - y.sum(0)
        return y


@pytest.mark.parametrize(
    ("mixes", "batch", "rows"),
    [("", (1, 8), 4), ("", (2, 4), 4), ("", (1, 1), 0), ("norm", (1, 8), 0), ("sum", (1, 2), 0)],
)
def test_only_where_eager_s_rows_are_alone_there_is_a_case(
    mixes: str, batch: tuple[int, int], rows: int
) -> None:
    spec = ModelSpec(
        module=Net(mixes).eval(),
        inputs={"x": torch.randn(2, 7, 4)},
        axes={"x": {0: "batch", 1: "length"}},
        limits=MappingProxyType({"length": (1, 40)}),
    )
    model = load_model(spec, name="net", batch=batch)
    axes = (("length", AxisRange(1, 16, 8)), ("batch", AxisRange(*batch, batch[0])))
    found = list(rows_cases(model, [Bucket("exact", axes)]))
    assert [(case.name, case.inputs["x"].shape) for case in found] == [(ROWS, (rows, 8, 4))] * bool(
        rows
    )


@pytest.mark.parametrize(("most", "shape"), [(1024, (4, 8, 4)), (1023, (4, 3, 4)), (383, None)])
def test_a_case_is_short_where_long_ones_take_much_room(
    monkeypatch: pytest.MonkeyPatch, most: int, shape: tuple[int, ...] | None
) -> None:
    spec = ModelSpec(
        module=Net("").eval(),
        inputs={"x": torch.randn(2, 7, 4)},
        axes={"x": {0: "batch", 1: "length"}},
        limits=MappingProxyType({"length": (1, 40)}),
    )
    monkeypatch.setattr("edgecompile.bundle.cases.ROWS_BYTES", most)
    axes = (("length", AxisRange(3, 16, 8)), ("batch", AxisRange(1, 8, 1)))
    found = list(rows_cases(load_model(spec, name="net", batch=(1, 8)), [Bucket("exact", axes)]))
    assert [case.inputs["x"].shape for case in found] == ([] if shape is None else [shape])
