"""The places that a text with windows can go back to: numbers of tokens behind which the rows are kept."""

from typing import Iterable, List, Sequence, Set

from . import windows
from .checkpoints import Checkpoint, Checkpoints, CheckpointSettings
from .windows import WindowRows

#: Places that stay for any bound of the memory but 0: the last prompt's end and two before it.
STAYING = 3


class Places(Checkpoints):
    """Places as checkpoints without states; each costs the rows that no other place needs.

    To answer again, a text goes back to the last prompt's end. Another last message goes on from the end of the
    answer before it, or from where an earlier one parted. In a model with many wide caches these places alone can
    take more than the bound, but to read a long prompt again costs more than they do.
    """

    def __init__(self, rows: WindowRows, settings: CheckpointSettings) -> None:
        super().__init__((), settings)
        self._rows = rows
        self._staying: List[int] = []

    def hold(self, lengths: Iterable[int]) -> None:
        """Takes numbers of tokens for places of the last prompt: its beginning, marks, and its end.

        A place that is among the tokens just before another one needs none of its own.
        """
        new = sorted(set(lengths))
        chosen: List[int] = []
        for length in [*reversed(new), *(old for old in self._staying if old < new[0])]:
            if not chosen or chosen[-1] - length > windows.SPARE:
                chosen.append(length)
        self._staying = chosen[:STAYING]

    def _fits(self, items: Sequence[Checkpoint]) -> bool:
        lengths, most = [item.length for item in items], self.settings.most_bytes
        if most and set(lengths) <= set(self._staying):
            return True
        return self._rows.size_of(lengths) <= most

    def _kept(self, items: Sequence[Checkpoint]) -> Set[int]:
        return {index for index, item in enumerate(items) if item.length in self._staying}
