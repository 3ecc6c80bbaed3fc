"""The stream of a text's new tokens."""

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    List,
    Optional,
    Protocol,
    Tuple,
)

import numpy as np

from ..base.errors import InputError
from ..base.lifetime import Unique
from .request import GenerationRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .cached_text import CachedText, Runs
    from .chunk_runs import Wanted

    Choose = Callable[[NDArray[np.float32]], int]


class Text(Protocol):
    """The session of a stream. Another text may begin in it: runs of this one raise InputError from then on."""

    #: Tokens that are never chosen, and those that aren't the first one; None where any may be.
    suppressed: "Tuple[Optional[NDArray[np.int64]], Optional[NDArray[np.int64]]]"
    #: Whether a run can leave out logits; None is ``wanted`` where it can't.
    masks_logits: bool

    def begin(self, stream: "TokenStream", request: GenerationRequest) -> "Runs":
        """Makes the text that of ``stream``; the runs of its prompt."""
        ...

    def advance(
        self, stream: "TokenStream", token: int, wanted: "Wanted" = None
    ) -> "NDArray[np.float32]":
        """Runs one token; the logits [vocabulary] behind it, of which those that aren't wanted mean nothing."""
        ...

    def advance_by(
        self, stream: "TokenStream", begin: int, tokens: List[int], wanted: "Wanted" = None
    ) -> "Runs":
        """The runs of several tokens behind the text's first ``begin``; see ``advance``."""
        ...

    def has_turn(self, stream: "TokenStream") -> bool:
        """Whether the text is still this stream's."""
        ...

    def lent(self, stream: "TokenStream") -> "ContextManager[CachedText]":
        """The text in its caches, while nobody else uses it."""
        ...


class TokenStream(Unique):
    """The new tokens of a text, one by one as they are made; an iterator.

    Nothing runs before the first token is asked for, and each is run when the next one is asked
    for, in the caller's thread.

    Attributes:
        tokens: the tokens made so far, with the one that ended the text.
        finish_reason: None until it ended; then "eos", "stop", "length" (max_new_tokens are made),
            "constraint" (that says that the text is complete), or "closed".
        reused: the number of the prompt's tokens that needn't be run, as the session had them.
    """

    def __init__(self, session: Text, request: GenerationRequest, choose: "Choose") -> None:
        """``choose`` takes the next token from logits [vocabulary]; see ``sampling.Sampler``."""
        self.tokens: List[int] = []
        self.finish_reason: Optional[str] = None
        self.reused = 0
        self._session = session
        self._request = request
        self._choose = choose
        self._never, self._not_first = session.suppressed
        self._runs: Optional[Runs] = None
        # The logits that the next token is chosen from, once they are there.
        self._logits: Optional[NDArray[np.float32]] = None

    @property
    def prompt(self) -> List[int]:
        """The text that the tokens go on from."""
        return list(self._request.prompt)

    @property
    def logits(self) -> "Optional[NDArray[np.float32]]":
        """The logits [vocabulary] that the next token is chosen from; None: they aren't there yet."""
        return self._logits

    @property
    def source(self) -> "Optional[Dict[str, NDArray[Any]]]":
        """The inputs of the encoder; None where there is none."""
        return self._request.source

    def close(self) -> None:
        """Ends the stream; a session goes on with another text anyway."""
        if self.finish_reason is None:
            self.finish_reason = "closed"

    def __iter__(self) -> "TokenStream":
        return self

    def run(self) -> bool:
        """Runs one chunk of what the next token needs; whether more chunks are left.

        ``next`` runs them all. Who calls this can let other texts run between two chunks.
        """
        if self.finish_reason is not None or self._logits is not None:
            return False
        if self._runs is None:
            if self.tokens:
                self._logits = self._advance()
                return False
            self._runs = self._session.begin(self, self._request)
        return self._run_chunk(self._runs)

    @property
    def ahead(self) -> int:
        """The number of further tokens that went into the last run, of which the logits are there."""
        return 0

    def single(self) -> Optional[int]:
        """The token that has to be run before the next one can be chosen; None: nothing, or a prompt."""
        if self.finish_reason is not None or self._logits is not None or self._runs is not None:
            return None
        return self.tokens[-1] if self.tokens else None

    def tries(self) -> Optional[Tuple[float, float]]:
        """A run that tries further tokens with that of ``single``: its seconds, and how many tokens it gives.

        Both are what is expected by earlier ones. None: a run of one token is faster for each.
        """
        return None

    def lent(self) -> "ContextManager[CachedText]":
        """The text in the caches of its session, for the token of ``single``."""
        return self._session.lent(self)

    def give(self, logits: "NDArray[np.float32]") -> None:
        """Takes the logits [vocabulary] behind that token, which somebody else has run."""
        self._logits = logits

    def _run_chunk(self, runs: "Runs") -> bool:
        try:
            next(runs)
            return True
        except StopIteration as end:
            self._logits, self._runs = end.value, None
            return False
        except BaseException:
            self._runs = None
            if not self._session.has_turn(self):
                self.close()  # else the next call would begin anew, and end the other text
            raise

    def _advance(self) -> "NDArray[np.float32]":
        """The logits [vocabulary] behind the last token."""
        return self._session.advance(self, self.tokens[-1])

    def __next__(self) -> int:
        if self.finish_reason is not None:
            raise StopIteration
        while self.run():
            pass
        if self.finish_reason is not None:  # closed between two chunks
            raise StopIteration
        tokens, request, logits = self.tokens, self._request, self._logits
        assert logits is not None
        if self._never is not None or (self._not_first is not None and not tokens):
            logits = logits.copy()
            for banned in (self._never, None if tokens else self._not_first):
                if banned is not None:
                    logits[banned] = -np.inf
        token = self._choose(logits)
        self._logits = None
        # The logits are the session's. A text that began meanwhile, in another thread, has written
        # its own there.
        if not self._session.has_turn(self):
            self.close()
            raise turn_lost()
        tokens.append(token)
        if token in request.eos:
            self.finish_reason = "eos"
        elif token in request.stops and ends_with(tokens, request.stops[token]):
            self.finish_reason = "stop"
        elif len(tokens) >= request.max_new_tokens:
            self.finish_reason = "length"
        return token


def turn_lost() -> InputError:
    """The error for a stream whose text in the session was replaced by another one."""
    return InputError(
        "another generation of this session began meanwhile, which ended this one",
        "let texts that are made at the same time have a session each",
    )


def ends_with(tokens: List[int], stops: List[Tuple[int, ...]]) -> bool:
    """Whether new tokens end with one of the stops."""
    return any(tuple(tokens[-len(stop) :]) == stop for stop in stops)
