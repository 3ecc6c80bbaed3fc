"""Runs of one text's tokens over its caches."""

import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Sequence

import numpy as np

from ..base.errors import ModelClosedError
from ..format.manifest.schema import GenerationSpec
from ..open.bundle import OpenBundle
from .caches import Caches, Run
from .chunks import Chunk, ChunkPlanner, chunk_sizes
from .sources import run_encoder, same_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    #: Tokens whose logits are read, bool [vocabulary], where the bundle ``masks_logits``; None: all.
    Wanted = Optional[NDArray[np.bool_]]


#: Tokens of a run whose buffers are given back behind its prompt. Those of fewer are small, and other models, which
#: share the buffers, would lose theirs at each short prompt.
_LONG = 64
#: Buffers that are kept all the same: giving fewer back would save little, and the next prompt takes them again.
_KEPT_BYTES = 8 << 20


class _Bound(NamedTuple):
    """A run of a number of tokens over arrays that stay, until the text outgrows its view of the caches."""

    run: Run
    bucket: int
    rows: int
    ids: "NDArray[np.int64]"
    position: "NDArray[np.int64]"
    sizes: Dict[str, int]


class ChunkRuns:
    """Runs chunks of a prompt, and few tokens over arrays that stay.

    Attributes:
        planner: Divides the tokens of a text into chunks.
        logits: Logits [vocabulary] behind the last token; each run overwrites them.
    """

    def __init__(self, bundle: OpenBundle, spec: GenerationSpec, caches: Caches) -> None:
        self._bundle, self._spec, self._caches = bundle, spec, caches
        self.planner = ChunkPlanner(caches.manifest, spec, caches.rows_step, bundle.manifest)
        vocabulary: Any = bundle.manifest.outputs[0].shape[1]
        self._rows = np.zeros((spec.lookup, vocabulary), np.float32)
        self.logits: NDArray[np.float32] = self._rows[0]
        self._bound: Dict[int, _Bound] = {}
        self._longest = 0
        self._source: Optional[Dict[str, NDArray[Any]]] = None
        self._cross: Dict[str, NDArray[Any]] = {}
        # The axes that a source has a size along, for statistics.
        self._sized: Dict[str, int] = {}

    def read(self, source: "Dict[str, NDArray[Any]]") -> bool:
        """Lets the encoder read a source; False where it is the one before."""
        encoder = self._bundle.encoder
        assert encoder is not None
        if same_source(self._source, source):
            return False
        self._source = None
        self._bound.clear()  # they have its arrays
        manifest, name = self._bundle.manifest, self._spec.cross[0]
        rows = next(item.shape[0] for item in manifest.inputs if item.name == name)
        axis = rows if isinstance(rows, str) else None
        sizes = None if axis is None else manifest.axes[axis]
        self._cross = run_encoder(self._spec, encoder, source, sizes)
        self._sized = {} if axis is None else {axis: self._cross[name].shape[0]}
        self._source = source
        return True

    def run(self, row: int, chunk: Chunk, tokens: Sequence[int], wanted: "Wanted" = None) -> None:
        """Runs the tokens of a chunk from a row on."""
        self._longest = max(self._longest, chunk.length)
        if 2 <= chunk.taken <= self._spec.lookup:
            self.logits[...] = self.run_rows(row, tokens, wanted)[-1]
        else:
            self._run(self._bind(chunk), row, tokens, wanted)

    def run_rows(
        self, row: int, tokens: Sequence[int], wanted: "Wanted" = None
    ) -> "NDArray[np.float32]":
        """Runs 1 to ``lookup`` tokens from a row on.

        Returns:
            The logits [tokens, vocabulary] behind each, until the next run; those that aren't wanted mean nothing.
        """
        count = len(tokens)
        bound = self._bound.get(count)
        if bound is None or row + count > bound.rows:
            bound = self._bound[count] = self._bind(self.planner.next_chunk(row, count))
        self._run(bound, row, tokens, wanted)
        return self._rows[:count]

    def _run(self, bound: _Bound, row: int, tokens: Sequence[int], wanted: "Wanted") -> None:
        bound.ids[:] = tokens
        bound.position[0] = row
        run: Any = bound.run
        if wanted is not None:
            run = functools.partial(run.run_masked, wanted)
        self._bundle.run_bound(run, bound.bucket, bound.sizes)

    def give_back(self) -> None:
        """Gives back the buffers of a long run since the last call, which single tokens don't need."""
        longest, self._longest = self._longest, 0
        if longest >= _LONG and self._caches.arrays and self._source is None:
            with suppress(ModelClosedError):
                self._bundle.trim(_KEPT_BYTES)

    def _bind(self, chunk: Chunk) -> _Bound:
        spec, count = self._spec, chunk.taken
        ids = np.full((1, chunk.length), spec.pad, np.int64)
        position, last = np.zeros(1, np.int64), np.array([count - 1])
        inputs = {spec.input: ids, spec.position: position, spec.last: last, **self._cross}
        logits = self._rows[: count if count <= spec.lookup else 1]
        sizes = {**chunk_sizes(spec, chunk), **self._sized}
        run = self._caches.bind(chunk, inputs, logits)
        return _Bound(run, chunk.bucket, chunk.rows, ids[0, :count], position, sizes)
