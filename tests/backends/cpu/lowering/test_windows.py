"""Windows of caches: noted only where every read goes through one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.cpu.lowering.windows import common_windows
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION
from edgecompile.export.operators.texts_attention import TEXTS_ATTENTION

Reads = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Step(nn.Module):
    """Writes a row of two caches, and lets a query read them."""

    def __init__(self, read: Reads) -> None:
        super().__init__()
        self.read = read

    def forward(self, q: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        row = q[0].transpose(0, 1)
        caches = []
        for cache in (keys, values):
            cache.index_copy_(0, position, row)
            caches.append(cache.transpose(0, 1)[None])
        return self.read(q, caches[0], caches[1], position)


def attend(window: int) -> Reads:
    return lambda q, k, v, at: CACHED_ATTENTION(q, k, v, at, window, 0.5, 0.0)


def both(window: int, other: Reads) -> Reads:
    return lambda *given: attend(window)(*given) + other(*given)


CASES: dict[str, tuple[Reads, dict[str, int]]] = {
    "one window": (attend(4), {"keys": 4, "values": 4}),
    "the widest of two": (both(4, attend(6)), {"keys": 6, "values": 6}),
    "no window": (attend(0), {}),
    "from an earlier row": (lambda q, k, v, at: attend(4)(q, k, v, at - 5), {}),
    "from a constant row": (lambda q, k, v, at: attend(4)(q, k, v, at * 0 + 2), {}),
    "from a later row": (lambda q, k, v, at: attend(4)(q, k, v, at + 1), {}),
    "every second row": (lambda q, k, v, at: attend(4)(q, k[:, :, ::2], v, at), {"values": 4}),
    "another layer without one": (both(4, attend(0)), {}),
    "the first key as well": (both(4, lambda q, k, v, at: k[:, :, :1]), {"values": 4}),
    "a changed value": (both(4, lambda q, k, v, at: v.mul_(2)[:, :, :1]), {"keys": 4}),
    "keys as a query": (
        both(4, lambda q, k, v, at: attend(4)(k, k, v, at)[:, :, :1]),
        {"values": 4},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_windows_are_those_of_every_reader(name: str) -> None:
    read, want = CASES[name]
    sizes = ((1, 2, 1, 8), (9, 2, 8), (9, 2, 8))
    inputs = (*(torch.randn(size) for size in sizes), torch.tensor([3]))
    graph = torch.export.export(Step(read), inputs).module()
    assert lower_graph(graph).windows == want


class JointStep(nn.Module):
    """A token of each of several texts, whose caches lie at addresses; ``more`` is another reader of those."""

    def __init__(self, windows: Sequence[int], more: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.windows, self.more = windows, more

    def forward(self, q: Tensor, caches: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        rows = list(caches)
        results = [
            TEXTS_ATTENTION(q, q, q, *rows[2 * at : 2 * at + 2], position, 9, window, 0.5, 0.0)
            for at, window in enumerate(self.windows)
        ]
        return (*results, self.more(caches))


@pytest.mark.parametrize(
    ("windows", "more", "want"),
    [
        ((4, 0), lambda caches: caches.sum(), {}),
        ((4, 0), lambda caches: torch.zeros(1), {"keys": 5, "values": 4}),
        ((8, 4), lambda caches: torch.zeros(1), {"keys": 8, "values": 8, "other keys": 6}),
        (
            (4, 4),
            lambda caches: caches.unbind()[3].sum(),
            {"keys": 5, "values": 4, "other keys": 6},
        ),
    ],
)
def test_joint_programs_have_a_say(
    windows: Sequence[int], more: Callable[[Tensor], Tensor], want: dict[str, int]
) -> None:
    inputs = torch.randn(1, 2, 3, 8), torch.zeros(4, 3, dtype=torch.int64), torch.tensor([3, 5, 1])
    graph = torch.export.export(JointStep(windows, more), inputs).module()
    single = {"keys": 5, "values": 3, "other keys": 6}
    caches = ("keys", "values", "other keys", "other values")
    assert common_windows([single], [lower_graph(graph).windows], caches) == want
