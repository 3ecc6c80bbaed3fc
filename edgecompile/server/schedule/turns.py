"""The order of texts that wait for their next tokens: a chunk of one prompt, then a token of each text."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class _Waiting(Protocol):
    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        ...


Step = TypeVar("Step", bound=_Waiting)


class Turns(Generic[Step]):
    """Steps that wait. A text waits for one chunk of a prompt at most, and for a step of each other text.

    Prompts take turns as well, so that a short one needn't wait for all chunks of a long one.
    """

    def __init__(self) -> None:
        self._tokens: deque[Step] = deque()
        self._chunks: deque[Step] = deque()
        # Steps for tokens that come before the next chunk.
        self._owed = 0
        self._after_chunk = False

    def __len__(self) -> int:
        return len(self._tokens) + len(self._chunks)

    def add(self, step: Step, *, chunk: bool) -> None:
        """Takes a step in; ``chunk``: it runs a part of a prompt."""
        (self._chunks if chunk else self._tokens).append(step)

    @property
    def tokens(self) -> int:
        """Steps for tokens that wait."""
        return len(self._tokens)

    def take(self, count: int) -> list[Step]:
        """Takes out so many further steps for tokens, to run them together with the one before."""
        self._owed -= count
        taken = [self._tokens.popleft() for _ in range(count)]
        return [step for step in taken if step.wanted]

    def next(self) -> Step | None:
        """Takes out the step whose turn it is, once the one before has ended; None: none waits."""
        for waiting in (self._tokens, self._chunks):
            while waiting and not waiting[0].wanted:
                waiting.popleft()
        if self._after_chunk:
            self._owed, self._after_chunk = len(self._tokens), False
        if self._tokens and (self._owed > 0 or not self._chunks):
            self._owed -= 1
            return self._tokens.popleft()
        self._owed, self._after_chunk = 0, bool(self._chunks)
        return self._chunks.popleft() if self._chunks else None
