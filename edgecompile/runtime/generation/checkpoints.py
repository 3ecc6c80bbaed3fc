"""Copies of the states of a fixed size, by which a text can go back to where they were taken."""

from typing import TYPE_CHECKING, Any, Iterable, List, NamedTuple, Optional, Sequence, Set

import numpy as np

from ..base.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Memory of a session's checkpoints, unless its maker says otherwise.
CHECKPOINT_BYTES = 256 << 20


class CheckpointSettings(NamedTuple):
    """``most_bytes`` of memory in all; one ``every`` so many tokens besides those at the ends of turns, 0: none."""

    most_bytes: int = 0
    every: int = 0


NO_CHECKPOINTS = CheckpointSettings()


def make_checkpoint_settings(every: Any, most_bytes: Any) -> CheckpointSettings:
    """Checks the arguments of ``Model.session``; raises InputError where one is wrong."""
    for name, value, least in (
        ("checkpoint_every", 0 if every is None else every, 0 if every is None else 1),
        ("checkpoint_bytes", most_bytes, 0),
    ):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not least <= value < 2**63:
            raise InputError("{} is {!r}, must be an integer from {} on".format(name, value, least))
    return CheckpointSettings(int(most_bytes), 0 if every is None else int(every))


class Checkpoint(NamedTuple):
    """The states behind the first ``length`` tokens, and the logits there if they were the end of a prompt."""

    length: int
    states: "List[NDArray[np.float32]]"
    logits: "Optional[NDArray[np.float32]]" = None

    @property
    def size(self) -> int:
        """Bytes of memory."""
        logits = 0 if self.logits is None else self.logits.nbytes
        return logits + sum(array.nbytes for array in self.states)


class Checkpoints:
    """The checkpoints of one text, ascending.

    Attributes:
        items: Checkpoints, the shortest first.
        states: Arrays that programs change.
        settings: Bound of the memory, and the distance of further checkpoints.
    """

    def __init__(
        self, states: "Sequence[NDArray[np.float32]]", settings: CheckpointSettings
    ) -> None:
        self.states = list(states)
        self.settings = settings
        self.items: List[Checkpoint] = []

    def take(self, length: int, logits: "Optional[NDArray[np.float32]]" = None) -> None:
        """Copies the states, which stand behind ``length`` tokens, no fewer than those of any checkpoint.

        Where the memory is used up, others go: those that would save the fewest tokens. One that doesn't fit
        at all isn't taken.
        """
        last = self.items[-1] if self.items else None
        known = last is not None and last.length == length
        if known and (logits is None or (last is not None and last.logits is not None)):
            return
        if not self._fits([Checkpoint(length, self.states, logits)]):
            return
        try:
            copies = [array.copy() for array in self.states]
            item = Checkpoint(length, copies, None if logits is None else logits.copy())
        except MemoryError:  # the text goes on without it
            return
        self.add(item)

    def add(self, item: Checkpoint) -> None:
        """Adds the longest one, in place of one of the same length; others go where the memory is used up."""
        self.cut(item.length - 1)
        items = [*self.items, item]
        while not self._fits(items):
            del items[_least_useful(items, self._kept(items))]
        self.items = items

    def _fits(self, items: Sequence[Checkpoint]) -> bool:
        """Whether the memory suffices for checkpoints, which ascend."""
        return sum(item.size for item in items) <= self.settings.most_bytes

    def _kept(self, items: Sequence[Checkpoint]) -> Set[int]:
        """The indices of checkpoints that don't go: the end of the last prompt, as long as there is another one."""
        prompts = [index for index, item in enumerate(items) if item.logits is not None]
        return {prompts[-1]} if prompts and len(items) > 1 else set()

    def hold(self, lengths: Iterable[int]) -> None:
        """Takes numbers of tokens for places of the last prompt: its beginning, marks, and its end."""

    def make_empty(self, lengths: Iterable[int]) -> "Checkpoints":
        """Others of the same states, without one yet; ``lengths`` are the places of the last prompt."""
        return Checkpoints(self.states, self.settings)

    def find(self, common: int, length: int) -> Optional[Checkpoint]:
        """The longest one that serves a text of ``length`` tokens, of which ``common`` are this text's.

        The logits behind its last token are needed: it serves a whole text only where it has them.
        """
        for item in reversed(self.items):
            if item.length < length and item.length <= common:
                return item
            if item.length == length <= common and item.logits is not None:
                return item
        return None

    def copy(self, length: int) -> Checkpoint:
        """The states, which stand behind ``length`` tokens, but not as one of the checkpoints."""
        return Checkpoint(length, [array.copy() for array in self.states])

    def restore(self, item: Checkpoint) -> None:
        """Writes the states of a checkpoint over those that programs change."""
        for array, copy in zip(self.states, item.states):
            array[...] = copy

    def cut(self, length: int) -> None:
        """Forgets those of more than ``length`` tokens, as the text is another one from there on."""
        self.items = [item for item in self.items if item.length <= length]


def _least_useful(items: Sequence[Checkpoint], kept: Set[int]) -> int:
    """The index of the checkpoint to go, none of those that are kept.

    A text mostly goes back to somewhere near its end. So the few tokens to the one before, and a long way
    to the end, make one useless.
    """
    end = items[-1].length
    before = [0, *(item.length for item in items)]

    def worth(index: int) -> float:
        return (items[index].length - before[index]) / (end - items[index].length + 1)

    return min((index for index in range(len(items)) if index not in kept), key=worth)
