"""origin: a build that fails names the layer where its program begins to differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edgecompile.backends.operators import ops
from edgecompile.errors import VerificationError
from edgecompile.models.loaded import LoadedModel
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from tests.pipeline.test_pipeline import LENGTHS, SMALL


def failure(folder: Path, model: str = SMALL) -> str:
    plan = PlanRequest(lengths=LENGTHS, max_length=32, quick=True)
    request = BuildRequest(
        model=model, plan=plan, target="cpu-x86-64-v3", output=folder / "made.ecb"
    )
    with pytest.raises(VerificationError) as caught:
        build(request)
    return caught.value.message


def test_the_layer_with_wrong_weights_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ops.pack_weight

    def wrong(weight: torch.Tensor, *args: Any) -> torch.Tensor:
        return honest(weight * 1.01 if weight.shape == (4, 16) else weight, *args)

    monkeypatch.setattr(ops, "pack_weight", wrong)
    message = failure(tmp_path)
    assert "the difference begins in net.2 (Linear): it differs by" in message
    assert "net.1 (GELU) before it is right" in message


def test_what_no_layer_shows_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LoadedModel.run

    def lying(self: LoadedModel, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        results = honest(self, inputs)
        return {name: v if name.startswith("layer") else v + 0.01 for name, v in results.items()}

    from edgecompile.pipeline import packing

    original = packing.make_cases

    def wrong_cases(*args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(LoadedModel, "run", lying)
            return list(original(*args, **kwargs))

    monkeypatch.setattr(packing, "make_cases", wrong_cases)
    message = failure(tmp_path)
    assert "with the results of 5 layers given out, none of them differs" in message
