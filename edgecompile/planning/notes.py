"""The notes of a build or a plan."""

from __future__ import annotations


class Notes(list[str]):
    """Notes for people on a build or a plan: every sentence once, as they came up."""

    def add(self, *texts: str) -> None:
        """Appends the texts that aren't there yet; empty ones are left out."""
        self += [text for text in dict.fromkeys(texts) if text and text not in self]
