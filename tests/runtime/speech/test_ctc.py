"""Greedy decoding of frames."""

from __future__ import annotations

import numpy as np

from edgecompile.runtime.speech.ctc import find_tokens


def decode(*best: int) -> list[int]:
    return find_tokens(np.eye(4, dtype=np.float32)[list(best)], blank=0)


def test_equal_neighbours_are_one_and_blanks_go() -> None:
    assert decode(0, 1, 1, 0, 1, 2, 2, 3, 0, 0, 3) == [1, 1, 2, 3, 3]
    assert decode(0, 0) == []
    assert decode(2) == [2]
    assert find_tokens(np.zeros((0, 4), np.float32), 0) == []
