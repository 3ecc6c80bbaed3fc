"""What is compared to find the last of several writes to one place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edgecompile.backends.lowering.last_writes import order_writes
from tests.backends.lowering.test_collisions import COLLIDE, WIDTH, program


def test_equal_lines_of_a_scatter_are_looked_through_once() -> None:
    lines = []

    def find_last(places: Tensor, room: Any) -> Tensor:
        lines.append(places.shape[0])
        return (
            (places[:, :, None] == places[:, None])
            .long()
            .mul(torch.arange(places.shape[1]))
            .argmax(-1)
        )

    graph, example = program([COLLIDE["scatter"]])
    example["ids"] %= 4
    want = graph(**example)
    assert order_writes(graph, find_last) == 1
    assert lines == [1]
    torch.testing.assert_close(graph(**example), want)

    graph, _ = program(
        [
            lambda x, ids, start: torch.zeros(64, WIDTH).scatter(
                0, ids[:, None] + start * x.long(), x
            )
        ]
    )
    assert order_writes(graph, find_last) == 1
    assert lines == [1, WIDTH]
