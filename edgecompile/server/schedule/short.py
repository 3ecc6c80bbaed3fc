"""The sizes of requests whose runs are short."""

from __future__ import annotations

from collections.abc import Mapping

#: Seconds: so long may all connections wait for a run that the event loop does itself.
LIMIT_S = 1e-3
#: Seconds of CPU that it takes to wake a thread up and to hear of it again, roughly.
_HAND_OVER_S = 150e-6
#: Sizes that are remembered.
_KEPT = 4096


class ShortSizes:
    """Learned from runs: of a size that wasn't seen, or was long the last time, nothing is promised."""

    def __init__(self, limit: float = LIMIT_S) -> None:
        self._limit = limit
        self._known: set[tuple[int, ...]] = set()

    def has(self, sizes: Mapping[str, int]) -> bool:
        """Whether the last run of these sizes was short; of every axis, in the manifest's order."""
        return (*sizes.values(),) in self._known

    def see(self, sizes: Mapping[str, int], took: float) -> None:
        """A run of these sizes took so many seconds."""
        key = (*sizes.values(),)
        if took >= self._limit:
            self._known.discard(key)
        elif key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known.add(key)


def rest(took: float) -> float:
    """Seconds without a run on the event loop behind one there that took so many: it does no more than
    half of its time, apart from what a thread would cost it anyway."""
    return max(0.0, took - _HAND_OVER_S)
