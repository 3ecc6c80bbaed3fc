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
from edgecompile.planning.length_support import LengthSupport, find_length_support
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from tests.factories import tiny_models

TINY = Path(tiny_models.__file__)
#: More lengths than a build makes programs for, one for each.
MANY = 40


def store(name: str, folder: Path) -> ExportStore:
    return ExportStore(load_model(f"{TINY}:{name}"), folder)


def serve(exports: ExportStore, lengths: list[int], **request: Any) -> LengthSupport:
    asked = PlanRequest(LengthDistribution.from_samples(lengths), **request)
    return find_length_support(exports, asked, plan_scope(exports.model, asked))


def test_a_model_that_takes_any_length_is_served_in_both_modes(tmp_path: Path) -> None:
    found = serve(store("masked_mlp", tmp_path), [5, 9, 30], max_length=32)
    assert (found.modes, found.note) == (("exact", "pad"), "")
    assert (found.bucket.mode, found.bucket.lo, found.bucket.hi) == ("exact", 1, 32)


def test_each_side_of_a_condition_has_a_program(tmp_path: Path) -> None:
    exports = store("branching", tmp_path)
    # Wherever the traffic lies, and whatever is asked for.
    for lengths, request in (([3, 7, 19], {}), ([20, 21], {"max_length": 40}), ([1, 60], {})):
        found = serve(exports, lengths, **request)
        hi = request.get("max_length", 64)
        assert [(b.mode, b.lo, b.hi) for b in found.buckets] == [
            ("exact", 1, 20),
            ("exact", 21, hi),
        ]
        assert found.scope.cuts == (21,)
        assert found.note.startswith(f"length 1..20 and 21..{hi} have programs of their own: ")
        assert "length <= 20" in found.note or "21 <= length" in found.note
    with pytest.raises(PlanError, match="its code needs") as failure:
        serve(exports, [3, 7, 25], buckets=1)
    assert "2 buckets would serve it, for length 1..20 and 21..64" in (failure.value.hint or "")


def test_a_model_of_one_length_is_padded_if_that_changes_nothing(tmp_path: Path) -> None:
    found = serve(store("unrolled", tmp_path), [4, 9, 20], max_length=24)
    assert found.modes == ("pad",) and found.bucket.hi == 24
    assert "fixes length to" in found.note


def test_a_recurrence_of_both_ways_is_refused_in_words(tmp_path: Path) -> None:
    exports = store("unrolled_backwards", tmp_path)
    with pytest.raises(PlanError) as failure:
        serve(exports, [4, 9, 20], max_length=MANY)
    assert "fixes length to" in failure.value.message
    assert "can't run in padded buckets: length" in failure.value.message
    assert "3 different lengths (4, 9, 20): a bundle for each alone" in (failure.value.hint or "")


def test_one_length_alone_is_served_as_it_is(tmp_path: Path) -> None:
    exports = store("unrolled_backwards", tmp_path)
    found = serve(exports, [9, 9, 9])
    assert (found.modes, found.bucket.lo, found.bucket.hi) == (("exact",), 9, 9)
    assert found.note.startswith("length 9 alone is served, which all of the traffic has")
    with pytest.raises(PlanError, match="can't run in padded buckets"):
        serve(exports, [9, 9, 9], max_length=MANY)


def test_a_refused_export_isnt_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, counts = [], []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise ExportError("no", served={"length": (5, 5)})

    monkeypatch.setattr(edgecompile.export.store, "export_bucket", refuse)
    exports = store("unmasked_mean", tmp_path)
    for _ in range(2):
        with pytest.raises(PlanError, match=r"no; and .* can't run in padded buckets"):
            serve(exports, [4, 9], max_length=MANY)
        counts.append(len(tried))
    assert counts[0] == counts[1] > 0


def test_exact_is_refused_where_only_padding_serves(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="fixes length to"):
        serve(store("unrolled", tmp_path), [4, 9], mode="exact", max_length=MANY)


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


def test_the_hint_says_that_padding_can_be_assumed_where_only_a_proof_is_missing(
    tmp_path: Path,
) -> None:
    class Decoder(nn.Module):
        """A decoder's path, which padding leaves as it is, by an operator without a rule."""

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            place = x[:, 0].argmax(1)
            rows = torch.arange(x.shape[0])
            for t in reversed(range(1, x.shape[1])):
                to = x[:, t].argsort(1)
                to = torch.where(mask[:, t, None] != 0, to, torch.arange(x.shape[2]))
                place = to[rows, place]
            return place

    spec = {
        "module": Decoder(),
        "inputs": {"x": torch.randn(2, 9, 4), "mask": torch.ones(2, 9, dtype=torch.int64)},
        "axes": {"x": {1: "length"}, "mask": {1: "length"}},
        "limits": {"length": (2, MANY)},
        "pad": {"x": 0.0, "mask": 0},
    }
    exports = ExportStore(load_model(spec), tmp_path)
    with pytest.raises(PlanError, match="isn't proven harmless: the operator index") as failure:
        serve(exports, [3, 5, 8])
    assert (failure.value.hint or "").startswith("`assume_paddable=True` pads all the same")
    assert serve(exports, [3, 5, 8], assume_paddable=True).modes == ("pad",)
