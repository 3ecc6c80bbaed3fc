"""Which sizes of its axes a plan is for: the model's limits, the request's and the sample's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import LengthsError, PlanError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.files import read_sizes
from edgecompile.lengths.joint import JointDistribution
from edgecompile.loaders.load import load_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope, with_traffic


class Pair(nn.Module):
    def forward(self, query: Tensor, passage: Tensor) -> Tensor:
        return query @ passage.transpose(1, 2)


def test_an_axis_that_no_length_counts_needs_a_limit() -> None:
    spec: dict[str, Any] = {
        "module": Pair(),
        "inputs": {"query": torch.ones(1, 5, 4), "passage": torch.ones(1, 9, 4)},
        "axes": {"query": {0: "batch", 1: "query_length"}, "passage": {0: "batch", 1: "length"}},
    }
    request = PlanRequest(LengthDistribution.from_samples([3, 9]))
    with pytest.raises(PlanError, match="has no upper limit for query_length") as caught:
        plan_scope(load_model(spec), request)
    assert '"limits": {"query_length": (1, 512)}' in str(caught.value.hint)
    limited = plan_scope(load_model({**spec, "limits": {"query_length": (1, 7)}}), request)
    assert dict(limited.axes)["query_length"] == AxisRange(1, 7, 2)
    # A sample of both says how large it gets.
    joint = JointDistribution(("length", "query_length"), ((3, 2), (9, 5)), (1, 1))
    both = plan_scope(load_model(spec), replace(request, joint=joint))
    assert dict(both.axes)["query_length"].hi == 5
    # Pairs without names are (batch, length), which may not be what was meant.
    unnamed = replace(request, joint=JointDistribution(("length", "batch"), ((3, 2),), (1,)))
    with pytest.raises(LengthsError, match="batch in the sample is 2 to 2") as wrong:
        plan_scope(load_model({**spec, "limits": {"query_length": (1, 7)}}), unnamed)
    assert 'give {"axes": ["length", "query_length"], "sizes": [' in str(wrong.value.hint)


def test_the_axis_that_is_planned_first_may_be_second_in_the_sample() -> None:
    spec = {
        "module": nn.ReLU(),
        "inputs": {"input": torch.ones(1, 3, 5, 9)},
        "axes": {"input": {2: "height", 3: "width"}},
        "limits": {"height": (1, 60), "width": (1, 80)},
        "length_axis": "width",
    }
    joint = JointDistribution(("height", "width"), ((3, 20), (9, 70)), (1, 4))
    model = load_model(spec)
    request = with_traffic(PlanRequest(joint.marginal("height"), joint=joint), model)
    scope = plan_scope(model, request)
    assert scope.joint is not None and scope.joint.axes == ("width", "height")
    assert dict(scope.axes) == {"width": AxisRange(1, 80, 70), "height": AxisRange(1, 60, 9)}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("length,frames,count\n12,300,2\n", "frames"),
        ('{"length": 12, "frames": 300}\n', "frames"),
        ("length,batch,frames\n12,4,300\n", "batch"),
    ],
)
def test_a_column_of_an_axis_is_counted_or_refused(tmp_path: Path, text: str, name: str) -> None:
    spec: dict[str, Any] = {
        "module": nn.ReLU(),
        "inputs": {"input": torch.ones(2, 5, 9)},
        "axes": {"input": {0: "batch", 1: "length", 2: "frames"}},
        "limits": {"batch": (1, 4), "length": (1, 60), "frames": (1, 400)},
    }
    file = tmp_path / "log"
    file.write_text(text)
    lengths = read_sizes(file)
    assert isinstance(lengths, LengthDistribution)
    with pytest.raises(LengthsError, match=f"the column '{name}' isn't counted") as refused:
        with_traffic(PlanRequest(lengths), load_model(spec))
    assert '{"axes": ["length", "' in str(refused.value.hint)
    # Where the axis has one size, or isn't the model's, the column says nothing of use.
    for limits in ({"batch": (2, 2), "length": (1, 60), "frames": (9, 9)}, {"length": (1, 60)}):
        axes = {0: "batch", 1: "length", 2: "frames"} if len(limits) > 1 else {1: "length"}
        model = load_model({**spec, "axes": {"input": axes}, "limits": limits})
        assert with_traffic(PlanRequest(lengths), model).lengths == lengths
    file.write_text('{"axes": ["length", "frames"], "sizes": [[12, 300]], "counts": [2]}')
    joint = read_sizes(file)
    assert isinstance(joint, JointDistribution)
    model = load_model(spec)
    request = with_traffic(PlanRequest(joint.marginal("length"), joint=joint), model)
    assert plan_scope(model, request).second == "frames"


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (("height", "width"), '"width,height"'),
        (("length", "frames"), '{"axes": ["length", "frames"]'),
        (("length", "batch"), None),
    ],
)
def test_a_second_column_without_a_name_may_be_an_axis(
    tmp_path: Path, axes: tuple[str, str], said: str | None
) -> None:
    model = load_model(
        {
            "module": nn.ReLU(),
            "inputs": {"input": torch.ones(2, 5, 9)},
            "axes": {"input": {1: axes[0], 2: axes[1]}},
            "limits": {name: (1, 60) for name in axes},
            "length_axis": axes[0],
        }
    )
    for text in ("12,30\n30,12\n", "12\n30\n", "length,count\n12,30\n"):
        file = tmp_path / "log"
        file.write_text(text)
        lengths = read_sizes(file)
        assert isinstance(lengths, LengthDistribution)
        if said is None or not text.startswith("12,"):
            assert with_traffic(PlanRequest(lengths), model).lengths == lengths
            continue
        with pytest.raises(LengthsError, match=f"may be a count or the {axes[1]}") as refused:
            with_traffic(PlanRequest(lengths), model)
        assert said in str(refused.value.hint) and '"length,count"' in str(refused.value.hint)


def test_length_stands_for_the_length_axis_whatever_its_name() -> None:
    x = torch.ones(2, 5, 4)
    model = load_model(
        {"module": nn.ReLU(), "inputs": {"input": x}, "axes": {"input": {0: "batch", 1: "frames"}}}
    )
    request = PlanRequest(
        LengthDistribution.from_samples([3, 9]),
        joint=JointDistribution(("length", "batch"), ((3, 1), (9, 1)), (1, 1)),
    )
    scope = plan_scope(model, with_traffic(request, model))
    assert scope.joint is not None and scope.joint.axes == ("frames", "batch")
