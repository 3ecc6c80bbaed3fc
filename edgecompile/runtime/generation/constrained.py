"""The stream of a constrained text, apart from the others: those take no longer for it."""

from typing import TYPE_CHECKING, List, Optional

from ..base.errors import ConstraintError
from .constraint import CheckedConstraint, choose_allowed
from .request import GenerationRequest
from .sampling import Sampler
from .stream import Text, TokenStream, ends_with, turn_lost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ConstrainedStream(TokenStream):
    """New tokens that a constraint allows; see ``TokenStream``.

    Forced tokens come without a run, and go into the next one. Where the constraint ends the text,
    ``finish_reason`` is "constraint"; after a ConstraintError it is "closed".
    """

    def __init__(
        self,
        session: Text,
        request: GenerationRequest,
        sampler: Sampler,
        constraint: CheckedConstraint,
    ) -> None:
        """``sampler`` chooses among the tokens that are left."""
        super().__init__(session, request, sampler.choose)
        self._sampler = sampler
        self._constraint = constraint
        # Forced tokens that haven't been given out, and how many of those given out have been run.
        self._ahead: List[int] = []
        self._run: Optional[int] = None
        # What may come next, where a run gives logits of that alone.
        self._allowed: Optional[NDArray[np.bool_]] = None

    @property
    def logits(self) -> "Optional[NDArray[np.float32]]":
        """None, too, where those of other tokens than the allowed ones aren't there."""
        return None if self._allowed is not None else self._logits

    def run(self) -> bool:
        if self.finish_reason is not None or self._logits is not None:
            return False
        if self._runs is None:
            if self._run is not None:
                self._check_turn()
            if self._is_known():
                return False
            self._begin_runs()
        if self._runs is not None and self._run_chunk(self._runs):
            return True
        self._run = len(self.tokens)
        self.reused = min(self.reused, len(self._request.prompt))
        return False

    def single(self) -> Optional[int]:
        if super().single() is None or self._run is None or self._is_known():
            return None
        return self.tokens[-1] if self._run == len(self.tokens) - 1 else None

    def give(self, logits: "NDArray[np.float32]") -> None:
        super().give(logits)
        self._allowed = None  # asked before a run that failed; these are all
        self._run = len(self.tokens)

    def _is_known(self) -> bool:
        """Whether nothing needs to run: the constraint forces the next token, or the text is complete."""
        tokens, constraint = self.tokens, self._constraint
        try:
            if not self._ahead:
                if not tokens and constraint.ended():
                    return True
                left = self._request.max_new_tokens - len(tokens)
                self._ahead = constraint.forced()[:left]
        except ConstraintError:
            self.close()
            raise
        return bool(self._ahead)

    def _begin_runs(self) -> None:
        """Begins to run what hasn't been; a single token at once."""
        tokens, request, session = self.tokens, self._request, self._session
        if self._run is None:
            marks = (*request.marks, len(request.prompt)) if tokens else request.marks
            prompt = [*request.prompt, *tokens]
            self._runs = session.begin(self, request._replace(prompt=prompt, marks=marks))
            return
        if session.masks_logits:
            try:
                self._allowed = self._constraint.mask()
            except ConstraintError:
                self.close()
                raise
        if self._run == len(tokens) - 1:
            self._logits = session.advance(self, tokens[-1], self._allowed)
        else:
            begin = len(request.prompt) + self._run
            self._runs = session.advance_by(self, begin, tokens[self._run :], self._allowed)

    def __next__(self) -> int:
        if self.finish_reason is not None:
            raise StopIteration
        while self.run():
            pass
        if self.finish_reason is not None:  # closed between two chunks
            raise StopIteration
        try:
            token = self._take()
        except ConstraintError:
            self.close()
            raise
        if token is None:
            self.finish_reason = "constraint"
            raise StopIteration
        return token

    def _take(self) -> Optional[int]:
        """The next token, which the constraint knows then; None: the text is complete without any."""
        tokens, request, constraint = self.tokens, self._request, self._constraint
        if self._logits is not None:
            token = self._choose_token(self._logits)
        elif self._ahead:
            token = self._ahead.pop(0)
            self._sampler.add(token)
        else:
            return None
        self._allowed = None
        constraint.accept(token)
        tokens.append(token)
        if token in request.eos:
            self.finish_reason = "eos"
        elif token in request.stops and ends_with(tokens, request.stops[token]):
            self.finish_reason = "stop"
        elif not self._ahead and constraint.ended():
            self.finish_reason = "constraint"
        elif len(tokens) >= request.max_new_tokens:
            self.finish_reason = "length"
        return token

    def _choose_token(self, logits: "NDArray[np.float32]") -> int:
        allowed = self._constraint.mask() if self._allowed is None else self._allowed
        banned = (self._never, None if self.tokens else self._not_first)
        token = self._choose(choose_allowed(logits, allowed, banned))
        self._logits = None
        self._check_turn()
        return token

    def _check_turn(self) -> None:
        """Raises InputError where another text of the session has begun meanwhile."""
        if not self._session.has_turn(self):
            self.close()
            raise turn_lost()
