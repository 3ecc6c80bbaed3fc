"""What near ties could change in a model's outputs, and how answers with them are judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from edgecompile.export.operators.boxes import ROI_ALIGN, SUPPRESS
from edgecompile.models.choices import Choices
from edgecompile.models.definite import definite
from edgecompile.runtime.format.golden.ties import Ties, take_ties
from edgecompile.runtime.format.manifest.schema import Tolerance
from tests.factories.detector import OPS

FP32 = Tolerance(1e-6, 2e-5)
Arrays = dict[str, npt.NDArray[Any]]

#: 1 and 3, and 5 and 6, are nearly equal.
SCORES = torch.tensor([[0.1, 0.8, 0.5, 0.8 - 2e-6, 0.3, 0.2, 0.2 - 1e-6]])
BOXES = torch.arange(28.0).reshape(1, 7, 4)


def record(outputs: Any) -> tuple[Arrays, Ties | None]:
    with torch.no_grad(), definite(), Choices() as choices:
        made: Mapping[str, Tensor] = outputs()
    return {name: t.numpy() for name, t in made.items()}, choices.find_ties(made, FP32.rtol)


def agrees(got: Arrays, want: Arrays, ties: Ties | None) -> bool:
    assert ties is not None
    taken = take_ties(got, want, ties, FP32)
    return all(np.array_equal(got[name], taken[name], equal_nan=True) for name in want)


def detections() -> Mapping[str, Tensor]:
    """As a detector ends: the best places, and what is read and computed at them."""
    top, places = SCORES.topk(3)
    boxes = BOXES.gather(1, places.unsqueeze(-1).expand(-1, -1, 4))
    labels = (places % 4).to(torch.int32)
    rows = torch.cat([boxes * 2 + 1, top.unsqueeze(-1), labels.unsqueeze(-1).float()], -1)
    return {"places": places, "labels": labels, "rows": rows, "boxes": boxes}


def swapped(outputs: Arrays) -> Arrays:
    return {name: array[:, [1, 0, 2]] for name, array in outputs.items()}


def test_nearly_equal_values_may_change_places_and_all_that_follows_with_them() -> None:
    want, ties = record(detections)
    assert want["places"].tolist() == [[1, 3, 2]]
    assert agrees(want, want, ties)
    assert agrees(swapped(want), want, ties) is False  # the scores themselves stay as they are
    got = swapped(want)
    got["rows"][..., 4] = want["rows"][..., 4]
    assert agrees(got, want, ties)


def test_all_else_is_still_wrong() -> None:
    want, ties = record(detections)

    def change(**others: Any) -> Arrays:
        return {**want, **{name: np.asarray(x, want[name].dtype) for name, x in others.items()}}

    # Each output alone, without what follows from the same places.
    for name in ("places", "labels", "boxes"):
        assert not agrees(change(**{name: want[name][:, [1, 0, 2]]}), want, ties)
    alone, ties_alone = record(lambda: {"places": SCORES.topk(3).indices})
    assert agrees({"places": np.array([[3, 1, 2]])}, alone, ties_alone)
    for places in ([1, 1, 2], [3, 3, 2], [2, 1, 3], [1, 2, 3], [1, 3, 4], [3, 1, 0], [-4, 1, 2]):
        assert not agrees({"places": np.array([places])}, alone, ties_alone)
    # Rows that are read, without their places: none may come twice.
    boxes, ties_boxes = record(lambda: {"boxes": BOXES[0][SCORES.topk(3).indices]})
    rows = BOXES[0].numpy()
    assert agrees({"boxes": rows[[[3, 1, 2]]]}, boxes, ties_boxes)
    for places in ([1, 1, 2], [3, 3, 2], [2, 3, 1], [3, 1, 4]):
        assert not agrees({"boxes": rows[[places]]}, boxes, ties_boxes)
    mixed = rows[[[3, 1, 2]]]
    mixed[0, 0, 0] = rows[1, 0]
    assert not agrees({"boxes": mixed}, boxes, ties_boxes)


def test_a_tie_across_the_last_place_that_is_chosen() -> None:
    want, ties = record(lambda: {"places": SCORES.topk(1).indices, "sum": SCORES.sum()})
    assert agrees({**want, "places": np.array([[3]])}, want, ties)
    assert not agrees({**want, "places": np.array([[2]])}, want, ties)


def test_kinds_of_choices() -> None:
    x = torch.tensor([[3.0, 1.0, 1.0 + 1e-6, 2.0], [0.0, 0.0, 0.0, 0.0]])
    steps = torch.tensor([0.5, 0.5 + 1e-6, 0.25])
    table = torch.arange(12.0).reshape(4, 3)
    kinds: dict[str, tuple[Any, Any, Any]] = {
        "sort": (lambda: x.sort(1).indices, [[2, 1, 3, 0], [3, 2, 0, 1]], [[1, 1, 3, 0], [0, 1, 2, 3]]),
        "argsort": (lambda: x.argsort(0), [[1, 1, 1, 1], [0, 0, 0, 0]], None),
        "argmin": (lambda: x.argmin(1), [2, 3], [3, 0]),
        "min": (lambda: x.min(1, keepdim=True).indices, [[2], [1]], [[0], [0]]),
        "argmax of all": (lambda: steps.argmax(), 0, 2),
        "rows": (lambda: table[x.argmin(1)].flip(1), table[[2, 3]].flip(1), table[[2, 3]]),
        "a mask": (
            lambda: torch.tensor([1.0, -1e9, 2.0, 2.0 + 1e-5]).argsort(), [1, 0, 3, 2], [0, 1, 2, 3],
        ),
        "whole numbers": (lambda: torch.tensor([7, 10**6, 10**6]).topk(2).indices, [2, 1], [1, 0]),
        "transposed": (
            lambda: x.t().sort(0).indices.t().reshape(-1), [2, 1, 3, 0, 0, 2, 1, 3], [2, 1, 0, 3, 0, 1, 2, 3],
        ),
    }  # fmt: skip
    for name, (run, right, wrong) in kinds.items():
        want, ties = record(lambda run=run: {"y": run()})
        dtype = want["y"].dtype
        if name == "argsort":
            assert ties is None  # nothing there is nearly equal
            continue
        assert agrees({"y": np.asarray(right, dtype)}, want, ties), name
        assert not agrees({"y": np.asarray(wrong, dtype)}, want, ties), name


def test_nothing_is_recorded_where_places_do_not_decide_single_elements() -> None:
    weights = torch.randn(4, 4)
    for run in (
        lambda: BOXES[0][SCORES.topk(3).indices] @ weights,
        lambda: torch.zeros(7).scatter(0, SCORES[0].argmax()[None], 1.0),
        lambda: (places := SCORES.topk(2).indices)[:, :1] + places,
        lambda: SCORES.topk(2).indices.clone().fill_(0),
        lambda: SCORES[:, ::2].argsort(),
    ):
        assert record(lambda run=run: {"y": run()})[1] is None


@pytest.mark.parametrize("of_torchvision", [True, False])
def test_a_suppression_keeps_boxes_of_nearly_equal_scores_in_either_order(
    of_torchvision: bool,
) -> None:
    features = torch.arange(2.0 * 20 * 20).reshape(1, 2, 20, 20)
    places = torch.tensor([0.0, 8.0, 1.0, 8.0, 30.0, 50.0, 50.5])
    boxes = torch.stack([places, places, places + 9, places + 9], 1)
    boxes[3, [1, 3]] += 40  # apart from box 1, with which it ties

    def detect() -> Mapping[str, Tensor]:
        if of_torchvision:
            kept = OPS.nms(boxes, SCORES[0], 0.5)
        else:
            kept = SUPPRESS(boxes, SCORES[0], None, 0.5)
        regions = torch.cat([torch.zeros(len(kept), 1), boxes[kept]], 1)
        align = OPS.roi_align if of_torchvision else ROI_ALIGN
        return {
            "kept": kept,
            "boxes": boxes[kept],
            "rows": align(features, regions, 0.5, 2, 2, 2, True),
        }

    want, ties = record(detect)
    assert want["kept"].tolist() == [1, 3, 2, 4, 5]  # 2 hides 0, and 5 hides 6
    order = [1, 0, 2, 3, 4]
    assert agrees({name: array[order] for name, array in want.items()}, want, ties)
    assert not agrees({**want, "rows": want["rows"][order]}, want, ties)
    assert not agrees({name: array[[0, 2, 1, 3, 4]] for name, array in want.items()}, want, ties)
    # Either of two boxes that hide each other.
    assert agrees(
        {**want, "kept": np.array([1, 3, 2, 4, 6])}, *record(lambda: {"kept": detect()["kept"]})
    )
