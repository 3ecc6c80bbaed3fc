"""orders: outputs that come in the order of a choice, and those that near ties leave open."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle import cases as cases_module
from edgecompile.bundle import reference
from edgecompile.bundle.cases import Case, draw_arrays, make_case, make_cases, rows_cases
from edgecompile.bundle.margins import describe_reference
from edgecompile.bundle.reference import Reference, References, run_eager
from edgecompile.errors import ModelError
from edgecompile.loaders.load import load_model
from edgecompile.models.choices import Choices
from edgecompile.models.definite import definite
from edgecompile.models.double import run_in_float64
from edgecompile.models.kinds import FEW
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.orders import _MOST_LINES, Given, Repeated, follow_orders
from edgecompile.runtime.format.golden.ties import Ties, take_ties
from edgecompile.runtime.format.manifest.schema import Tolerance

FP32 = Tolerance(1e-6, 2e-5)
#: The three best tie, and so do the last two of five.
SCORES = torch.tensor([0.1, 0.9, 0.3, 0.9 - 1e-6, 0.5, 0.9 + 1e-6, 0.2, 0.2 + 1e-6])
BUCKETS = [Bucket("exact", (("length", AxisRange(5, 20, 12)),))] * 2
Arrays = dict[str, npt.NDArray[Any]]


class Queries(nn.Module):
    """Rows [B, N, 8] to those of the largest scores, which then see each other.

    Args:
        count: Number of rows that are chosen.
        counted: Whether a row's number among them is added to it.
    """

    def __init__(self, count: int, counted: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.count, self.counted = count, counted
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, rows: Tensor, scores: Tensor) -> dict[str, Tensor]:
        places = scores.topk(self.count).indices
        chosen = rows.gather(1, places.unsqueeze(-1).expand(-1, -1, rows.shape[2]))
        if self.counted:
            chosen = chosen + torch.arange(float(self.count))[:, None]
        mixed = chosen + self.mix(chosen, chosen, chosen)[0]
        return {"logits": self.head(mixed), "boxes": chosen.sigmoid(), "mean": mixed.mean((1, 2))}


class Tight(Queries):
    """Rows whose scores all tie; a program adds roundings to these, or takes the last rows for the best."""

    roundings: Tensor | None = None
    wrong = False

    def forward(self, rows: Tensor, scores: Tensor) -> dict[str, Tensor]:
        scores = 1.0 + 5e-6 * scores
        if self.roundings is not None:
            scores = scores + self.roundings[: scores.shape[1]]
        return super().forward(rows, -scores if self.wrong else scores)


def record(module: Queries, batch: int = 1) -> tuple[dict[str, Tensor], Ties | None, float]:
    torch.manual_seed(1)
    inputs = {"rows": torch.randn(batch, 8, 8), "scores": SCORES.repeat(batch, 1)}

    def run(mode: AbstractContextManager[Any]) -> dict[str, Tensor]:
        with torch.no_grad(), definite(), mode:
            made: dict[str, Tensor] = module(**inputs)
            return made

    choices = Choices()
    outputs = run(choices)
    apart = follow_orders(choices, outputs, FP32.rtol, run)
    return outputs, choices.find_ties(outputs, FP32.rtol), apart


def agrees(got: Arrays, want: Arrays, ties: Ties | None) -> bool:
    assert ties is not None
    taken = take_ties(got, want, ties, FP32)
    return all(np.allclose(got[name], taken[name], rtol=0, atol=1e-6) for name in want)


@pytest.mark.parametrize("batch", [1, 3])
def test_outputs_may_come_in_another_order_of_ties_together(batch: int) -> None:
    outputs, ties, apart = record(Queries(5), batch)
    assert apart == math.inf
    want: Arrays = {name: tensor.numpy() for name, tensor in outputs.items()}

    def turned(*order: int, names: tuple[str, ...] = ("logits", "boxes")) -> Arrays:
        last = {name: array.copy() for name, array in want.items()}
        for name in names:
            last[name][-1] = want[name][-1][list(order)]
        return last

    for order in ((0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (2, 0, 1, 3, 4), (2, 1, 0, 3, 4)):
        assert agrees(turned(*order), want, ties)
    # Rows that don't tie, a row twice, one output alone, and what isn't a number.
    for order in ((0, 1, 3, 2, 4), (0, 1, 2, 4, 3), (0, 0, 2, 3, 4), (3, 1, 2, 0, 4)):
        assert not agrees(turned(*order), want, ties)
    for name in ("logits", "boxes"):
        assert not agrees(turned(1, 0, 2, 3, 4, names=(name,)), want, ties)
    for value in (np.nan, np.inf, 0.0):
        spoilt = turned(1, 0, 2, 3, 4)
        spoilt["logits"][-1, 0] = value
        assert not agrees(spoilt, want, ties)


def test_ties_that_decide_more_than_an_order_leave_outputs_open() -> None:
    # The scale of the scores is 0.9.
    for module in (Queries(2), Queries(6), Queries(5, counted=True)):
        assert record(module)[2] == pytest.approx(1e-6 / 0.9, rel=0.1)
    assert record(Queries(4))[2] == math.inf


@pytest.mark.parametrize(("count", "runs"), [(5, 2), (6, 3)])
def test_a_trial_that_is_refused_leaves_outputs_open(count: int, runs: int) -> None:
    """Five rows tie in their order alone. Six tie for the last place, too, which is tried first."""

    class Refusing(Queries):
        runs = 0

        def forward(self, rows: Tensor, scores: Tensor) -> dict[str, Tensor]:
            self.runs += 1
            if self.runs == 2:
                raise ModelError("these places are refused")
            return super().forward(rows, scores)

    module = Refusing(count)
    outputs, ties, apart = record(module)
    assert apart == pytest.approx(1e-6 / 0.9, rel=0.1) and module.runs == runs
    want: Arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
    order = [1, 0, *range(2, count)]
    turned = {name: want[name][:, order] for name in ("logits", "boxes")}
    assert (ties is not None and agrees({**want, **turned}, want, ties)) is (count == 6)


def test_outputs_left_open_may_still_come_in_another_order() -> None:
    outputs, ties, apart = record(Queries(6))
    assert apart < math.inf
    want: Arrays = {name: tensor.numpy() for name, tensor in outputs.items()}

    def turned(*order: int) -> Arrays:
        rows = {name: want[name][:, list(order)] for name in ("logits", "boxes")}
        return {**want, **rows}

    assert agrees(turned(2, 0, 1, 3, 4, 5), want, ties)
    # Clear margins decide the order of these.
    for order in ((0, 1, 3, 2, 4, 5), (0, 1, 2, 3, 5, 4)):
        assert not agrees(turned(*order), want, ties)


def test_one_line_of_a_choice_may_be_read() -> None:
    lines = torch.tensor([[0.1, 0.9, 0.3], [0.5, 0.1, 0.5 - 1e-6]])

    def run(mode: AbstractContextManager[Any]) -> dict[str, Tensor]:
        with mode:
            return {"sum": lines[1].cumsum(0)[lines.topk(1).indices[1]]}

    choices = Choices()
    assert follow_orders(choices, run(choices), FP32.rtol, run) < FP32.rtol


def test_a_last_place_between_equal_rows_leaves_nothing_open() -> None:
    class Padded(Queries):
        def forward(self, rows: Tensor, scores: Tensor) -> dict[str, Tensor]:
            # The two rows that tie for the last place are the same.
            return super().forward(rows.index_fill(1, torch.tensor([6, 7]), 0.0), scores)

    assert record(Padded(6))[2] == math.inf


def test_float64_takes_the_choices_of_float32() -> None:
    class Scored(Queries):
        def forward(self, rows: Tensor, scores: Tensor) -> dict[str, Tensor]:
            return super().forward(rows, scores + rows[..., 0] * 0.0)

    module = Scored(5)
    torch.manual_seed(1)
    inputs = {"rows": torch.randn(1, 8, 8), "scores": torch.zeros(1, 8) + SCORES}
    with torch.no_grad(), definite(), Given({0: torch.tensor([[3, 1, 5, 4, 2, 7, 6, 0]])}):
        narrow = module(**inputs)
    with torch.no_grad(), definite(), Choices() as choices:
        module(**inputs)
    assert choices.calls[0].places[0, :3].tolist() == [5, 1, 3]
    choices.calls[0].places[0, :3] = torch.tensor([3, 1, 5])
    with Repeated(choices.calls, FP32.rtol):
        wide = run_in_float64(module, inputs)
    assert wide["boxes"].dtype == torch.float64
    torch.testing.assert_close(wide["logits"].float(), narrow["logits"])
    # What doesn't tie is chosen anew.
    choices.calls[0].places[0, 3:5] = torch.tensor([2, 4])
    with Repeated(choices.calls, FP32.rtol):
        own = run_in_float64(module, inputs)
    assert not torch.allclose(own["logits"].float(), narrow["logits"], atol=1e-3)


def test_calls_that_nothing_read_are_left_out() -> None:
    class Sorted(Queries):
        def forward(self, rows: Tensor, scores: Tensor) -> dict[str, Tensor]:
            made = super().forward(rows, scores + scores.sort().values[:, :1] * 0.0)
            return {**made, "largest": rows.max(1).values}

    module = Sorted(5)
    torch.manual_seed(1)
    inputs = {"rows": torch.randn(1, 8, 8), "scores": SCORES[None]}
    with torch.no_grad(), definite(), Choices() as choices:
        outputs = module(**inputs)
    assert list(choices.calls) == [1]
    choices.calls[1].places[0, :3] = torch.tensor([3, 1, 5])
    with torch.no_grad(), definite(), Repeated(choices.calls, FP32.rtol):
        again = module(**inputs)
    torch.testing.assert_close(again["boxes"], outputs["boxes"][:, [2, 1, 0, 3, 4]])


@pytest.mark.parametrize("inside", [False, True])
def test_many_lines_that_tie_are_left_open_without_a_run(inside: bool) -> None:
    count, runs = 2 if inside else 1, []

    def choose(lines: int) -> bool:
        scores = torch.tensor([0.1, 0.9, 0.9, 0.4]).repeat(lines, 1)

        def run(mode: AbstractContextManager[Any]) -> dict[str, Tensor]:
            runs.append(lines)
            with mode:
                return {
                    "mean": scores.cumsum(-1).gather(1, scores.topk(count).indices).mean()[None]
                }

        choices = Choices()
        return follow_orders(choices, run(choices), FP32.rtol, run) < math.inf

    # A mean of both places has no order.
    assert choose(_MOST_LINES + 1) and choose(_MOST_LINES) != inside
    assert runs == [_MOST_LINES + 1, _MOST_LINES, _MOST_LINES]


def load_level() -> LoadedModel:
    """A model of queries whose scores all tie where two neighbours do."""

    class Level(Queries):
        def forward(self, rows: Tensor, scores: Tensor) -> dict[str, Tensor]:
            repeated = (scores[:, 1:] == scores[:, :-1]).any()
            return super().forward(rows, torch.where(repeated, scores * 0.0, scores))

    return load_queries(Level(5))


def load_queries(module: Queries, batch: tuple[int, int] | None = None) -> LoadedModel:
    axes = {1: "length"} if batch is None else {0: "batch", 1: "length"}
    spec = {
        "module": module,
        "inputs": {"rows": torch.randn(len(axes), 8, 8), "scores": torch.randn(len(axes), 8)},
        "axes": {"rows": axes, "scores": axes},
        "limits": {"length": (5, 20)},
    }
    return load_model(spec) if batch is None else load_model(spec, batch=batch)


def test_cases_are_drawn_again_where_ties_leave_them_open() -> None:
    model = load_level()
    references = References(model)
    rows = np.random.default_rng(0).normal(size=(1, 8, 8)).astype(np.float32)
    equal = np.full((1, 8), 0.5, np.float32)
    left = {"rows": rows, "scores": equal}
    found = references.find(left)
    assert found.open
    assert "1 of 1 cases: one of several" in describe_reference([make_case(0, "", left, found)])
    assert not references.find({"rows": rows, "scores": rows[..., 0]}).open
    # One of the kinds that cases take in turn.
    assert references.find(draw_arrays(model, {"length": 12}, 0, FEW)).open
    for case in make_cases(model, BUCKETS):
        assert not references.find(case.inputs).open


def test_cases_that_stay_open_are_those_that_roundings_swap_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Tight(5)
    model = load_queries(module)

    def refused(cases: list[Case]) -> int:
        """The number of cases whose outputs no program may have that rounds scores otherwise."""
        count = 0
        for case in cases:
            got = run_eager(model, case.inputs)
            taken = (
                case.outputs if case.ties is None else take_ties(got, case.outputs, case.ties, FP32)
            )
            count += not all(np.allclose(got[n], taken[n], rtol=0, atol=1e-5) for n in taken)
        return count

    cases = list(make_cases(model, BUCKETS))
    monkeypatch.setattr(cases_module, "_REDRAWN", 0)
    first = list(make_cases(model, BUCKETS))
    kept = [case for case in cases if case.open]
    assert len(kept) > len(cases) // 2
    counts = []
    for seed in range(8):
        torch.manual_seed(seed)
        module.roundings = torch.finfo(torch.float32).eps * torch.randint(-1, 2, (20,))
        assert not refused(cases)
        counts.append(refused(first))
    assert max(counts) > 0
    module.roundings, module.wrong = None, True
    assert refused(kept) == len(kept)


def test_rows_of_a_batch_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_queries(Tight(5), batch=(1, 8))
    buckets = [Bucket("exact", (*bucket.axes, ("batch", AxisRange(1, 8, 4)))) for bucket in BUCKETS]
    cases = list(rows_cases(model, buckets))
    monkeypatch.setattr(cases_module, "_REDRAWN", 0)
    first = list(rows_cases(model, buckets))
    assert [case.redrawn for case in cases] == [True, True]
    for case, one in zip(cases, first, strict=True):
        assert one.apart < case.apart and len(case.inputs["rows"]) == 4


@pytest.mark.parametrize("refused", [False, True])
def test_a_redraw_without_an_answer_of_float64_is_left(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    model = load_level()
    redrawn = [case for case in make_cases(model, BUCKETS) if case.redrawn]
    assert redrawn and f"{len(redrawn)} of 9 cases: drawn again" in describe_reference(
        [*redrawn, *[make_case(0, "", {}, Reference({}, {}))] * (9 - len(redrawn))]
    )
    find, left = References.find, 0

    def spoilt(own: References, inputs: Arrays, *, always: bool = False) -> Reference:
        nonlocal left
        found = find(own, inputs, always=always)
        left = 3 if found.open else left - 1
        if found.open or left < 0:
            return found
        if refused:
            raise ModelError("these inputs are refused")
        return replace(found, problem="float64 took too long", skipped=True)

    monkeypatch.setattr(References, "find", spoilt)
    cases = list(make_cases(model, BUCKETS))
    kept = [case for case in cases if case.open]
    assert [(case.bucket, case.name) for case in kept] == [(c.bucket, c.name) for c in redrawn]
    assert not any(case.skipped or case.redrawn for case in cases)


def test_other_orders_take_no_time_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    model, runs = load_level(), 0
    own = LoadedModel.run

    def run(self: LoadedModel, inputs: Any) -> Any:
        nonlocal runs
        runs += 1
        return own(self, inputs)

    # A clock that goes on with eager's runs alone, a hundred seconds with each.
    monkeypatch.setattr(LoadedModel, "run", run)
    monkeypatch.setattr(reference, "time", SimpleNamespace(monotonic=lambda: 100.0 * runs))
    monkeypatch.setattr(reference, "_GRACE_S", 90.0)
    monkeypatch.setattr(reference, "MOST_TIMES", 0.0)
    references = References(model)
    torch.manual_seed(1)
    rows = torch.randn(1, 8, 8).numpy()
    inputs = {"rows": rows, "scores": SCORES[None].numpy()}
    clear = {"rows": rows, "scores": rows[..., 0]}
    assert not references.find(inputs).open and runs == 2
    # Their own time is spent: what nothing shows is open, and what float64 shows isn't left out.
    found = references.find(inputs)
    assert found.open and found.rounding and not found.skipped and runs == 3
    assert not references.find(clear).open and runs == 4
    assert not references.find(inputs, always=True).open and runs == 6
    assert not references.spent
