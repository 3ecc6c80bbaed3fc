"""The mode in which a model is served: found by exporting and running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgecompile.export.store
from edgecompile.errors import ExportError, PlanError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from edgecompile.planning.serving_modes import ServingMode, find_serving_mode
from tests.factories import tiny_models

TINY = Path(tiny_models.__file__)


def store(name: str, folder: Path) -> ExportStore:
    return ExportStore(load_model(f"{TINY}:{name}"), folder)


def serve(exports: ExportStore, lengths: list[int], **request: Any) -> ServingMode:
    asked = PlanRequest(LengthDistribution.from_samples(lengths), **request)
    return find_serving_mode(exports, asked, plan_scope(exports.model, asked))


def test_a_model_that_takes_any_length_is_served_in_both_modes(tmp_path: Path) -> None:
    found = serve(store("masked_mlp", tmp_path), [5, 9, 30], max_length=32)
    assert (found.modes, found.note) == (("exact", "pad"), "")
    assert (found.bucket.mode, found.bucket.lo, found.bucket.hi) == ("exact", 1, 32)


def test_the_part_that_is_right_is_served_if_all_traffic_lies_in_it(tmp_path: Path) -> None:
    exports = store("branching", tmp_path)
    found = serve(exports, [3, 7, 19])
    assert found.modes[0] == "exact"
    assert (found.scope.axes[0][1].lo, found.scope.axes[0][1].hi) == (2, 20)
    assert found.note.startswith("length 2..20 is served, where all of the traffic lies: ")
    assert "length <= 20" in found.note
    # More was asked for, by the traffic or by name, and padding would change this model.
    for lengths, request in (([3, 7, 25], {}), ([1, 7], {}), ([3, 7], {"max_length": 40})):
        with pytest.raises(PlanError, match="length <= 20") as failure:
            serve(exports, lengths, **request)
        assert "it can be exported for length 2..20: cut the lengths" in (failure.value.hint or "")


def test_a_model_of_one_length_is_padded_if_that_changes_nothing(tmp_path: Path) -> None:
    found = serve(store("unrolled", tmp_path), [4, 9, 20], max_length=24)
    assert found.modes == ("pad",) and found.bucket.hi == 24
    assert "fixes length to" in found.note


def test_a_recurrence_of_both_ways_is_refused_in_words(tmp_path: Path) -> None:
    exports = store("unrolled_backwards", tmp_path)
    with pytest.raises(PlanError) as failure:
        serve(exports, [4, 9, 20], max_length=24)
    assert "fixes length to" in failure.value.message
    assert "can't run in padded buckets: length" in failure.value.message
    assert "3 different lengths (4, 9, 20): a bundle for each alone" in (failure.value.hint or "")


def test_one_length_alone_is_served_as_it_is(tmp_path: Path) -> None:
    exports = store("unrolled_backwards", tmp_path)
    found = serve(exports, [9, 9, 9])
    assert (found.modes, found.bucket.lo, found.bucket.hi) == (("exact",), 9, 9)
    assert found.note.startswith("length 9 alone is served, which all of the traffic has")
    with pytest.raises(PlanError, match="can't run in padded buckets"):
        serve(exports, [9, 9, 9], max_length=12)


def test_a_refused_export_isnt_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise ExportError("no", served={"length": (5, 5)})

    monkeypatch.setattr(edgecompile.export.store, "export_bucket", refuse)
    exports = store("unmasked_mean", tmp_path)
    for _ in range(2):
        with pytest.raises(PlanError, match=r"no; and .* can't run in padded buckets"):
            serve(exports, [4, 9], max_length=24)
    assert len(tried) == 1


def test_exact_is_refused_where_only_padding_serves(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="fixes length to"):
        serve(store("unrolled", tmp_path), [4, 9], mode="exact", max_length=16)


def test_lengths_at_which_the_model_itself_fails_arent_served(tmp_path: Path) -> None:
    class Third(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1) * x.index_select(1, torch.tensor([2])).squeeze(1)

    spec = {
        "module": Third(),
        "inputs": {"x": torch.randn(1, 9, 4)},
        "axes": {"x": {1: "length"}},
        "limits": {"length": (1, 24)},
    }
    exports = ExportStore(load_model(spec), tmp_path)
    found = serve(exports, [3, 5, 8])
    assert (found.bucket.lo, found.bucket.hi) == (3, 24)
    assert "fails on x [1, 1, 4]" in found.note
    with pytest.raises(PlanError, match=r"fails on x \[1, 1, 4\]"):
        serve(exports, [2, 5, 8])
