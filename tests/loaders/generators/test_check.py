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
from edgecompile.loaders.generators.check import _Answers
from edgecompile.loaders.generators.makers import GeneratorMaker
from edgecompile.loaders.generators.step import GenerationStep
from edgecompile.models.loaded import ModelSource
from edgecompile.models.options import LoadOptions
from tests.zoo.generation_families import POSITIONS, load_family, make_family

TOKENS = torch.arange(6)[None]


def exact(tokens: Tensor) -> Tensor:
    return (tokens[0, :, None].float() + torch.arange(5.0)) / 3 + 0.1


def losing(tokens: Tensor) -> Tensor:
    return (exact(tokens) + 1e4) - 1e4


def scaled(factor: Tensor) -> Mapping[str, Tensor]:
    logits = exact(TOKENS) * factor
    return {str(at): logits[at] for at in (1, 4, 5)}


@pytest.mark.parametrize("logits_of", [exact, losing])
def test_only_what_differs_in_float64_is_a_difference(logits_of: Callable[..., Tensor]) -> None:
    answers = _Answers(logits_of, TOKENS)
    assert not answers.problem(scaled, {"factor": torch.tensor(1.0)})
    wrong = answers.problem(scaled, {"factor": torch.tensor(1.0003)})
    assert "logits differ by 0.0003 of their scale at token 1" in wrong


def test_the_notes_say_where_logits_differ_without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(*args: Any, **rest: Any) -> Any:
        rest["scaling"] *= 2
        return attention._attend_placed(*args, **rest)

    assert not any("by masks" in note for note in load_family("llama").notes)
    monkeypatch.setitem(AttentionInterface._global_mapping, PLACED, attend)
    notes = " ".join(load_family("llama").notes)
    assert re.search("LlamaForCausalLM attends by masks, .*: without them logits differ by", notes)


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
