"""The sizes of requests whose runs are short."""

from __future__ import annotations

from collections.abc import Mapping

#: Seconds: so long may all connections wait for a run that the event loop does itself.
LIMIT_S = 1e-3
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
