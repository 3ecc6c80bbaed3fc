"""Small torch modules and factories for them; each shows one property that the tests need.

Usable as ``tests/factories/tiny_models.py:NAME`` on the command line, too. Weights are seeded, so
a model is the same every time it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 8
VOCABULARY = 50


def seeded(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def wrapped() -> dict[str, Any]:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return make()

    wrapped.__name__ = make.__name__
    wrapped.__module__ = make.__module__
    return wrapped


class MaskedMlp(nn.Module):
    """Tokens [B, L, 8] through an MLP, then the mean over real positions: [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        weights = attention_mask.unsqueeze(-1).to(x.dtype)
        return (self.net(x) * weights).sum(1) / weights.sum(1).clamp(min=1)


class TokenMlp(nn.Module):
    """Tokens [B, L, 8] one by one: [B, L, 4]. Padding can't matter."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class BatchCentred(TokenMlp):
    """A batch norm in the form of training: the mean of the whole batch is taken off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y - y.mean((0, 1), keepdim=True)


class CausalAttention(nn.Module):
    """Token ids [B, L] to logits [B, L, 50]; no position sees later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.qkv = nn.Linear(16, 48)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(ids)
        q, k, v = (t.view(*t.shape[:2], 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return {"logits": self.head(x + y.transpose(1, 2).flatten(2))}


class UnmaskedMean(nn.Module):
    """The mean over all positions: padding changes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


class Recurrent(nn.Module):
    """A recurrence that torch.export can only trace for one length."""

    def __init__(self, both_ways: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=both_ways)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0]


class RunningSum(nn.Module):
    """Sums of all tokens up to each, by a loop over the tokens: the length is fixed in a graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, sums = torch.zeros_like(x[:, 0]), []
        for index in range(x.shape[1]):
            total = total + x[:, index]
            sums.append(total)
        return torch.stack(sums, 1)


class Looping(nn.Module):
    """A Python loop over the length, which tracing unrolls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        for index in range(x.shape[1]):
            state = state * 0.5 + x[:, index]
        return state


class Unrolled(nn.Module):
    """A state for each position, by a Python loop: from the first to the last, or backwards."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.backwards = backwards

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = torch.ones_like(x[:, 0]), []
        steps = x.unbind(1)
        for step in reversed(steps) if self.backwards else steps:
            state = torch.tanh(state * 0.5 + step)
            states.append(state)
        return torch.stack(states[::-1] if self.backwards else states, 1)


class Branching(nn.Module):
    """Another formula from length 21 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 20:
            return x * 2
        return x * 3


class Chunked(nn.Module):
    """Works on blocks of four positions: other lengths fail in eager, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1] // 4, 4, WIDTH).sum(2)


class Differences(nn.Module):
    """Neighbours' differences [B, L - 1, 8]; torch's plain form refuses it, deferred checks not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, 1:] - x[:, :-1]).sum(1)


class Triangle(nn.Module):
    """Reshapes L · (L + 1) numbers into pairs: always possible, but torch can't prove it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        pairs = x.sum(-1).unsqueeze(-1).repeat(1, 1, n + 1).view(x.shape[0], n * (n + 1) // 2, 2)
        return pairs.sum(1)


class Frames(nn.Module):
    """A strided convolution: about half as many frames as positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x * 3


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * 2


class ForgetsMask(nn.Module):
    """Takes a mask and ignores it."""

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return x * 2


class CrossAttention(nn.Module):
    """Two sequences of different lengths: queries [B, L, 8], memory [B, M, 8]."""

    def forward(self, queries: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(queries, memory, memory)


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the flux capacitor is empty")


def _tokens(module: nn.Module, **more: Any) -> dict[str, Any]:
    return {
        "module": module,
        "inputs": {"x": torch.randn(1, 12, WIDTH)},
        "axes": {"x": {0: "batch", 1: "length"}},
        "pad": {"x": 0.0},
        "max_length": 64,
        **more,
    }


def _masked(module: nn.Module) -> dict[str, Any]:
    return _tokens(
        module,
        inputs={
            "x": torch.randn(1, 12, WIDTH),
            "attention_mask": torch.ones(1, 12, dtype=torch.int64),
        },
        axes={
            "x": {0: "batch", 1: "length"},
            "attention_mask": {0: "batch", 1: "length"},
        },
    )


masked_mlp = seeded(lambda: _masked(MaskedMlp()))
token_mlp = seeded(lambda: _tokens(TokenMlp()))
batch_centred = seeded(lambda: _tokens(BatchCentred()))
unmasked_mean = seeded(lambda: _tokens(UnmaskedMean()))
forward_recurrence = seeded(lambda: _tokens(Recurrent(both_ways=False)))
two_way_recurrence = seeded(lambda: _tokens(Recurrent(both_ways=True)))
looping = seeded(lambda: _tokens(Looping()))
unrolled = seeded(lambda: _tokens(Unrolled(backwards=False)))
unrolled_backwards = seeded(lambda: _tokens(Unrolled(backwards=True)))
running_sum = seeded(lambda: _tokens(RunningSum()))
branching = seeded(lambda: _tokens(Branching()))
chunked = seeded(lambda: _tokens(Chunked()))
differences = seeded(lambda: _tokens(Differences()))
triangle = seeded(lambda: _tokens(Triangle()))
frames = seeded(lambda: _tokens(Frames(), limits={"length": (3, 64)}))
data_dependent = seeded(lambda: _tokens(DataDependent()))
noisy = seeded(lambda: _tokens(Noisy()))
counting = seeded(lambda: _tokens(Counting()))
forgets_mask = seeded(lambda: _masked(ForgetsMask()))
half_precision = seeded(lambda: _tokens(TokenMlp().to(torch.bfloat16)))
failing = seeded(lambda: _tokens(Failing()))


@seeded
def causal() -> dict[str, Any]:
    return {
        "module": CausalAttention(),
        "inputs": {"ids": torch.randint(0, VOCABULARY, (1, 9))},
        "axes": {"ids": {0: "batch", 1: "length"}},
        "limits": {"batch": (1, 4), "length": (1, 48)},
        "pad": {"ids": 0},
    }


@seeded
def cross_attention() -> dict[str, Any]:
    return {
        "module": CrossAttention(),
        "inputs": (torch.randn(1, 6, WIDTH), torch.randn(1, 9, WIDTH)),
        "axes": {"queries": {1: "length"}, "memory": {1: "memory_length"}},
        "limits": {"length": (1, 32), "memory_length": (1, 24)},
    }


@seeded
def encoder_layer() -> dict[str, Any]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return {
        "module": nn.TransformerEncoder(layer, 2),
        "inputs": {"src": torch.randn(1, 9, 16)},
        "axes": {"src": {1: "length"}},
        "max_length": 32,
    }


def as_tuple() -> tuple[Any, ...]:
    made = token_mlp()
    return made["module"], made["inputs"], made["axes"]


def raising() -> dict[str, Any]:
    return _load_weights_that_do_not_exist()


def _load_weights_that_do_not_exist() -> dict[str, Any]:
    raise FileNotFoundError("no weights at weights.bin")


def full_of_mistakes() -> dict[str, Any]:
    """Six mistakes, which one error must list."""
    return {
        "module": MaskedMlp(),
        "inputs": {"x": torch.randn(1, 12, WIDTH), "mask": torch.ones(1, 11, dtype=torch.int64)},
        "axes": {"x": {1: "length", 5: "depth"}, "mask": {1: "length"}},
        "pad": {"y": 0},
        "bounds": {"mask": (2, 1)},
        "max_length": 0,
    }
