"""One text and its caches: runs tokens behind it, and keeps what they left.

Programs change the caches in place. Row i of keys and values belongs to token i of the text, so a text
that begins as the last one did needs only its new part to be run. A state of a fixed size can't go back, but
where a copy was kept: at the ends of prompts and answers. A text goes on from the longest of these that it begins with.
"""

import threading
import weakref
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

import numpy as np

from ..base.errors import GenerationError, InputError
from ..base.lifetime import Unique
from ..format.schema import AOTI_CPU, CAUSAL_LM, GPU_BACKENDS, RECURRENT_LM, TRITON, GenerationSpec
from ..open.bundle import OpenBundle
from .caches import Run, make_caches, rows_and_states
from .checkpoints import NO_CHECKPOINTS, Checkpoint, Checkpoints, CheckpointSettings
from .chunks import Chunk, ChunkPlanner, chunk_sizes
from .constrained import ConstrainedStream
from .constraint import CheckedConstraint
from .generator import Generator
from .lookup import LookupStream, Worth
from .options import Options
from .prefix import count_common, find_prefix
from .row_runs import RowRuns
from .sampling import Sampler
from .session_file import SessionFile, Snapshot
from .sources import read_source, run_encoder, same_source
from .stream import GenerationRequest, TokenStream, begin_text, make_generation_request, turn_lost
from .tried import Room, TriedTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..format.output import Path
    from .stream import Runs

_Session = TypeVar("_Session", bound="Session")
#: Tokens that must be run again to make it worth a run of its own to keep the states where two texts part.
_WORTH_A_RUN = 32


def open_session(
    bundle: OpenBundle, make: "Callable[[OpenBundle, GenerationSpec], _Session]"
) -> "_Session":
    """What ``make`` makes of a bundle that can generate here; see ``Model.session``."""
    spec, variant = bundle.manifest.generation, bundle.variant
    if spec is None:
        hint = "build it as a language model, for the task causal-lm"
        text = "{} is not a language model, so it cannot generate text"
        raise GenerationError(text.format(bundle.path), hint)
    on_gpu = variant.backend == TRITON and spec.kind == CAUSAL_LM
    if variant.backend in GPU_BACKENDS and not on_gpu:
        text = "the variant {} runs on a GPU, where {}"
        why = "caches can't be changed in place"
        if variant.backend == TRITON:
            why = "nothing generates with an encoder, or with states of a fixed size"
        raise GenerationError(text.format(variant.name, why), "name a variant for the CPU")
    if variant.backend != AOTI_CPU and not on_gpu:
        text = "the variant {} is run by {}, which this loop can't drive"
        text = text.format(variant.name, variant.backend)
        raise GenerationError(text, "name a variant of the native runtime")
    return make(bundle, spec)


class Session(Unique, Generator):
    """A conversation; made by ``Model.session``. Every method may be called from any thread.

    It takes the memory of its caches as the text grows, at most that of the whole context (on a GPU
    at once), and gives it back with itself. One text at a time: a new generation ends the one under way. What a text
    has in common with the one before isn't run (with states of a fixed size, up to a checkpoint); nor is an encoder
    for the same source.

    Attributes:
        worth: Whether runs for lookup pay; sessions of one model may share it.
        notes: Plain JSON values that were saved with it, such as the messages of a chat; None: none were.
    """

    def __init__(
        self,
        bundle: OpenBundle,
        spec: GenerationSpec,
        checkpoints: CheckpointSettings = NO_CHECKPOINTS,
    ) -> None:
        """Raises UnsupportedHostError, or GpuError, where there is no memory for the caches."""
        self._bundle = bundle
        self._spec = spec
        self._caches = caches = make_caches(bundle, spec)
        self._planner = ChunkPlanner(
            self._caches.manifest, spec, self._caches.rows_step, bundle.manifest
        )
        self._lock = threading.Lock()
        # A weak one, so that both go, and the caches, with the last who refers to them.
        self._turn: Optional[weakref.ReferenceType[TokenStream]] = None
        self._tokens: List[int] = []
        # Tokens that states of a fixed size stand behind; -1 during a run, and after one that failed.
        self._behind = 0
        self._states: Optional[Checkpoints] = None
        self._every = 0
        if spec.kind == RECURRENT_LM:
            states = rows_and_states(caches, spec)[1]
            self._states, self._every = Checkpoints(states, checkpoints), checkpoints.every
        self._prefix = find_prefix(bundle, spec, caches) if caches.arrays else None
        self.notes: Any = None
        self._rows: Optional[RowRuns] = None
        self._tried: Optional[TriedTokens] = None
        if spec.lookup > 1:
            self._rows = RowRuns(bundle, spec, caches, self._planner)
            self._tried = TriedTokens(self._rows, self._states)
        self.worth = Worth(spec.lookup, states=self._states is not None)
        vocabulary = bundle.manifest.outputs[0].shape[1]
        assert isinstance(vocabulary, int)
        self._ids = np.zeros((1, 1), np.int64)
        self._position = np.zeros(1, np.int64)
        self._last = np.zeros(1, np.int64)
        self._logits = np.zeros((1, vocabulary), np.float32)
        self._row: NDArray[np.float32] = self._logits[0]
        self._source: Optional[Dict[str, NDArray[Any]]] = None
        self._cross: Dict[str, NDArray[Any]] = {}
        # The axes that a source has a size along, for statistics.
        self._sized: Dict[str, int] = {}
        #: Tokens that are never chosen, and those that aren't the first one; None where any may be.
        self.suppressed = (_indices(spec.suppress), _indices(spec.suppress_first))
        self._step: Optional[Run] = None
        self._step_chunk = Chunk(0, 0, 0, 0)
        self._step_sizes = chunk_sizes(spec, self._step_chunk)

    @property
    def tokens(self) -> List[int]:
        """The text whose rows the caches hold."""
        with self._lock:
            return list(self._tokens)

    def save(self, path: "Path", notes: Any = None) -> str:
        """Writes the session to one file, from which ``Model.session(load=path)`` goes on, also elsewhere.

        The file is replaced at once. It serves this bundle with this variant alone.

        Args:
            path: Path of the file.
            notes: Plain JSON values to keep with it.

        Returns:
            The path, links resolved.

        Raises:
            InputError: it can't be written; the old file is still there. Or the model has an encoder, or runs on a GPU.
        """
        with self._lock:
            self._retract()
            for _ in self._run_again():
                pass
            file = SessionFile(self._bundle, self._spec, self._caches)
            tokens, items = list(self._tokens), []
            if self._states is not None:
                items = list(self._states.items)
                if self._behind > (items[-1].length if items else 0):
                    items.append(Checkpoint(self._behind, self._states.states))
                # After a run that failed no text can go on behind the last of them.
                del tokens[items[-1].length if items else 0 :]
            return file.write(path, Snapshot(tokens, items, notes))

    def load(self, path: "Path") -> None:
        """Reads what ``save`` wrote into a new session; raises InputError where it can't be used."""
        with self._lock:
            file = SessionFile(self._bundle, self._spec, self._caches)
            tokens, checkpoints, self.notes = file.read(path, self._states)
            if self._states is not None and checkpoints:
                self._states.restore(checkpoints[-1])
            self._tokens, self._behind = tokens, len(tokens)

    def _stream(
        self,
        input_ids: Any,
        decoder_input_ids: Any,
        options: Options,
        marks: Sequence[int] = (),
    ) -> TokenStream:
        # What the text has in common with the last one isn't run, nor an encoder for the same source.
        request = self.request(input_ids, decoder_input_ids, options)._replace(marks=tuple(marks))
        sampler = Sampler(request.sampling, request.prompt, request.max_new_tokens)
        if options.constraint is not None:
            constraint = CheckedConstraint(options.constraint, len(self._row))
            return ConstrainedStream(self, request, sampler, constraint)
        if options.lookup:
            return LookupStream(self, request, sampler.choose, self.worth)
        return TokenStream(self, request, sampler.choose)

    def request(
        self, input_ids: Any, decoder_input_ids: Any, options: Options
    ) -> GenerationRequest:
        """Checks the arguments of ``stream``; raises what that does."""
        bundle, spec = self._bundle, self._spec
        if bundle.encoder is None:
            if decoder_input_ids is not None:
                raise InputError(
                    "decoder_input_ids are for models with an encoder",
                    "give the whole text as input_ids",
                )
            return make_generation_request(bundle.manifest, input_ids, options)
        text = begin_text(spec, decoder_input_ids)
        request = make_generation_request(bundle.manifest, text, options)
        return request._replace(source=read_source(spec, bundle.encoder, input_ids))

    def begin(self, stream: TokenStream, request: GenerationRequest) -> "Runs":
        """Takes the text ``request.prompt`` over from the last one, and runs what is new of it.

        Returns:
            Its runs, a chunk at each step; in the end the logits [vocabulary] behind its last token,
            valid until the next call.
        """
        with self._lock:
            self._turn = turn = weakref.ref(stream)
        return self._in_turn(turn, self._begin(request))

    def _in_turn(self, turn: "weakref.ReferenceType[TokenStream]", runs: "Runs") -> "Runs":
        """Each step of ``runs`` by itself, as long as the text is still this stream's."""
        # No reference to the stream lies here: it refers to these runs itself.
        while True:
            with self._lock:
                if self._turn is not turn:
                    raise turn_lost()
                try:
                    next(runs)
                except StopIteration as end:
                    logits: NDArray[np.float32] = end.value
                    return logits
            yield

    def _begin(self, request: GenerationRequest) -> "Runs":
        self._retract()
        if request.source is not None:
            self._read(request.source)
        prompt = request.prompt
        self._take_prefix(prompt)
        common = count_common(prompt, self._tokens)
        if self._states is not None:
            return (yield from self._begin_from_states(self._states, request, common))
        prefix = min(common, len(prompt) - 1)
        del self._tokens[prefix:]
        self._note_reused(prefix)
        return (yield from self._extend(prompt[prefix:]))

    def _note_reused(self, count: int) -> None:
        stream = None if self._turn is None else self._turn()
        if stream is not None:
            stream.reused = count

    def _begin_from_states(
        self, states: Checkpoints, request: GenerationRequest, common: int
    ) -> "Runs":
        """``begin`` where states of a fixed size have to be put behind what isn't run."""
        prompt, length = request.prompt, len(request.prompt)
        prefix, found = self._find_states(states, common, length)
        if found is not None:
            self._behind = -1
            states.restore(found)
            self._behind = prefix
        elif prefix > 0:
            yield from self._run_again()
        states.cut(prefix)
        if prefix > 0:
            states.take(prefix)  # the end of an answer
        del self._tokens[prefix:]
        self._note_reused(prefix)
        if prefix == length:
            assert found is not None
            assert found.logits is not None
            self._row[...] = found.logits
            return self._row
        stops: Set[int] = set(request.marks)
        if common - prefix >= _WORTH_A_RUN:
            stops.add(common)
        if self._every:
            stops.update(range(self._every, length, self._every))
        for stop in sorted(stop for stop in stops if prefix < stop < length):
            yield from self._extend(prompt[prefix:stop])
            states.take(stop)
            prefix = stop
            yield
        logits = yield from self._extend(prompt[prefix:])
        states.take(length, logits)
        return logits

    def _read(self, source: "Dict[str, NDArray[Any]]") -> None:
        """Lets the encoder read a source, if it isn't the one before."""
        encoder = self._bundle.encoder
        assert encoder is not None
        if same_source(self._source, source):
            return
        # Nothing of another source's text is of use, and bound runs have its arrays.
        self._source, self._step = None, None
        self._tokens.clear()
        self._cross = run_encoder(self._spec, encoder, source)
        self._sized = {
            item.shape[0]: self._cross[item.name].shape[0]
            for item in self._bundle.manifest.inputs
            if item.name in self._cross and isinstance(item.shape[0], str)
        }
        self._source = source

    def _find_states(
        self, states: Checkpoints, common: int, length: int
    ) -> "Tuple[int, Optional[Checkpoint]]":
        """How much of a text of this ``length`` needn't be run, and the checkpoint for that, if one is needed."""
        found, behind = states.find(common, length), self._behind
        if 0 <= behind < len(self._tokens) or (self._tried is not None and self._tried.pending):
            behind = len(self._tokens)  # by a run of what was taken back
        prefix = behind if 0 <= behind <= min(common, length - 1) else 0
        return (
            (found.length, found) if found is not None and found.length > prefix else (prefix, None)
        )

    def count_gained(self, tokens: Sequence[int]) -> int:
        """How many more tokens of a prompt needn't be run than in a new session; waits for no run under way."""
        kept = self._count_kept(tokens, list(self._tokens))
        return max(0, kept - self._count_baked(tokens))

    def _count_baked(self, tokens: Sequence[int]) -> int:
        """How many tokens of a prompt are the bundle's own."""
        return 0 if self._prefix is None else self._prefix.count_usable(tokens)

    def _count_kept(self, tokens: Sequence[int], text: Sequence[int]) -> int:
        """How many tokens of a prompt the caches hold, where they hold ``text``."""
        common = count_common(tokens, text)
        if self._states is None:
            return min(common, len(tokens) - 1)
        return self._find_states(self._states, common, len(tokens))[0]

    def _take_prefix(self, prompt: Sequence[int]) -> None:
        """Begins the text as the bundle's own prompt does, where the caches hold less of the new one."""
        prefix = self._prefix
        count = 0 if prefix is None else prefix.count_usable(prompt)
        if prefix is None or count <= self._count_kept(prompt, self._tokens):
            return
        self._behind = -1
        self._tokens = prefix.tokens[:count]
        for array, rows in zip(rows_and_states(self._caches, self._spec)[0], prefix.rows):
            array[:count] = rows[:count]
        if self._states is not None:
            self._states.cut(0)
            self._states.restore(Checkpoint(count, prefix.states))
            self._states.take(count)
        self._behind = count

    def advance(self, stream: TokenStream, token: int) -> "NDArray[np.float32]":
        """Runs one token behind the text; the logits [vocabulary], valid until the next call.

        Raises:
            InputError: another generation of this session began meanwhile.
        """
        with self._lock:
            if not self.has_turn(stream):
                raise turn_lost()
            self._retract()
            row = len(self._tokens)
            if self._spec.kind == RECURRENT_LM and row != self._behind:
                if not 0 <= self._behind < row:
                    raise _states_lost()
                self._row[...] = self._try([token])[0]  # after what was taken back
                return self._row
            step = self._step
            if step is None or row >= self._step_chunk.rows:
                step = self._bind_step(row)
            self._ids[0, 0] = token
            self._position[0] = row
            self._behind = -1
            self._bundle.run_bound(step, self._step_chunk.bucket, self._step_sizes)
            self._tokens.append(token)
            self._behind = row + 1
            if self._every and self._states is not None and self._behind % self._every == 0:
                self._states.take(self._behind)
            return self._row

    def advance_by(self, stream: TokenStream, begin: int, tokens: List[int]) -> "Runs":
        """Runs several tokens behind the text's first ``begin``, as a prompt's."""
        return self._in_turn(weakref.ref(stream), self._advance_by(begin, tokens))

    def _advance_by(self, begin: int, tokens: List[int]) -> "Runs":
        self._retract()
        if self._spec.kind == RECURRENT_LM and begin != self._behind:
            raise _states_lost()
        if self._states is not None:
            return (yield from self._extend_states(self._states, tokens))
        del self._tokens[begin:]  # of an attempt that was interrupted between two chunks
        try:
            return (yield from self._extend(tokens))
        except (Exception, KeyboardInterrupt):
            del self._tokens[begin:]  # all of them can be run again
            raise

    def _extend_states(self, states: Checkpoints, tokens: Sequence[int]) -> "Runs":
        """Runs tokens behind the text, and keeps states at every so many tokens."""
        begin, every = len(self._tokens), self._every
        end = begin + len(tokens)
        for stop in range(begin + every - begin % every, end, every) if every else ():
            yield from self._extend(tokens[len(self._tokens) - begin : stop - begin])
            states.take(stop)
            yield
        logits = yield from self._extend(tokens[len(self._tokens) - begin :])
        if every and end % every == 0:
            states.take(end)
        return logits

    @contextmanager
    def lent(self, stream: TokenStream) -> "Iterator[Session]":
        """Its caches, while somebody else runs one token of the stream's text."""
        with self._lock:
            if not self.has_turn(stream):
                raise turn_lost()
            self._retract()
            yield self

    @property
    def addresses(self) -> "NDArray[np.int64]":
        """Where the caches lie in memory."""
        return self._caches.addresses

    @property
    def row(self) -> int:
        """The row of the next token."""
        return len(self._tokens)

    def took(self, token: int, logits: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Takes a token that was run while the session was lent; its own copy of the logits behind it."""
        self._tokens.append(token)
        self._behind = len(self._tokens)
        self._row[...] = logits
        return self._row

    def room(self, stream: TokenStream) -> Room:
        """How many tokens can be tried with the next one; takes back those that weren't confirmed."""
        with self._lock:
            if not self.has_turn(stream):
                raise turn_lost()
            self._retract()
            length, end = len(self._tokens), self._spec.max_context
            begin = length
            if self._states is not None:
                begin = self._behind if self._behind >= 0 else length  # lost: the next run says so
                if self._every:
                    end = min(end, begin - begin % self._every + self._every)
            return Room(min(end, begin + self._spec.lookup) - length - 1, length - begin)

    def try_tokens(self, stream: TokenStream, tokens: Sequence[int]) -> "NDArray[np.float32]":
        """Runs a token behind the text, and further ones that may not be the text's; see ``confirm``.

        Returns:
            The logits [tokens, vocabulary] behind each, valid until the next call.

        Raises:
            InputError: another generation of this session began meanwhile.
        """
        with self._lock:
            if not self.has_turn(stream):
                raise turn_lost()
            return self._try(tokens)

    def confirm(self, stream: TokenStream) -> bool:
        """Takes the first token that was only tried into the text; the others are taken back with the next run.

        Returns:
            Whether there was one: saving the session takes them back, too.
        """
        with self._lock:
            if not self.has_turn(stream):
                raise turn_lost()
            tried = self._tried
            if tried is None or not tried.left:
                return False
            self._tokens.append(tried.left.pop(0))
            self._settle(tried)
            return True

    def _try(self, tokens: Sequence[int]) -> "NDArray[np.float32]":
        self._retract()
        tried, begin = self._tried, len(self._tokens)
        assert tried is not None
        if self._states is not None:
            if not 0 <= self._behind <= begin:
                raise _states_lost()
            begin = self._behind
        self._behind = -1
        logits = tried.run(self._tokens, begin, tokens)
        self._tokens.append(tokens[0])
        self._settle(tried)
        return logits

    def _settle(self, tried: TriedTokens) -> None:
        """Takes the states for the text's, once all that was tried is in it."""
        if not tried.settle():
            return
        self._behind = len(self._tokens)
        if self._every and self._states is not None and self._behind % self._every == 0:
            self._states.take(self._behind)

    def _retract(self) -> None:
        """Puts the states back before a run whose tokens aren't all in the text."""
        behind = None if self._tried is None else self._tried.retract()
        if behind is not None:
            self._behind = behind

    def _run_again(self) -> "Runs":
        """Puts states that were taken back behind the text's last token."""
        if self._states is not None and 0 <= self._behind < len(self._tokens):
            again = self._tokens[self._behind :]
            del self._tokens[self._behind :]
            yield from self._extend(again)
        return self._row

    def has_turn(self, stream: TokenStream) -> bool:
        """Whether the text is still this stream's, and so the logits that it got."""
        return self._turn is not None and self._turn() is stream

    def _extend(self, tokens: Sequence[int]) -> "Runs":
        done = 0
        while done < len(tokens):
            if done:
                yield
            row = len(self._tokens)
            chunk = self._planner.next_chunk(row, len(tokens) - done)
            if self._rows is not None and self._rows.takes(chunk.taken):
                part = tokens[done : done + chunk.taken]
                self._behind = -1
                self._row[...] = self._rows.run(row, part)[-1]
                self._tokens.extend(part)
                self._behind = len(self._tokens)
                done += chunk.taken
                continue
            ids = np.full((1, chunk.length), self._spec.pad, np.int64)
            part = tokens[done : done + chunk.taken]
            ids[0, : chunk.taken] = part
            position = np.array([row], np.int64)
            last = np.array([chunk.taken - 1], np.int64)
            self._behind = -1
            self._bundle.run_bound(
                self._bind(chunk, ids, position, last),
                chunk.bucket,
                {**chunk_sizes(self._spec, chunk), **self._sized},
            )
            self._tokens.extend(part)
            self._behind = len(self._tokens)
            done += chunk.taken
        return self._row

    def _bind_step(self, row: int) -> Run:
        """The run of one token, over arrays that stay; the same until the text outgrows its view."""
        chunk = self._planner.next_chunk(row, 1)
        if chunk.length != 1:
            self._ids = np.full((1, chunk.length), self._spec.pad, np.int64)
        step = self._bind(chunk, self._ids, self._position, self._last)
        self._step, self._step_chunk = step, chunk
        self._step_sizes = {**chunk_sizes(self._spec, chunk), **self._sized}
        return step

    def _bind(
        self,
        chunk: Chunk,
        ids: "NDArray[np.int64]",
        position: "NDArray[np.int64]",
        last: "NDArray[np.int64]",
    ) -> Run:
        spec = self._spec
        inputs = {spec.input: ids, spec.position: position, spec.last: last, **self._cross}
        return self._caches.bind(chunk, inputs, self._logits)


def _states_lost() -> InputError:
    return InputError("a run of this text failed, and its states are lost", "begin the text anew")


def _indices(tokens: Sequence[int]) -> "Optional[NDArray[np.int64]]":
    return np.array(tokens, np.int64) if tokens else None
