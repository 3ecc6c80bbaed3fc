"""The places that a text with windows can go back to: numbers of tokens behind which the rows are kept."""

from typing import TYPE_CHECKING, Iterable, List, Sequence, Set

from . import windows
from .checkpoints import Checkpoint, Checkpoints, CheckpointSettings
from .windows import WindowRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Places that stay for any bound of the memory but 0: the last prompt's end and two before it.
STAYING = 3


class Places(Checkpoints):
    """Places as checkpoints; each costs the rows that no other place needs, beside its states if there are any.

    To answer again, a text goes back to the last prompt's end. Another last message goes on from the end of the
    answer before it, or from where an earlier one parted. In a model with many wide caches these places alone can
    take more than the bound, but to read a long prompt again costs more than they do.
    """

    def __init__(
        self,
        rows: WindowRows,
        settings: CheckpointSettings,
        states: "Sequence[NDArray[np.float32]]" = (),
    ) -> None:
        super().__init__(states, settings)
        self._rows = rows
        self._staying: List[int] = []

    def hold(self, lengths: Iterable[int]) -> None:
        """See ``Checkpoints``. Rows serve the places just before another one, too; states don't."""
        new, apart = sorted(set(lengths)), 0 if self.states else windows.SPARE
        chosen: List[int] = []
        for length in [*reversed(new), *(old for old in self._staying if old < new[0])]:
            if not chosen or chosen[-1] - length > apart:
                chosen.append(length)
        self._staying = chosen[: STAYING if self.settings.most_bytes else 0]

    def make_empty(self, lengths: Iterable[int]) -> "Places":
        """See ``Checkpoints``."""
        made = Places(self._rows, self.settings, self.states)
        made.hold(lengths)
        return made

    def _fits(self, items: Sequence[Checkpoint]) -> bool:
        lengths = [item.length for item in items]
        if set(lengths) <= set(self._staying):
            return True
        size = self._rows.size_of(lengths) + sum(item.size for item in items)
        return size <= self.settings.most_bytes

    def _kept(self, items: Sequence[Checkpoint]) -> Set[int]:
        return {index for index, item in enumerate(items) if item.length in self._staying}
