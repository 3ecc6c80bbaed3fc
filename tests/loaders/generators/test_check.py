"""check: a step over caches is compared with the model, and eager's own error counts."""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompile.export.checks import TOLERANCE
from edgecompile.loaders.generators.check import _Answers

TOKENS = torch.arange(6)[None]


def exact(tokens: Tensor) -> Tensor:
    return (tokens[0, :, None].float() + torch.arange(5.0)) / 3 + 0.1


def test_logits_may_differ_by_what_eager_itself_loses() -> None:
    losing = _Answers(lambda tokens: (exact(tokens) + 1e4) - 1e4, TOKENS)
    sure = _Answers(exact, TOKENS)
    for at, row in enumerate(exact(TOKENS)):
        error, wrong = losing.error(row, at), losing.error(row * 1.005, at)
        assert isinstance(error, float) and error <= TOLERANCE
        assert isinstance(wrong, float) and wrong > TOLERANCE
        strict = sure.error(row * 1.0003, at)
        assert isinstance(strict, float) and strict > TOLERANCE
