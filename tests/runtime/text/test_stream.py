"""Stops in new text; streams of text are tested with those of tokens."""

from __future__ import annotations

from typing import Any

import pytest

from edgecompile.runtime import InputError
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


@pytest.mark.parametrize("stops", ["END", [""], ["END", 5], {"END"}, None])
def test_only_lists_of_texts_are_stops(stops: Any) -> None:
    with pytest.raises(InputError, match=r"stop_text is .*, must be a list of texts"):
        StopTexts(stops)
