"""Tokens that were run with a text's next one, and that may turn out not to be the text's."""

from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence

import numpy as np

from .checkpoints import Checkpoint, Checkpoints
from .chunk_runs import ChunkRuns

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Room(NamedTuple):
    """How many tokens fit into the next run behind its first: ``most``; and how many of the text go in ``again``."""

    most: int
    again: int


class TriedTokens:
    """The tokens of a text's last run that nobody has confirmed yet.

    Rows of keys and values are overwritten by the next run. States of a fixed size are put back to those from
    before the run, unless all of its tokens were confirmed.

    Attributes:
        left: Tokens that were run, but not confirmed, in their order.
    """

    def __init__(self, runs: ChunkRuns, states: Optional[Checkpoints]) -> None:
        """``states`` are those that the runs change; None: the model has none."""
        self.left: List[int] = []
        self._runs, self._states = runs, states
        # The states from before the run, as long as not all of its tokens are the text's.
        self._kept: Optional[Checkpoint] = None

    @property
    def pending(self) -> bool:
        """Whether the states may have to be put back."""
        return self._kept is not None

    def run(self, text: Sequence[int], behind: int, tokens: Sequence[int]) -> "NDArray[np.float32]":
        """Runs tokens, at least one, behind a text whose states stand behind its first ``behind`` tokens.

        What the text has behind those goes into the run again. All tokens but the first are then ``left``.

        Returns:
            The logits [tokens, vocabulary] behind each, valid until the next call.
        """
        if self._states is not None:
            self._kept = self._states.copy(behind)
        again = text[behind:]
        logits = self._runs.run_rows(behind, [*again, *tokens])
        self.left = list(tokens[1:])
        return logits[len(again) :]

    def settle(self) -> bool:
        """Takes the states for the text's, if all tokens were confirmed; whether they were."""
        if self.left:
            return False
        self._kept = None
        return True

    def retract(self) -> Optional[int]:
        """Forgets what wasn't confirmed.

        Returns:
            How many tokens the states stand behind, if they were put back; else None.
        """
        kept, self._kept, self.left = self._kept, None, []
        if kept is None or self._states is None:
            return None
        self._states.restore(kept)
        return kept.length
