"""The caches of texts that have ended, kept for the next turns of their conversations."""

from __future__ import annotations

from collections.abc import Sequence

from edgecompile.runtime import Model
from edgecompile.runtime.text.session import TextSession


class Conversations:
    """Sessions that nobody uses, the one that was used last at the end. No thread but the event loop's calls it.

    Args:
        model: an open language model.
        most: the largest number of sessions to keep.
    """

    def __init__(self, model: Model, most: int) -> None:
        self._model = model
        self._most = most
        self._idle: list[TextSession] = []

    def take(self, prompt: Sequence[int]) -> TextSession:
        """The session that has most of a prompt, beyond what all have, or else a new one.

        Raises:
            UnsupportedHostError, GpuError: there is no memory for its caches.
        """
        counts = [session.count_gained(prompt) for session in self._idle]
        most = max(counts, default=0)
        if most > 0:
            return self._idle.pop(counts.index(most))
        if len(self._idle) >= self._most > 0:
            # It would have to go when this one comes back, and its memory is there.
            return self._idle.pop(0)
        return self._model.session() if self._most else self._model.session(checkpoint_bytes=0)

    def give_back(self, session: TextSession) -> None:
        """Keeps a session, in place of the one that was used the longest ago."""
        self._idle.append(session)
        del self._idle[: max(0, len(self._idle) - self._most)]

    def clear(self) -> None:
        """Gives all memory back."""
        self._idle.clear()
