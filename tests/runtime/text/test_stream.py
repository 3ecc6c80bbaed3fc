"""Stops in new text; streams of text are tested with those of tokens."""

from __future__ import annotations

import pytest

from edgecompile.runtime.text.stream import StopTexts


@pytest.mark.parametrize("text", ["abcSTOPdef", "abcSTO", "SSTOP", "STSTOP", "no"])
def test_nothing_of_a_stop_is_given_out(text: str) -> None:
    for size in range(1, 4):
        held, found = StopTexts(("STOP", "XX")), ""
        for at in range(0, len(text), size):
            found += held.add(text[at : at + size])
            if held.stopped:
                break
        assert found + held.rest() == text.partition("STOP")[0]
