"""Planning for a model: what is refused, and where the costs come from."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgecompile.buckets.baselines import BaselineResult, compare_baselines
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.planner import plan_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import PlanError, UsageError
from edgecompile.export.store import ExportStore, export_bucket
from edgecompile.hosts.detection import runnable_variants
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.planning import planning, subject
from edgecompile.planning.planning import Planned, noise_price, plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import make_subject
from edgecompile.precision import FP32, Precision
from edgecompile.targets.profile import load_target
from tests.factories import tiny_models

PROFILES = Path(__file__).resolve().parents[2] / "profiles"


class Tokens(nn.Module):
    """One vector for each token: padding can't reach the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.table(ids)
        return vectors


class Mean(Tokens):
    """Their mean, padding and all."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(1)


def load(module: nn.Module, **changes: object) -> LoadedModel:
    spec = {
        "module": module,
        "inputs": {"ids": torch.ones(1, 6, dtype=torch.int64)},
        "axes": {"ids": {0: "batch", 1: "length"}},
        "limits": {"length": (1, 32)},
        "pad": {"ids": 0},
        "bounds": {"ids": (0, 19)},
    }
    return load_model({**spec, **changes})


def test_a_bucket_without_an_axis_of_the_model_is_refused() -> None:
    bucket = Bucket("exact", (("length", AxisRange(1, 32, 12)),))
    with pytest.raises(PlanError, match="says nothing about the axis batch"):
        export_bucket(load(Tokens()), bucket)


LENGTHS = LengthDistribution.from_samples([2, 3, 5, 5, 8, 13, 13, 13, 21, 30])


def plan_with(
    model: LoadedModel, folder: Path, target: str, precision: Precision = FP32, **wanted: Any
) -> Planned:
    exports = ExportStore(model, folder / "exported")
    request = PlanRequest(LENGTHS, **{"max_length": 32, **wanted})
    return plan_model(make_subject(exports, load_target(target), request, folder), precision)


def test_more_buckets_than_allowed_can_not_be_asked_for() -> None:
    with pytest.raises(UsageError, match="`buckets` is 3, but `max_buckets` is 2"):
        PlanRequest(LENGTHS, buckets=3, max_buckets=2)


def test_what_noise_could_save_is_no_reason_for_a_bucket() -> None:
    def curve(spread: float) -> CostGrid:
        return CostGrid((CostPoint(8, 2.0, None, exact_spread_ms=spread),), "measured")

    assert noise_price(curve(0.0)) == 0.01  # unknown
    assert noise_price(curve(0.48)) == pytest.approx(0.03)
    assert noise_price(curve(2.0)) == 0.05


def test_a_target_that_is_not_this_machine_gets_a_modelled_curve(
    tiny_model: Path, tmp_path: Path
) -> None:
    target = load_target("cpu-x86-64-v4")
    if runnable_variants(target, tmp_path):
        pytest.skip("this machine runs the code of every target")
    planned = plan_with(load_model(str(tiny_model)), tmp_path, "cpu-x86-64-v4")
    curve = planned.plan.cost_model
    assert curve is not None
    assert curve.kind == "modelled"
    assert len(planned.plan.buckets) == 1  # a roofline alone never makes padding win
    assert any("roofline" in note for note in planned.notes)


def test_an_engine_s_profiles_are_bounded_by_its_time_to_build(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model))
    asked = {"mode": "pad", "buckets": 3}
    planned = plan_with(model, tmp_path, "jetson-orin-nano", **asked)
    cost = planned.cost
    assert 0 < cost.bucket_build_s < cost.base_build_s and min(cost.base_size, cost.bucket_size) > 0
    with pytest.raises(PlanError, match="`max_build_time` allows"):
        time = cost.build_s(3) - 0.01
        plan_with(model, tmp_path, "jetson-orin-nano", max_build_time=time, **asked)
    often, seldom = (
        plan_with(model, tmp_path, "jetson-orin-nano", mode="pad", runs=runs)
        for runs in (1e12, 1e3)
    )
    assert len(often.plan.buckets) > len(seldom.plan.buckets) == 1
    assert any("the cores of a module take longer" in note for note in often.notes)


def test_an_engine_s_profiles_are_bounded_by_the_device_s_memory(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model))
    asked = {"mode": "pad", "price_per_bucket": 0.0}
    planned = plan_with(model, tmp_path, "jetson-orin-nano", **asked)
    assert len(planned.plan.buckets) > 2
    cost = planned.cost
    # A module of which three quarters hold two profiles, not three.
    least = cost.base_memory + 2.5 * cost.bucket_memory
    profile = (PROFILES / "jetson-orin-nano.toml").read_text()
    assert "memory_gib = 8.0\n" in profile
    target = tmp_path / "jetson-orin-nano.toml"
    gib = least / 0.75 / 2**30
    target.write_text(profile.replace("memory_gib = 8.0\n", f"memory_gib = {gib}\n"))
    assert len(plan_with(model, tmp_path, str(target), **asked).plan.buckets) == 2
    with pytest.raises(PlanError, match=r"the device's memory allows .*, but 3 buckets need"):
        plan_with(model, tmp_path, str(target), mode="pad", buckets=3)


FOREIGN = "graviton3" if platform.machine() == "x86_64" else "cpu-x86-64-v3"


def test_a_modelled_plan_has_the_modes_that_the_model_and_the_caller_allow(
    tiny_model: Path, tmp_path: Path
) -> None:
    spec = f"{tiny_models.__file__}:running_sum"
    planned = plan_with(load_model(spec), tmp_path / "looping", FOREIGN)
    assert {bucket.mode for bucket in planned.plan.buckets} == {"pad"}
    assert "one_range" not in compare(planned)
    assert any("padded programs, since" in note for note in planned.notes)

    asked = plan_with(load_model(str(tiny_model)), tmp_path / "asked", FOREIGN, mode="pad")
    assert {bucket.mode for bucket in asked.plan.buckets} == {"pad"}


def compare(planned: Planned) -> Mapping[str, BaselineResult]:
    assert planned.plan.cost_model is not None
    return compare_baselines(planned.plan, LENGTHS, planned.plan.cost_model, programs=8)


def test_a_modelled_curve_of_a_long_range_has_few_points(tmp_path: Path) -> None:
    exports = ExportStore(load(Tokens(), limits={"length": (1, 100_000)}), tmp_path / "exported")
    request = PlanRequest(LENGTHS, max_length=90_000, mode="exact")
    curve = plan_model(
        make_subject(exports, load_target(FOREIGN), request, tmp_path)
    ).plan.cost_model
    assert curve is not None
    assert len(curve.points) == 64
    assert (curve.lengths[0], curve.lengths[-1]) == (1, 90_000)


ONE_EXACT = Bucket("exact", (("length", AxisRange(1, 32, 9)), ("batch", AxisRange(1, 1, 1))))


class Measured(Exception):
    """Costs were asked for."""


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for costs ends the plan; as if this machine could run any target."""

    def refuse(*_: object, **__: object) -> None:
        raise Measured

    monkeypatch.setattr(planning, "find_costs", refuse)
    monkeypatch.setattr(subject, "runnable_variants", lambda *_: ["one"])


@pytest.mark.parametrize(
    ("module", "wanted", "buckets"),
    [
        (Tokens, {"quick": True}, [("exact", 1, 32)]),
        (Tokens, {"quick": True, "mode": "pad"}, [("pad", 1, 32)]),
        (Tokens, {"buckets": 1, "mode": "exact"}, [("exact", 1, 32)]),
        (Tokens, {"mode": "exact"}, [("exact", 1, 32)]),
        (Tokens, {"mode": "exact", "runs": 1e6}, [("exact", 1, 32)]),
        (Tokens, {"max_buckets": 1, "mode": "pad"}, [("pad", 1, 32)]),
        # It can't be padded.
        (Mean, {}, [("exact", 1, 32)]),
        (Tokens, {}, None),
        (Tokens, {"buckets": 1}, None),
        (Tokens, {"mode": "pad"}, None),
        (Tokens, {"buckets": 2, "mode": "exact"}, None),
        (Tokens, {"mode": "exact", "max_size": 1 << 30}, None),
        (Tokens, {"mode": "exact", "max_build_time": 1e6}, None),
    ],
)
def test_nothing_is_measured_where_there_is_nothing_to_choose(
    unmeasured: None,
    tmp_path: Path,
    module: type[nn.Module],
    wanted: dict[str, Any],
    buckets: list[tuple[str, int, int]] | None,
) -> None:
    model = load(module())
    if buckets is None:
        with pytest.raises(Measured):
            plan_with(model, tmp_path, "cpu-x86-64", **wanted)
        return
    planned = plan_with(model, tmp_path, "cpu-x86-64", **wanted)
    assert [(b.mode, b.lo, b.hi) for b in planned.plan.buckets] == buckets
    assert planned.plan.cost_model is None and planned.plan.expected_ms is None
    assert any("nothing was measured" in note for note in planned.notes)
    if "quick" not in wanted:
        request = PlanRequest(LENGTHS, max_length=32, **wanted)
        exports = ExportStore(model, tmp_path / "again")
        with pytest.raises(Measured):
            plan_model(
                make_subject(exports, load_target("cpu-x86-64"), request, tmp_path), compare=True
            )


def test_one_length_leaves_nothing_to_choose(unmeasured: None, tmp_path: Path) -> None:
    model = load(Tokens(), limits={"length": (6, 6)})
    exports = ExportStore(model, tmp_path)
    request = PlanRequest(LengthDistribution.from_samples([6]))
    planned = plan_model(make_subject(exports, load_target("cpu-x86-64"), request, tmp_path))
    assert [(b.mode, b.lo, b.hi) for b in planned.plan.buckets] == [("exact", 6, 6)]


def test_a_quick_program_is_padded_where_none_can_be_dynamic(
    unmeasured: None, tmp_path: Path
) -> None:
    exports = ExportStore(load_model(f"{tiny_models.__name__}:unrolled"), tmp_path)
    request = PlanRequest(LengthDistribution.from_samples([3, 9]), max_length=16, quick=True)
    planned = plan_model(make_subject(exports, load_target("cpu-x86-64"), request, tmp_path))
    assert [b.mode for b in planned.plan.buckets] == ["pad"]


def test_a_plan_that_was_given_is_taken_as_it_is(unmeasured: None, tmp_path: Path) -> None:
    model = load(Tokens())
    one = plan_with(model, tmp_path, "cpu-x86-64", quick=True).plan
    assert set(one.made_for) == {"structure", "target", "precision", "backend", "threads"}
    curve = CostGrid((CostPoint(1, 1.0, 1.0), CostPoint(32, 2.0, 2.0)), "measured", {})
    two = plan_buckets(
        LENGTHS,
        curve,
        buckets=2,
        max_sizes={"length": 32},
        modes=("pad",),
        other_axes=one.buckets[0].axes[1:],
    )
    given = BucketPlan.from_json(replace(two, made_for=one.made_for).to_json())
    planned = plan_with(model, tmp_path, "cpu-x86-64", plan=given)
    assert planned.plan == replace(given, padding="proven") and planned.plan.cost_model == curve
    assert planned.scope.traffic == LENGTHS and planned.scope.axes[0][1].hi == 32
    assert set(two.notes) <= set(planned.notes) and two.notes
    assert "nothing was measured for it" in planned.notes[-1]
    # Costs of another precision, backend or number of threads aren't this bundle's.
    for changed, says in (
        ({"precision": Precision("bf16")}, "costs are of precision fp32, so"),
        ({"backend": "torch"}, "costs are of backend cpu, so"),
        ({"backend": "torch", "threads": 1}, "costs are of backend cpu, threads all, so"),
    ):
        other = plan_with(model, tmp_path, "cpu-x86-64", plan=given, **changed)
        assert other.plan.buckets == given.buckets and other.plan.cost_model is None
        assert says in other.notes[-1] and other.plan.made_for != given.made_for
    bare = plan_with(model, tmp_path, "cpu-x86-64", plan=one, threads=1)
    assert "costs" not in bare.notes[-1] and bare.plan.made_for["threads"] == "1"
    by_hand = BucketPlan("length", one.buckets)
    assert plan_with(model, tmp_path, "cpu-x86-64", plan=by_hand).plan == by_hand


@pytest.mark.parametrize(
    ("changed", "wanted", "says"),
    [
        (
            {"made_for": {"target": "cpu-any"}},
            {},
            "made for the target cpu-any, not for cpu-x86-64",
        ),
        ({"made_for": {"structure": "12"}}, {}, "made for the structure 12, not for"),
        ({}, {"max_length": 31}, "`max_length` is 31, it serves up to 32"),
        (
            {"buckets": (("length", AxisRange(4, 32, 9)), ("batch", AxisRange(1, 1, 1)))},
            {},
            "20.0 % of the lengths are under 4",
        ),
        (
            {"buckets": (("length", AxisRange(1, 20, 9)), ("batch", AxisRange(1, 1, 1)))},
            {"max_length": None},
            "20.0 % of the lengths are over 20",
        ),
        (
            {"buckets": (("length", AxisRange(1, 40, 9)), ("batch", AxisRange(1, 1, 1)))},
            {"max_length": None},
            "length is 1 to 40 in it, 1 to 32 here",
        ),
        (
            {"buckets": (("length", AxisRange(1, 32, 9)), ("batch", AxisRange(1, 4, 1)))},
            {},
            "batch is 1 to 4 in it, 1 to 1 here",
        ),
        ({"buckets": (("length", AxisRange(1, 32, 9)),)}, {}, "it has the axes length, the model"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, Any], wanted: dict[str, Any], says: str
) -> None:
    if "buckets" in changed:
        changed = {"buckets": (Bucket("exact", changed["buckets"]),)}
    given = replace(BucketPlan("length", (ONE_EXACT,)), **changed)
    request = PlanRequest(LENGTHS, **{"max_length": 32, **wanted}, plan=given)
    exports = ExportStore(load(Tokens()), tmp_path)
    with pytest.raises(PlanError, match="the plan doesn't fit") as caught:
        plan_model(make_subject(exports, load_target("cpu-x86-64"), request, tmp_path))
    assert says in caught.value.message and "edgecompile plan" in (caught.value.hint or "")


def test_a_plan_serves_all_sizes_of_the_sample(tmp_path: Path) -> None:
    model = load(
        Tokens(),
        inputs={"ids": torch.ones(2, 6, dtype=torch.int64)},
        limits={"length": (1, 32), "batch": (2, 8)},
    )
    bucket = Bucket("exact", (("length", AxisRange(1, 32, 9)), ("batch", AxisRange(2, 8, 2))))
    joint = JointDistribution.from_counts(("length", "batch"), {(5, 1): 1, (9, 9): 2})
    with pytest.raises(PlanError, match="batch is 2 to 8 in it, 1 to 9 in the sample"):
        plan_with(model, tmp_path, "cpu-x86-64", joint=joint, plan=BucketPlan("length", (bucket,)))
    joint = JointDistribution.from_counts(("length", "batch"), {(5, 1): 1, (9, 8): 2})
    with pytest.raises(PlanError, match="batch is 2 to 8 in it, 1 to 8 in the sample"):
        plan_with(model, tmp_path, "cpu-x86-64", joint=joint, plan=BucketPlan("length", (bucket,)))


def test_a_padded_plan_needs_a_model_that_bears_it(tmp_path: Path) -> None:
    given = BucketPlan("length", (replace(ONE_EXACT, mode="pad"),))
    with pytest.raises(PlanError, match="can't run in padded buckets"):
        plan_with(load(Mean()), tmp_path, "cpu-x86-64", plan=given)


class OddOrEven(Mean):
    """Another mean at odd lengths."""

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.table(ids)
        return vectors.amax(1) if ids.shape[1] % 2 else vectors.mean(1)


def test_no_costs_decide_where_the_code_looks_at_remainders(tmp_path: Path) -> None:
    model = load(OddOrEven())
    planned = plan_with(model, tmp_path, "jetson-orin-nano")
    assert [bucket.axes[0][1] for bucket in planned.plan.buckets] == [
        AxisRange(1, 31, 13, 2),
        AxisRange(2, 32, 8, 2),
    ]
    assert planned.plan.cost_model is None
    assert any("one exact program for each remainder of the length" in n for n in planned.notes)
    again = BucketPlan.from_json(planned.plan.to_json())
    given = plan_with(model, tmp_path, "jetson-orin-nano", plan=again)
    assert given.plan.buckets == planned.plan.buckets == given.scope.exact_buckets
    with pytest.raises(PlanError, match=r"`runs`, `buckets` 3: .* needs 2 buckets, whatever"):
        plan_with(model, tmp_path, "jetson-orin-nano", runs=100, buckets=3)
