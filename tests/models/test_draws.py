"""Drawn inputs have what real ones have."""

from __future__ import annotations

import pytest
import torch

from edgecompile.models.examples import make_example
from edgecompile.models.kinds import (
    ASCENDING,
    CONSTANT,
    FAR,
    FEW,
    MOSTLY_PADDING,
    PADDING,
    PADS,
    RUNS,
    STEADY,
    TURNS,
    turn,
)
from edgecompile.models.specs import InputSpec

AXES = ("batch", "length")
SPECS = (
    InputSpec("ids", "int64", AXES, pad=1, bounds=(0, 250_001)),
    InputSpec("mask", "int64", AXES, pad=0, bounds=(0, 1), draw=(1, 1)),
    InputSpec("wave", "float32", AXES, pad=0.0),
    InputSpec("bounded", "float32", AXES, bounds=(-1.0, 3.0)),
    InputSpec("rate", "float64", ("batch",)),
)


def draw(kind: str, seed: int = 3) -> dict[str, torch.Tensor]:
    return make_example(
        SPECS, {"batch": 2, "length": 60}, seed=seed, length_axis="length", kind=kind
    )


def test_kinds() -> None:
    plain = draw("")
    assert len(plain["ids"][0].unique()) > 50  # verification never saw a repeat
    few, runs = draw(FEW), draw(RUNS)
    for made in (few, runs):
        assert len(made["ids"][0].unique()) <= 20
        assert len(made["wave"][0].unique()) <= 20
    assert (runs["ids"].diff(dim=1) == 0).sum() > 60
    assert (few["ids"].diff(dim=1) == 0).sum() < 30
    assert (draw(ASCENDING)["ids"].diff(dim=1) >= 0).all()
    assert (draw(CONSTANT)["wave"].diff(dim=1) == 0).all()
    steady = draw(STEADY)
    assert (steady["ids"].diff(dim=1) == 0).all()
    assert 0 < steady["wave"][0].std() < 0.1
    far = draw(FAR)
    assert far["ids"].min() > 200_000
    assert far["wave"].mean() > 5 > far["wave"].std() > 0
    assert far["bounded"].min() >= 2.5
    assert ((draw(MOSTLY_PADDING)["ids"] == 1).float().mean() - 0.9).abs() < 0.03
    assert (draw(PADDING)["ids"] == 1).all()
    assert (draw(PADDING)["wave"] == 0).all()


@pytest.mark.parametrize("kind", sorted(set(TURNS)))
def test_every_kind_is_legal(kind: str) -> None:
    made, again = draw(kind), draw(kind)
    for spec in SPECS:
        value = made[spec.name]
        assert torch.equal(value, again[spec.name])
        assert value.dtype == getattr(torch, spec.dtype)
        assert value.is_contiguous()
        if spec.bounds:
            assert spec.bounds[0] <= value.min()
            assert value.max() <= spec.bounds[1]
    assert made["mask"].all()


def test_turns_meet_all_kinds_and_leave_out_padding_where_a_bucket_pads() -> None:
    assert {turn(i) for i in range(0, 18, 2)} == set(TURNS)
    assert not {turn(i, padded=True) for i in range(18)} & set(PADS)
