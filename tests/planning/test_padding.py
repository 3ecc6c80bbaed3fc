"""Padded buckets are for models whose outputs padding doesn't change: proven, assumed or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import PlanError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.joint import JointDistribution
from edgecompile.planning.length_support import find_length_support
from edgecompile.planning.padding import require_paddable, with_padding
from edgecompile.planning.planning import plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from edgecompile.planning.subject import make_subject
from edgecompile.targets.profile import load_target
from tests.planning.test_planning import FOREIGN, Mean, Tokens, load


def test_a_model_that_padding_changes_cant_have_padded_buckets() -> None:
    axes = [("length", AxisRange(1, 32, 32))]
    assert require_paddable(load(Tokens()), axes) == "proven"
    with pytest.raises(PlanError, match="length 1 padded to 32: outputs change"):
        require_paddable(load(Mean()), axes)
    with pytest.raises(PlanError, match="no pad value is known for ids"):
        require_paddable(load(Tokens(), pad={}, bounds={}), axes)


class Centred(Tokens):
    """Less the mean of the whole batch, padding and all."""

    def forward(self, ids: Tensor) -> Tensor:
        vectors = super().forward(ids)
        return vectors - vectors.sum(0, keepdim=True) / ids.shape[0]


WIDE = {"limits": {"length": (1, 32), "batch": (1, 8)}}


def test_a_second_axis_is_padded_only_where_that_changes_nothing(tmp_path: Path) -> None:
    joint = JointDistribution.from_counts(("length", "batch"), {(3, 1): 5, (9, 4): 2, (30, 8): 1})
    asked = PlanRequest(joint.marginal("length"), joint, max_length=32)
    for module, modes in ((Tokens(), ("exact", "pad")), (Centred(), ("exact",))):
        model = load(module, **WIDE)
        form = find_length_support(ExportStore(model, tmp_path), asked, plan_scope(model, asked))
        assert form.modes == modes
    assert "batch 1 padded to 8: outputs change" in form.note
    padded = replace(asked, mode="pad")
    with pytest.raises(PlanError, match="batch 1 padded to 8: outputs change"):
        plan_model(
            make_subject(ExportStore(model, tmp_path), load_target(FOREIGN), padded, tmp_path)
        )


def test_a_plan_s_own_word_on_padding_is_no_proof() -> None:
    both = (("length", AxisRange(1, 32, 32)), ("batch", AxisRange(1, 8, 8)))
    plan = BucketPlan("length", (Bucket("pad", both),), padding="proven")
    with pytest.raises(PlanError, match="length 1 padded to 32: outputs change"):
        with_padding(plan, load(Mean(), **WIDE))
    # Along the length alone, this one may be padded.
    centred, square = load(Centred(), **WIDE), Bucket("pad", both, ("length", "batch"))
    assert with_padding(replace(plan, padding=""), centred).padding == "proven"
    with pytest.raises(PlanError, match="batch 1 padded to 8: outputs change"):
        with_padding(replace(plan, buckets=(square,)), centred)
    with pytest.raises(PlanError, match="batch 1 padded to 8: outputs change"):
        with_padding(plan, centred, also=("batch",))
    exact = replace(plan, buckets=(Bucket("exact", both),))
    assert with_padding(exact, load(Mean(), **WIDE)).padding == ""
    with pytest.raises(PlanError, match=r"pads length 1 to 32, but .* takes .*length 1..16"):
        with_padding(plan, load(Tokens(), limits={"length": (1, 16)}))


class Choosing(Tokens):
    """Branches on what its inputs hold, where a proof ends."""

    def forward(self, ids: Tensor) -> Tensor:
        vectors = super().forward(ids)
        return vectors if vectors.max() < 1e6 else -vectors


def test_that_padding_is_assumed_is_said_once() -> None:
    plan = BucketPlan("length", (Bucket("pad", (("length", AxisRange(1, 32, 32)),)),))
    made = with_padding(plan, load(Choosing()), assume=True)
    assert made.padding == "assumed" and len(made.notes) == 1
    assert with_padding(made, load(Choosing())) == made
    with pytest.raises(PlanError, match="isn't proven harmless") as error:
        with_padding(plan, load(Choosing()))
    assert "`assume_paddable=True`" in str(error.value.hint)
