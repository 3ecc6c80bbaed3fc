"""Answers of a model, and their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from edgecompile.runtime.text.encoder import TokenizedText


class Answer(NamedTuple):
    """Outputs by name; the seconds that the request waited and ran; how many rows ran together."""

    outputs: dict[str, NDArray[Any]]
    queue_s: float
    run_s: float
    batch: int


@dataclass(frozen=True)
class TextAnswer:
    """The outputs of each text, in their order and without padding, with its tokens.

    ``queue_s`` and ``run_s`` are those of the text that took longest.
    """

    outputs: list[dict[str, NDArray[Any]]]
    texts: list[TokenizedText]
    queue_s: float
    run_s: float

    @property
    def truncated(self) -> list[int]:
        """Positions of the texts whose end was cut off."""
        return [index for index, text in enumerate(self.texts) if text.truncated]
