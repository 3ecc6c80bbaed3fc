"""The text whose tokens the caches hold.

Programs change the caches in place. Row i of keys and values belongs to token i of the text, so a text
that begins as the last one did needs only its new part to be run. A state of a fixed size can't go back, but
where a copy was kept: at the ends of prompts and answers. A text goes on from the longest of these that it begins with.
Nor can caches with windows, but to where the rows were kept that are seen from there.
"""

import sys
from typing import TYPE_CHECKING, Callable, Generator, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import InputError
from ..format.manifest.schema import RECURRENT_LM, GenerationSpec
from ..open.bundle import OpenBundle
from .caches import Caches, rows_and_states, windows_of
from .checkpoints import Checkpoint, Checkpoints, CheckpointSettings
from .chunk_runs import ChunkRuns
from .places import Places
from .prefix import count_common, find_prefix
from .tried import Room, TriedTokens
from .windows import places_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .chunk_runs import Wanted
    from .request import GenerationRequest

    #: Runs of chunks, one at each step; in the end the logits [vocabulary] behind the last one.
    Runs = Generator[None, None, NDArray[np.float32]]

#: Tokens that must be run again to make it worth a run of its own to keep the states where two texts part.
_WORTH_A_RUN = 32


class CachedText:
    """A text and what its tokens left in the caches. One thread at a time calls it.

    Attributes:
        tokens: Tokens whose rows the caches hold.
        states: States of a fixed size with their checkpoints; None: the model has none.
        prefix: The bundle's own prompt; None: it has none.
        vocabulary: Number of logits.
    """

    def __init__(
        self,
        bundle: OpenBundle,
        spec: GenerationSpec,
        caches: Caches,
        checkpoints: CheckpointSettings,
    ) -> None:
        self._spec, self._caches = spec, caches
        self._runs = ChunkRuns(bundle, spec, caches)
        self._logits, self.vocabulary = self._runs.logits, len(self._runs.logits)
        self.tokens: List[int] = []
        # Tokens that states of a fixed size stand behind; -1 during a run, and after one that failed.
        self._behind = 0
        # What later texts may go back to, with states or windows; elsewhere every row serves.
        self._windows = caches.windows
        self._kept: Optional[Checkpoints] = None
        states = rows_and_states(caches, spec)[1] if spec.kind == RECURRENT_LM else []
        if self._windows is not None:
            self._kept = Places(self._windows, checkpoints, states)
        elif states:
            self._kept = Checkpoints(states, checkpoints)
        self.states = self._kept if states else None
        self._every = 0 if self._kept is None else checkpoints.every
        # Those that are kept once they are run, and one that is kept as long as it may be needed.
        self._marks: List[int] = []
        self._held = 0
        # The row behind which something has to be kept, or can be given back.
        self._due = sys.maxsize
        self._set_due()
        self.prefix = find_prefix(bundle, spec, caches) if caches.arrays else None
        self._tried: Optional[TriedTokens] = None
        if spec.lookup > 1:
            self._tried = TriedTokens(self._runs, self.states)

    @property
    def row(self) -> int:
        """The row of the next token."""
        return len(self.tokens)

    def lend(self) -> "NDArray[np.int64]":
        """The addresses of the caches, for another program to run the next token over them.

        ``mark_lost`` comes before that run, ``take`` behind it.

        Raises:
            InputError: states of a fixed size don't stand behind the text's last token.
        """
        self.retract()
        if self.states is not None and self._behind != self.row:
            raise _states_lost()
        return self._caches.addresses

    def mark_lost(self) -> None:
        """Says that states of a fixed size stand nowhere: a run of somebody else begins, and may fail."""
        self._behind = -1

    def take(self, token: int, logits: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Takes a token that was run while the caches were lent; its own copy of the logits behind it."""
        self._took([token])
        self._keep_states()
        self._logits[...] = logits
        return self._logits

    def _took(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self._behind = len(self.tokens)
        self._give_back()

    def _keep_states(self) -> None:
        if self._every and self.states is not None and self._behind % self._every == 0:
            self.states.take(self._behind)
        self._give_back()

    def _give_back(self) -> None:
        """Gives back rows that are seen neither from the text's end nor from places that are kept."""
        windows, kept, row = self._windows, self._kept, self.row
        if windows is not None and kept is not None:
            while self._marks and self._marks[0] <= row:
                kept.take(self._marks.pop(0))
            if self.states is None and self._every and row % self._every == 0:
                kept.take(row)
            if row >= windows.due:
                windows.give_back(row, [self._held, *(item.length for item in kept.items)])
        self._set_due()

    def _set_due(self) -> None:
        due = sys.maxsize if self._windows is None else self._windows.due
        if self._every:
            due = min(due, self.row - self.row % self._every + self._every)
        self._due = due - 1

    def _cut(self, length: int) -> None:
        """Lets the text go on behind its first ``length`` tokens, a place that is kept."""
        windows = self._windows
        if windows is not None and (length < self.row or windows.places[-1][0] > length):
            windows.go_back(length)
        del self.tokens[length:]
        self._set_due()

    def snapshot(self) -> Tuple[List[int], List[Checkpoint]]:
        """The tokens that another text can go on behind, and the checkpoints, with the states as the last one."""
        self.retract()
        for _ in self._run_again():
            pass
        tokens, items = list(self.tokens), []
        if self.states is not None:
            items = list(self.states.items)
            if self._behind > (items[-1].length if items else 0):
                items.append(Checkpoint(self._behind, self.states.states))
            # After a run that failed no text can go on behind the last of them.
            del tokens[items[-1].length if items else 0 :]
        return tokens, items

    def restore(self, tokens: List[int], checkpoints: Sequence[Checkpoint]) -> None:
        """Takes the tokens whose rows the caches hold now, and states of a checkpoint behind them."""
        if self.states is not None and checkpoints:
            self.states.restore(checkpoints[-1])
            self.states.hold(item.length for item in self.states.items)
        self.tokens, self._behind = tokens, len(tokens)
        if self.states is None and self._kept is not None and self._windows is not None:
            lengths = [last for _, last in self._windows.places[:-1]]
            self._kept.hold([*lengths, len(tokens)])
            for length in lengths:
                self._kept.take(length)
        self._set_due()

    def begin(self, request: "GenerationRequest", note: Callable[[int], None]) -> "Runs":
        """Takes the text ``request.prompt`` over from the last one, and runs what is new of it.

        ``note`` gets the number of tokens that needn't be run.
        """
        try:
            return (yield from self._begin(request, note))
        finally:
            self._runs.give_back()

    def _begin(self, request: "GenerationRequest", note: Callable[[int], None]) -> "Runs":
        self.retract()
        if request.source is not None and self._runs.read(request.source):
            self.tokens.clear()  # nothing of another source's text is of use
        prompt = request.prompt
        self._take_prefix(prompt)
        common = count_common(prompt, self.tokens)
        if self.states is not None:
            return (yield from self._begin_from_states(self.states, request, common, note))
        prefix, length = self._find_rows(min(common, len(prompt) - 1)), len(prompt)
        self._cut(prefix)
        note(prefix)
        if self._kept is not None:
            marks = list(_marks_of(request, common, prefix))
            self._kept.hold([prefix, *(mark for mark in marks if prefix < mark < length), length])
            self._keep_end(self._kept)
            self._held, self._marks = 0, [*self._stops(marks, length), length]
        return (yield from self._extend(prompt[prefix:]))

    def _begin_from_states(
        self,
        states: Checkpoints,
        request: "GenerationRequest",
        common: int,
        note: Callable[[int], None],
    ) -> "Runs":
        """``_begin`` where states of a fixed size have to be put behind what isn't run."""
        prompt, length = request.prompt, len(request.prompt)
        prefix, found = self._find_states(states, common, length)
        if found is not None:
            self._behind = -1
            states.restore(found)
            self._behind = prefix
        elif prefix > 0:
            yield from self._run_again()
        marks = list(_marks_of(request, common, prefix))
        self._cut(prefix)
        states.hold([prefix, *(mark for mark in marks if prefix < mark < length), length])
        self._keep_end(states)
        note(prefix)
        if prefix == length:
            assert found is not None
            assert found.logits is not None
            self._logits[...] = found.logits
            return self._logits
        logits = yield from self._extend_states(states, prompt[prefix:], marks)
        states.take(length, logits)
        return logits

    def _keep_end(self, kept: Checkpoints) -> None:
        """Keeps the text's end, which is that of an answer, and nothing behind it."""
        kept.cut(self.row)
        if self.row > 0:
            kept.take(self.row)

    def _find_rows(self, most: int) -> int:
        """The number of the text's tokens, at most ``most``, after which the kept rows let a text go on."""
        return most if self._windows is None else self._windows.find(most)

    def _find_states(
        self, states: Checkpoints, common: int, length: int
    ) -> Tuple[int, Optional[Checkpoint]]:
        """The number of tokens of a text of this ``length`` that needn't be run, and the checkpoint for it, if needed."""
        found, behind = states.find(common, length), self._behind
        if 0 <= behind < len(self.tokens) or (self._tried is not None and self._tried.pending):
            behind = len(self.tokens)  # by a run of what was taken back
        prefix = behind if 0 <= behind <= min(common, length - 1) else 0
        return (
            (found.length, found) if found is not None and found.length > prefix else (prefix, None)
        )

    def count_kept(self, prompt: Sequence[int], text: Sequence[int]) -> int:
        """The number of a prompt's tokens in the caches, if these hold ``text``."""
        common = count_common(prompt, text)
        if self.states is None:
            return self._find_rows(min(common, len(prompt) - 1))
        return self._find_states(self.states, common, len(prompt))[0]

    def count_baked(self, prompt: Sequence[int]) -> int:
        """The number of a prompt's tokens that belong to the bundle's own prompt."""
        return 0 if self.prefix is None else self.prefix.count_usable(prompt)

    def _take_prefix(self, prompt: Sequence[int]) -> None:
        """Begins the text as the bundle's own prompt does, where the caches hold less of the new one."""
        prefix, count = self.prefix, self.count_baked(prompt)
        if prefix is None or count <= self.count_kept(prompt, self.tokens):
            return
        self._behind = -1
        self._cut(0)
        self.tokens = prefix.tokens[:count]
        if self._windows is not None:
            self._windows.start_behind(count)
        places = places_of(self._windows, count)
        caches = rows_and_states(self._caches, self._spec)[0], windows_of(self._caches, self._spec)
        for array, window, rows in zip(*caches, prefix.rows):
            for begin, end in rows_of(places, window, count):
                array[begin:end] = rows[begin:end]
        if self._kept is not None:
            self._kept.cut(0)
            self._kept.restore(Checkpoint(count, prefix.states))
            self._kept.take(count)
        self._behind = count

    def advance(self, token: int, wanted: "Wanted" = None) -> "NDArray[np.float32]":
        """Runs one token behind the text.

        Returns:
            The logits [vocabulary], valid until the next run; those that aren't wanted mean nothing.
        """
        if self._tried is not None:
            self.retract()
        row = len(self.tokens)
        if self.states is not None and row != self._behind:
            if not 0 <= self._behind < row:
                raise _states_lost()
            self._logits[...] = self.try_tokens([token])[0]  # after what was taken back
            return self._logits
        self._behind = -1
        self._runs.run_rows(row, [token], wanted)
        self.tokens.append(token)
        self._behind = row + 1
        if row >= self._due:
            self._keep_states()
        return self._logits

    def advance_by(self, begin: int, tokens: List[int], wanted: "Wanted" = None) -> "Runs":
        """Runs several tokens behind the text's first ``begin``, as a prompt's; see ``advance``."""
        self.retract()
        if self.states is not None:
            if begin != self._behind:
                raise _states_lost()
            logits = yield from self._extend_states(self.states, tokens, wanted=wanted)
            self._keep_states()
            return logits
        self._cut(begin)  # of an attempt that was interrupted between two chunks
        self._held, self._marks = begin, self._stops((), begin + len(tokens))
        try:
            return (yield from self._extend(tokens, wanted))
        except (Exception, KeyboardInterrupt):
            self._cut(begin)  # all of them can be run again
            raise

    def _extend_states(
        self,
        states: Checkpoints,
        tokens: Sequence[int],
        marks: Iterable[int] = (),
        wanted: "Wanted" = None,
    ) -> "Runs":
        """Runs tokens behind the text, and keeps states within them: at marks, and at every so many tokens."""
        begin = self.row
        for stop in self._stops(marks, begin + len(tokens)):
            yield from self._extend(tokens[self.row - begin : stop - begin])
            states.take(stop)
            yield
        return (yield from self._extend(tokens[self.row - begin :], wanted))

    def _stops(self, marks: Iterable[int], end: int) -> List[int]:
        """The places between the text's end and another one that are to be kept: marks, and those at every so many tokens."""
        begin, every = self.row, self._every
        stops = {*marks, *(range(begin - begin % every, end, every) if every else ())}
        return sorted(stop for stop in stops if begin < stop < end)

    def _extend(self, tokens: Sequence[int], wanted: "Wanted" = None) -> "Runs":
        done = 0
        while done < len(tokens):
            if done:
                yield
            chunk = self._runs.planner.next_chunk(self.row, len(tokens) - done)
            part = tokens[done : done + chunk.taken]
            self._behind = -1
            self._runs.run(self.row, chunk, part, wanted)
            self._took(part)
            done += chunk.taken
        return self._logits

    def room(self) -> Room:
        """The room for tokens to try with the next one; takes back tokens that weren't confirmed."""
        self.retract()
        length, end = self.row, self._spec.max_context
        begin = length
        if self.states is not None:
            begin = self._behind if self._behind >= 0 else length  # lost: the next run says so
            if self._every:
                end = min(end, begin - begin % self._every + self._every)
        return Room(min(end, begin + self._spec.lookup) - length - 1, length - begin)

    def try_tokens(self, tokens: Sequence[int]) -> "NDArray[np.float32]":
        """Runs a token behind the text, and further ones that may not be the text's; see ``confirm``.

        Returns:
            The logits [tokens, vocabulary] behind each, valid until the next call.
        """
        self.retract()
        tried, begin = self._tried, self.row
        assert tried is not None
        if self.states is not None:
            if not 0 <= self._behind <= begin:
                raise _states_lost()
            begin = self._behind
        self._behind = -1
        logits = tried.run(self.tokens, begin, tokens)
        self._settle(tried, tokens[0])
        return logits

    def confirm(self) -> bool:
        """Takes the first token that was only tried into the text; the others are taken back with the next run.

        Returns:
            Whether there was one: ``snapshot`` takes them back, too.
        """
        tried = self._tried
        if tried is None or not tried.left:
            return False
        self._settle(tried, tried.left.pop(0))
        return True

    def _settle(self, tried: TriedTokens, token: int) -> None:
        """Takes a token; and the states for the text's, once all that was tried is in it."""
        self.tokens.append(token)
        if tried.settle():
            self._behind = self.row
            self._keep_states()
        else:
            self._give_back()

    def retract(self) -> None:
        """Puts the states back before a run whose tokens aren't all in the text."""
        behind = None if self._tried is None else self._tried.retract()
        if behind is not None:
            self._behind = behind

    def _run_again(self) -> "Runs":
        """Puts states that were taken back behind the text's last token."""
        if self.states is not None and 0 <= self._behind < self.row:
            again = self.tokens[self._behind :]
            del self.tokens[self._behind :]
            yield from self._extend(again)
        return self._logits


def _marks_of(request: "GenerationRequest", common: int, prefix: int) -> Iterable[int]:
    """Places in a prompt that later texts may go back to: those asked for, and where two texts part."""
    return {*request.marks, common} if common - prefix >= _WORTH_A_RUN else request.marks


def _states_lost() -> InputError:
    return InputError("a run of this text failed, and its states are lost", "begin the text anew")
