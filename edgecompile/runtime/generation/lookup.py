"""Runs of several tokens that were found in the text so far: no token changes, some come without a run of their own.

What follows the latest place that reads as the end of the text does is tried: one run gives the logits behind
each of its tokens, bit for bit those of single steps. As long as the tokens that are chosen from them are those that were
tried, the next logits are there already.
"""

import threading
import time
import weakref
from typing import TYPE_CHECKING, List, Optional, Sequence, Set, Tuple

import numpy as np

from .request import GenerationRequest
from .stream import Text, TokenStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle
    from .stream import Choose

#: The share that the latest figure has in a rolling one.
_LATEST = 0.1
#: How often a tried token is right at first, by how many tokens in front of it stood before, too: the last is for more.
_RIGHT = 0.5, 0.25, 0.5, 0.6, 0.9
#: What a refusal leaves of a run's cost for its text.
_FORGOTTEN = 0.998


class Costs:
    """Nanoseconds of a text's runs by their number of tokens. Those of earlier texts are what it begins with.

    Attributes:
        ns: By number of tokens; 0: not known yet. Those between two measured ones lie on a line.
    """

    def __init__(self, most: int, start: "Optional[Costs]" = None) -> None:
        """``most`` is the number of tokens of the longest run; ``start`` gets what this text measures, too."""
        self.ns = [0.0] * (most + 1)
        self._start = start
        # Lists, as texts of several threads use them at once.
        self._measured = [0.0] * (most + 1)
        self._run: Set[int] = set() if start is None else start._run
        self._fill()

    def note(self, tokens: int, ns: float) -> None:
        """Takes up the time of a run; not of the first, which loads its program."""
        if tokens not in self._run:
            self._run.add(tokens)
            return
        if self._start is not None:
            self._start._take(tokens, ns)
        self._take(tokens, ns)
        self._fill()

    def _take(self, tokens: int, ns: float) -> None:
        cost = self._known(tokens)
        self._measured[tokens] = ns if cost == 0 else cost + _LATEST * (ns - cost)

    def _known(self, tokens: int) -> float:
        """The measured figure of this text, or of those before it; 0: there is none."""
        if self._measured[tokens] or self._start is None:
            return self._measured[tokens]
        return self._start._known(tokens)

    def _fill(self) -> None:
        known = [count for count in range(len(self._measured)) if self._known(count)]
        if known[:1] == [1]:
            counts, values = range(1, known[-1] + 1), [self._known(count) for count in known]
            self.ns[1 : len(counts) + 1] = np.interp(counts, known, values).tolist()


#: Of bundles, which may have many sessions.
_costs: "weakref.WeakKeyDictionary[OpenBundle, Costs]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def costs_of(bundle: "OpenBundle", most: int) -> Costs:
    """The costs that texts of an opened bundle begin with: one text is too short to measure all of them.

    Its longest run has ``most`` tokens.
    """
    with _lock:
        return _costs.setdefault(bundle, Costs(most))


class Worth:
    """Whether runs of several tokens pay, by their measured times and by how often a tried token is the next one.

    Nothing here changes a token.
    """

    def __init__(self, costs: Costs, *, states: bool = False) -> None:
        """Args:
        costs: what the text's own costs begin with.
        states: whether there are states, so that what was right goes in again behind a wrong token.
        """
        self._states = states
        self.costs = Costs(len(costs.ns) - 1, costs)
        # What refusals left of the cost of each number of tokens, so that a run that was slow once is tried again.
        self._left = [1.0] * len(costs.ns)
        #: The shares of tried tokens that were right, by how many tokens in front of them stood before, too.
        self.right = list(_RIGHT)

    def note_token(self, right: bool, matched: int = len(_RIGHT)) -> None:
        """Takes up whether a token was the one that the text would have tried behind ``matched`` ones."""
        matched = min(matched, len(_RIGHT) - 1)
        self.right[matched] += _LATEST * (right - self.right[matched])

    def choose(self, most: int, again: int = 0, matched: int = len(_RIGHT)) -> int:
        """The number of tokens, at most ``most``, to try after the next one; 0: trying doesn't pay.

        The run has ``again`` tokens of the text in front of these. The last ``matched`` ones stood before.
        """
        if self.costs.ns[1] == 0:
            return 0
        count = self.weigh(most, again, matched)[0]
        for tokens in range(again + count + 2, again + most + 2):
            self._left[tokens] *= _FORGOTTEN
        return count

    def note_run(self, tokens: int, ns: float) -> None:
        """Takes up the time of a run with tried tokens. Its refusals are forgotten, and those of shorter ones."""
        self.costs.note(tokens, ns)
        self._left[: tokens + 1] = [1.0] * (tokens + 1)

    def weigh(
        self, most: int, again: int = 0, matched: int = len(_RIGHT)
    ) -> Tuple[int, float, float]:
        """What ``choose`` says, and the run's nanoseconds and how many tokens it gives, both as expected.

        0 nanoseconds: a run of one token wasn't measured yet.
        """
        ns = self.costs.ns
        single, costs = ns[1], ns[again + 1 :]
        best = 0, costs[0] or single, 1.0
        made, chance, later = 1.0, 1.0, 0.0
        for more in range(1, most + 1 if single else 1):
            right = self.right[min(matched + more, len(_RIGHT)) - 1]
            if self._states:
                # Of the next run, where this token is the first wrong one.
                longer = max(0.0, (ns[more + 1] or single) - single)
                later += chance * (1 - right) * longer
            chance *= right
            made += chance
            # What wasn't measured yet counts as a step: it is tried once.
            cost = (costs[more] or single) * self._left[again + more + 1] + later
            if cost / made < best[1] / best[2]:
                best = more, cost, made
        return best


class Draft:
    """The tokens of a text, and what may come next by what came before."""

    def __init__(self, prompt: Sequence[int], room: int) -> None:
        """``room`` is how many tokens can follow the prompt at most."""
        self._ids = np.empty(len(prompt) + room, np.int64)
        self._ids[: len(prompt)] = prompt
        self._prompt = self._count = len(prompt)
        #: How many of the last tokens stood in front of what was found, up to 4.
        self.matched = len(_RIGHT) - 1

    def follow(self, tokens: Sequence[int]) -> None:
        """Takes all tokens that follow the prompt so far."""
        self._ids[self._count : self._prompt + len(tokens)] = tokens[self._count - self._prompt :]
        self._count = self._prompt + len(tokens)

    def find(self, most: int) -> List[int]:
        """Up to ``most`` tokens that followed where the last four stood before; else three, two or one."""
        ids, count = self._ids, self._count
        if count < 2 or most < 1:
            return []
        places = np.flatnonzero(ids[: count - 1] == ids[count - 1])
        self.matched = 1
        for back in range(2, len(_RIGHT)):
            longer = places[places >= back - 1] if count >= back else places[:0]
            longer = longer[ids[longer - (back - 1)] == ids[count - back]]
            if not longer.size:
                break
            places, self.matched = longer, back
        if not places.size:
            return []
        begin = int(places[-1]) + 1
        # Behind the end of the text it goes on as it did from there.
        tokens: List[int] = ids[begin + np.arange(most) % (count - begin)].tolist()
        return tokens


class LookupStream(TokenStream):
    """New tokens, of which some come from a run of several; see ``TokenStream``."""

    def __init__(
        self, session: Text, request: GenerationRequest, choose: "Choose", worth: Worth
    ) -> None:
        """``worth`` says whether a run of several tokens pays; it may know earlier texts."""
        super().__init__(session, request, choose)
        self._worth = worth
        self._draft = Draft(request.prompt, request.max_new_tokens)
        # What was tried and the logits behind it, as far as neither was used; and what may come next.
        self._tried: List[int] = []
        self._rows: List[NDArray[np.float32]] = []
        # Each with how many tokens in front of it stood before.
        self._expected: List[Tuple[int, int]] = []
        self._noted = 0  # tokens, when the last one was compared with what was expected

    @property
    def ahead(self) -> int:
        return len(self._rows)

    def single(self) -> Optional[int]:
        token = super().single()
        if token is None or self._tried[:1] == [token]:
            return None
        with self._session.lent(self) as text:
            # Tokens that were taken back are run with it.
            return None if text.room().again else token

    def tries(self) -> Optional[Tuple[float, float]]:
        found, again = self._find()
        matched = self._draft.matched
        self._expect(found[:1])
        if not found:
            return None
        count = self._worth.choose(len(found), again, matched)
        _, ns, tokens = self._worth.weigh(len(found), again, matched)
        # Where a run of one token wasn't measured yet, it counts as none: it has to run alone for that.
        return (ns / 1e9, tokens) if count or ns == 0 else None

    def give(self, logits: "NDArray[np.float32]") -> None:
        super().give(logits)
        # The run took back what was tried.
        self._tried, self._rows = [], []
        if self._noted != len(self.tokens):
            self._expected = []  # of the token before, which nobody compared

    def _find(self) -> Tuple[List[int], int]:
        """What may follow the last token, and how many tokens of the text go into that run again."""
        self._note()
        left = self._request.max_new_tokens - len(self.tokens)
        # The last token of the text needn't be run.
        with self._session.lent(self) as text:
            most, again = text.room()
        return self._draft.find(max(min(most, left - 1), 0)), again

    def _note(self) -> None:
        """Compares the last token with the one that was expected, once."""
        if self._noted == len(self.tokens):
            return
        self._noted = len(self.tokens)
        self._draft.follow(self.tokens)
        if self._expected:
            token, matched = self._expected.pop(0)
            self._worth.note_token(self.tokens[-1] == token, matched)

    def _expect(self, tokens: Sequence[int]) -> None:
        """Keeps what may come next until it is compared."""
        self._expected = [(token, self._draft.matched + at) for at, token in enumerate(tokens)]

    def _advance(self) -> "NDArray[np.float32]":
        token, worth = self.tokens[-1], self._worth
        self._note()
        if self._tried and self._tried[0] == token:
            with self._session.lent(self) as text:
                if text.confirm():
                    del self._tried[0]
                    return self._rows.pop(0).copy()  # who saves the session may run the rows again
        self._tried, self._rows = [], []
        found, again = self._find()
        self._expect(found[:1])
        count = worth.choose(len(found), again, self._draft.matched)
        started = time.perf_counter_ns()
        if count == 0:
            logits = super()._advance()
            worth.costs.note(again + 1, time.perf_counter_ns() - started)
            return logits
        tokens = [token, *found[:count]]
        with self._session.lent(self) as text:
            rows = text.try_tokens(tokens)
        worth.note_run(again + len(tokens), time.perf_counter_ns() - started)
        self._tried, self._rows = tokens[1:], list(rows[1:])
        self._expect(self._tried)
        first: NDArray[np.float32] = rows[0].copy()
        return first
