"""A conversation: texts one after the other over the same caches, each as a stream of its new tokens."""

import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Sequence, TypeVar

import numpy as np

from ..base.errors import GenerationError, InputError
from ..base.lifetime import Unique
from ..format.manifest.schema import AOTI_CPU, CAUSAL_LM, GPU_BACKENDS, TRITON, GenerationSpec
from ..open.bundle import OpenBundle
from .cached_text import CachedText
from .caches import make_caches
from .checkpoints import NO_CHECKPOINTS, CheckpointSettings
from .constrained import ConstrainedStream
from .constraint import CheckedConstraint
from .generator import Generator
from .lookup import LookupStream, Worth, costs_of
from .options import Options
from .request import GenerationRequest, begin_text, make_generation_request
from .sampling import Sampler
from .session_file import SessionFile, Snapshot
from .sources import read_source
from .stream import TokenStream, turn_lost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..format.output import Path
    from .cached_text import Runs
    from .chunk_runs import Wanted

_Session = TypeVar("_Session", bound="Session")


def open_session(
    bundle: OpenBundle, make: "Callable[[OpenBundle, GenerationSpec], _Session]"
) -> "_Session":
    """The result of ``make`` for a bundle that can generate here; see ``Model.session``."""
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
        worth: Whether runs for lookup pay; it begins with the costs that earlier texts of the bundle measured.
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
        self._caches = make_caches(bundle, spec)
        self._text = CachedText(bundle, spec, self._caches, checkpoints)
        self._lock = threading.Lock()
        # A weak one, so that both go, and the caches, with the last who refers to them.
        self._turn: Optional[weakref.ReferenceType[TokenStream]] = None
        self.notes: Any = None
        costs = costs_of(bundle, spec.lookup)
        self.worth = Worth(costs, states=self._text.states is not None)
        #: Tokens that are never chosen, and those that aren't the first one; None where any may be.
        self.suppressed = (_indices(spec.suppress), _indices(spec.suppress_first))
        #: Whether a run can leave out logits that nobody reads.
        self.masks_logits = bundle.masks_logits

    @property
    def tokens(self) -> List[int]:
        """The text whose rows the caches hold."""
        with self._lock:
            return list(self._text.tokens)

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
            file = SessionFile(self._bundle, self._spec, self._caches)
            return file.write(path, Snapshot(*self._text.snapshot(), notes))

    def load(self, path: "Path") -> None:
        """Reads what ``save`` wrote into a new session; raises InputError where it can't be used."""
        with self._lock:
            file = SessionFile(self._bundle, self._spec, self._caches)
            tokens, checkpoints, self.notes = file.read(path, self._text.states)
            self._text.restore(tokens, checkpoints)

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
            constraint = CheckedConstraint(options.constraint, self._text.vocabulary)
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

        def note_reused(count: int) -> None:
            held = turn()
            if held is not None:
                held.reused = count

        return self._in_turn(turn, self._text.begin(request, note_reused))

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

    def count_gained(self, tokens: Sequence[int]) -> int:
        """The number of a prompt's tokens that a new session would run and this one needn't; doesn't wait for a run."""
        text = self._text
        return max(0, text.count_kept(tokens, list(text.tokens)) - text.count_baked(tokens))

    def has_turn(self, stream: TokenStream) -> bool:
        """Whether the text is still this stream's, and so the logits that it got."""
        return self._turn is not None and self._turn() is stream

    @contextmanager
    def lent(self, stream: TokenStream) -> Iterator[CachedText]:
        """The text, while nobody else uses it.

        Raises:
            InputError: another generation of this session began meanwhile.
        """
        with self._lock:
            if not self.has_turn(stream):
                raise turn_lost()
            yield self._text

    def advance(
        self, stream: TokenStream, token: int, wanted: "Wanted" = None
    ) -> "NDArray[np.float32]":
        """Runs one token as through ``lent``, without a context manager: each token of a text comes this way."""
        with self._lock:
            if not self.has_turn(stream):
                raise turn_lost()
            return self._text.advance(token, wanted)

    def advance_by(
        self, stream: TokenStream, begin: int, tokens: List[int], wanted: "Wanted" = None
    ) -> "Runs":
        """Runs several tokens behind the text's first ``begin``, as a prompt's."""
        return self._in_turn(weakref.ref(stream), self._text.advance_by(begin, tokens, wanted))


def _indices(tokens: Sequence[int]) -> "Optional[NDArray[np.int64]]":
    return np.array(tokens, np.int64) if tokens else None
