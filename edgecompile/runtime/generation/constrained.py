"""The stream of a constrained text, apart from the others: those take no longer for it."""

from typing import TYPE_CHECKING, List, Optional

from ..base.errors import ConstraintError
from .constraint import CheckedConstraint, choose_allowed
from .sampling import Sampler
from .stream import GenerationRequest, Text, TokenStream, ends_with, turn_lost

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

    def __next__(self) -> int:
        if self.finish_reason is not None:
            raise StopIteration
        if self._run is not None:
            self._check_turn()
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
        if not self._ahead:
            if not tokens and constraint.ended():
                return None
            self._ahead = constraint.forced()[: request.max_new_tokens - len(tokens)]
        if self._ahead:
            token = self._ahead.pop(0)
            self._sampler.add(token)
        else:
            token = self._choose_token()
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

    def _choose_token(self) -> int:
        logits = self._run_tokens()
        allowed = self._constraint.mask()
        banned = (self._never, None if self.tokens else self._not_first)
        token = self._choose(choose_allowed(logits, allowed, banned))
        self._check_turn()
        return token

    def _run_tokens(self) -> "NDArray[np.float32]":
        """Runs what hasn't been; the logits [vocabulary] behind the last token."""
        tokens, request, session = self.tokens, self._request, self._session
        if self._run is None:
            marks = (*request.marks, len(request.prompt)) if tokens else request.marks
            prompt = [*request.prompt, *tokens]
            logits = session.begin(self, request._replace(prompt=prompt, marks=marks))
            self.reused = min(self.reused, len(request.prompt))
        elif self._run == len(tokens) - 1:
            logits = session.advance(self, tokens[-1])
        elif self._run < len(tokens):
            logits = session.advance_by(self, tokens[self._run :])
        self._run = len(tokens)
        return logits

    def _check_turn(self) -> None:
        """Raises InputError where another text of the session has begun meanwhile."""
        if not self._session.has_turn(self):
            self.close()
            raise turn_lost()
