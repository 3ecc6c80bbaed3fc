"""The cost of a run in Python, counted in bytecode, which no busy machine can upset."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle


def count_opcodes(action: Callable[[], object]) -> int:
    """Bytecode instructions of Python functions that ``action`` calls."""
    total = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal total
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        total += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return total


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> Any:
    return open_bundle(str(tiny_bundle), threads=1)


def inputs(length: int) -> dict[str, Any]:
    ids = np.ones((1, length), np.int64)
    return {"input_ids": ids, "attention_mask": ids}


def test_counting_counts() -> None:
    def loop(n: int) -> None:
        for _ in range(n):
            pass

    few, many = (count_opcodes(lambda n=n: loop(n)) for n in (10, 1010))  # type: ignore[misc]
    assert 1000 < many - few < 5000


def test_a_run_takes_little_python(model: Any) -> None:
    """It took 1989 when the bound was set (CPython 3.11)."""
    given = inputs(9)
    model.run(given)
    assert 500 < count_opcodes(lambda: model.run(given)) < 3000


def test_python_does_not_grow_with_the_length(model: Any) -> None:
    """Nothing may walk over elements in Python, in whatever bucket."""
    found = []
    for length in (3, 9, 31):
        given = inputs(length)
        model.run(given)
        found.append(count_opcodes(lambda given=given: model.run(given)))  # type: ignore[misc]
    assert max(found) - min(found) < 0.1 * min(found)
