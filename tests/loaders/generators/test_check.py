"""check: a step over caches is compared with the model, and neither rounding nor near ties decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from transformers import AttentionInterface

from edgecompile.loaders.generators import attention
from edgecompile.loaders.generators.attention import PLACED
from edgecompile.loaders.generators.check import _compare, _Logits
from edgecompile.loaders.generators.makers import GeneratorMaker
from edgecompile.loaders.generators.step import GenerationStep
from edgecompile.models import double
from edgecompile.models.loaded import ModelSource
from edgecompile.models.options import LoadOptions
from tests.zoo.generation_families import POSITIONS, load_family, make_family

FACTOR = {"factor": torch.tensor(1.0)}
#: Numbers that a sum in float32 loses what it adds to.
LARGE = 2.0**14


def exact(factor: Tensor) -> Mapping[str, Tensor]:
    return {"4": (factor * torch.arange(5.0)) / 3 + 0.1}


def losing(factor: Tensor) -> Mapping[str, Tensor]:
    return {"4": (exact(factor)["4"] + LARGE) - LARGE}


def overflowing(factor: Tensor) -> Mapping[str, Tensor]:
    return {"4": exact(factor)["4"] * 1e30 * 1e30 / 1e30 / 1e30}


def rounding(factor: Tensor) -> Mapping[str, Tensor]:
    return {"4": exact(factor)["4"].bfloat16().float()}


def compare(run: Callable[..., Mapping[str, Tensor]], own: Any, factor: float = 1.0) -> str:
    return _compare(_Logits(run, {"factor": torch.tensor(factor)}), _Logits(own, FACTOR))


@pytest.mark.parametrize("own", [exact, losing])
@pytest.mark.parametrize("run", [exact, losing])
def test_only_what_differs_in_float64_is_a_difference(run: Any, own: Any) -> None:
    assert not compare(run, own)
    wrong = compare(run, own, 1.01)
    assert re.fullmatch(r"logits differ by 0.009\d* of their scale at token 4", wrong)


def test_float64_doesnt_hide_what_float32_does_to_a_step() -> None:
    assert "NaN or infinity where eager hasn't" in compare(overflowing, exact)
    assert not compare(overflowing, overflowing)
    assert "logits differ by 0.00" in compare(rounding, exact)
    assert not compare(rounding, rounding) and not compare(exact, rounding)


def test_a_step_without_room_in_float64_is_compared_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not compare(losing, exact)
    monkeypatch.setattr(double, "main_memory", lambda: 8)
    assert "logits differ by 0.00" in compare(losing, exact)


def test_a_step_runs_once_in_float64_and_keeps_nothing_of_it() -> None:
    class Step(torch.nn.Module):
        runs = 0

        def forward(self, factor: Tensor) -> Mapping[str, Tensor]:
            Step.runs += 1
            self.seen = factor.clone()
            return losing(factor)

    step = Step()
    logits = _Logits(step, FACTOR, step)
    others = [_Logits(exact, {"factor": torch.tensor(other)}) for other in (2.0, 3.0, 1.0)]
    assert [bool(_compare(logits, other)) for other in others] == [True, True, False]
    assert Step.runs == 3  # in float32, with its footprint, and in float64
    assert step.seen.dtype == torch.float32


def doubling(out: Tensor) -> Tensor:
    return out * 2


def too_large(out: Tensor) -> Tensor:
    return out * 1e30 * 1e30 / 1e30 / 1e30


@pytest.mark.parametrize(
    ("change", "text"), [(doubling, "logits differ by"), (too_large, ".* NaN or infinity")]
)
def test_the_notes_say_where_logits_differ_without_masks(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor], text: str
) -> None:
    def attend(*args: Any, **rest: Any) -> Any:
        out, *more = attention._attend_placed(*args, **rest)
        return change(out), *more

    assert not any("by masks" in note for note in load_family("llama").notes)
    monkeypatch.setitem(AttentionInterface._global_mapping, PLACED, attend)
    notes = " ".join(load_family("llama").notes)
    assert re.search(f"LlamaForCausalLM attends by masks, .*: without them {text}", notes)


def test_nearly_equal_scores_of_experts_dont_decide_how_a_model_attends() -> None:
    model, noise = make_family("mixtral"), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("gate.weight"):  # float32 rounds away what its rows differ by
                rows = 1 + 1e-7 * torch.randn(weight.shape, generator=noise)
                weight.copy_(weight[:1] * rows)
    options = LoadOptions(max_context=POSITIONS, task="causal-lm")
    source = ModelSource("object", "mixtral")
    made = GeneratorMaker("causal-lm", model, options, name="tied", source=source).make()
    assert isinstance(made.module, GenerationStep) and made.module.way.attention == PLACED
