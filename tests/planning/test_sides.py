"""Ranges of lengths with a program each, where conditions on the length allow no program for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgecompile.buckets.ranges import Bucket
from edgecompile.errors import ExportError, PlanError
from edgecompile.export.checks import compare_outputs
from edgecompile.export.program import common_outputs
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.planning import sides
from edgecompile.planning.length_support import LengthSupport, find_length_support
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope


class Conditional(nn.Module):
    """A linear layer, and a function of its outputs that looks at sizes."""

    def __init__(self, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.rule = nn.Linear(4, 4), rule

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(self.linear(x))


def crop(x: Tensor) -> Tensor:
    return x[:, :30].cumsum(1)


def tail(x: Tensor) -> Tensor:
    return x[:, -3:]


def several(x: Tensor) -> Tensor:
    if x.shape[1] < 7:
        x = F.pad(x, (0, 0, 0, 7 - x.shape[1]))
    return x.amax(1) if x.shape[1] > 40 else x.sum(1)


def all_but_one(x: Tensor) -> Tensor:
    return x * 2 if x.shape[1] != 20 else x * 3


def one_of_many(x: Tensor) -> Tensor:
    return x.cumsum(1) if x.shape[1] in (21, 40) else x * 3


def halves(x: Tensor) -> Tensor:
    return x * 2 if x.shape[1] // 2 > 16 else x * 3


def blocks(x: Tensor) -> Tensor:
    short = x.shape[1] < 33
    x = F.pad(x, (0, 0, 0, -x.shape[1] % 8)).unflatten(1, (-1, 8)).amax(2)
    return x * 2 if short else x


def even(x: Tensor) -> Tensor:
    if x.shape[1] % 2:
        x = F.pad(x, (0, 0, 0, 1))
    return x[:, ::2] + 2 * x[:, 1::2]


def quarters(x: Tensor) -> Tensor:
    return x.cumsum(1) if x.shape[1] // 2 % 2 else x * 2


def late(x: Tensor) -> Tensor:
    return x.cumsum(1) if x.shape[1] > 30 and x.shape[1] % 2 else x * 3


def nested(x: Tensor) -> Tensor:
    if x.shape[1] % 2:
        return x * 5
    return x * 2 if x.shape[1] % 4 else x.cumsum(1)


def steps(x: Tensor) -> Tensor:
    rows = [x[:, 0]]
    for place in range(1, x.shape[1]):
        rows.append(rows[-1] * 0.5 + x[:, place])
    return torch.stack(rows, 1)


def pieces(x: Tensor) -> Tensor:
    return torch.cat([part.cumsum(1) for part in x.split(8, 1)], 1)


def first_rows(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 4 else x * 3


def values(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def found(
    rule: Callable[[Tensor], Tensor],
    folder: Path,
    lengths: tuple[int, ...] = (5, 20, 60),
    *,
    longest: int = 60,
    batch: tuple[int, int] = (1, 3),
) -> tuple[ExportStore, LengthSupport]:
    model = load_model(
        {
            "module": Conditional(rule),
            "inputs": {"x": torch.randn(1, min(12, longest), 4)},
            "axes": {"x": {0: "batch", 1: "length"}},
            "limits": {"length": (1, longest), "batch": batch},
        }
    )
    exports = ExportStore(model, folder)
    request = PlanRequest(LengthDistribution.from_samples(lengths), quick=True)
    return exports, find_length_support(exports, request, plan_scope(model, request))


@pytest.mark.parametrize(
    ("rule", "starts", "shape"),
    [
        (crop, (30,), ("batch", None, 4)),
        (tail, (3,), ("batch", None, 4)),
        (several, (7, 41), ("batch", 4)),
        (all_but_one, (20, 21), ("batch", "length", 4)),
        (one_of_many, (21, 22, 40, 41), ("batch", "length", 4)),
        (halves, (34,), ("batch", "length", 4)),
        pytest.param(blocks, (33,), ("batch", None, 4), marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_side_is_right_at_every_length(
    rule: Callable[[Tensor], Tensor],
    starts: tuple[int, ...],
    shape: tuple[str | int | None, ...],
    tmp_path: Path,
) -> None:
    exports, serving = found(rule, tmp_path)
    assert serving.scope.cuts == starts
    programs = [exports.get(bucket) for bucket in serving.buckets]
    assert common_outputs(programs)[0].shape == shape
    lengths = []
    for bucket, program in zip(serving.buckets, programs, strict=True):
        assert bucket.mode == "exact" and bucket.range("batch").hi == 3
        module = program.program.module()
        for length in range(bucket.lo, bucket.hi + 1):
            lengths.append(length)
            inputs = exports.model.make_example({"length": length, "batch": 1 + length % 3})
            error = compare_outputs(module(**inputs), exports.model.run(inputs))  # type: ignore[operator]
            assert not isinstance(error, str) and error < 1e-5
    assert lengths == list(range(1, 61))


@pytest.mark.parametrize("median", [29, 30, 31])
def test_the_side_of_the_median_doesnt_matter(median: int, tmp_path: Path) -> None:
    _, serving = found(crop, tmp_path, (5, median, 60), batch=(1, 1))
    assert serving.scope.cuts == (30,)


@pytest.mark.parametrize(
    ("rule", "programs"),
    [
        pytest.param(even, ((1, 59, 2), (2, 60, 2)), marks=pytest.mark.exhaustive),
        (quarters, ((1, 57, 4), (2, 58, 4), (3, 59, 4), (4, 60, 4))),
        (late, ((1, 30, 1), (31, 59, 2), (32, 60, 2))),
        pytest.param(
            nested,
            ((1, 57, 4), (2, 58, 4), (3, 59, 4), (4, 60, 4)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_lengths_of_each_remainder_have_a_program(
    rule: Callable[[Tensor], Tensor], programs: tuple[tuple[int, int, int], ...], tmp_path: Path
) -> None:
    exports, serving = found(rule, tmp_path)
    assert serving.modes == ("exact",) and serving.scope.programs == programs
    assert "have programs of their own" in serving.note
    lengths = []
    for bucket in serving.buckets:
        module = exports.get(bucket).program.module()
        for length in bucket.axes[0][1].sizes:
            lengths.append(length)
            inputs = exports.model.make_example({"length": length, "batch": 1 + length % 3})
            error = compare_outputs(module(**inputs), exports.model.run(inputs))  # type: ignore[operator]
            assert not isinstance(error, str) and error < 1e-5
    assert sorted(lengths) == list(range(1, 61))


def test_few_lengths_have_a_program_each_where_no_range_does(tmp_path: Path) -> None:
    _, serving = found(steps, tmp_path, (2, 3), longest=5, batch=(1, 1))
    assert serving.scope.sides == ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5))


def test_more_programs_than_usual_are_built_where_nothing_else_serves(tmp_path: Path) -> None:
    _, serving = found(steps, tmp_path, (2, 12), longest=12, batch=(1, 1))
    assert len(serving.scope.sides) == 12
    assert "length 1, 2, 3 and so on have 12 programs, which take 12 times as long" in serving.note


@pytest.mark.exhaustive
def test_pieces_of_the_length_have_programs_of_their_own(tmp_path: Path) -> None:
    exports, serving = found(pieces, tmp_path, (5, 60, 80), longest=80, batch=(1, 1))
    assert len(serving.scope.sides) > 8
    for bucket in serving.buckets:
        for length in {bucket.lo, bucket.hi}:
            inputs = exports.model.make_example({"length": length, "batch": 1})
            outputs = exports.get(bucket).program.module()(**inputs)  # type: ignore[operator]
            error = compare_outputs(outputs, exports.model.run(inputs))
            assert not isinstance(error, str) and error < 1e-5


@pytest.mark.parametrize(
    ("rule", "words"),
    [(steps, "fixes length to"), (first_rows, "batch <= 4"), (values, "depend on values")],
)
def test_what_no_range_serves_is_refused_in_true_words(
    rule: Callable[[Tensor], Tensor], words: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError) as failure:
        found(rule, tmp_path, batch=(1, 8))
    assert words in failure.value.message
    assert f"in {rule.__name__}: " in failure.value.message


def test_a_search_in_vain_is_bounded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every export fails, and tells of halves and of a period, as windows of odd lengths do."""
    tried = []

    def refuse(bucket: Bucket) -> None:
        tried.append(own := bucket.axes[0][1])
        parts = ((own.lo, (own.lo + own.hi) // 2), ((own.lo + own.hi) // 2 + 1, own.hi))
        raise ExportError("no", parts=parts, near=parts, period=2)

    exports, serving = found(crop, tmp_path)
    monkeypatch.setattr(exports, "get", refuse)
    monkeypatch.setattr(sides._Search, "_next", lambda *_: None)
    notes: list[str] = []
    error = ExportError("no", parts=((1, 30), (31, 60)), near=(), period=2)
    assert sides.find_sides(exports, serving.scope, error, 8, notes) == ()
    assert len(set(tried)) == 9 and "was given up after 9 failed exports" in notes[0]
