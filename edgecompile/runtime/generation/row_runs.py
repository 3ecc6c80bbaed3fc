"""Runs that give the logits behind each of their tokens, over arrays that stay."""

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Sequence

import numpy as np

from ..format.schema import GenerationSpec
from ..open.bundle import OpenBundle
from .caches import Caches, Run
from .chunks import Chunk, ChunkPlanner, chunk_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Bound(NamedTuple):
    run: Run
    chunk: Chunk
    ids: "NDArray[np.int64]"
    position: "NDArray[np.int64]"


class RowRuns:
    """Runs of 2 to ``lookup`` tokens of one text; of other numbers there is none."""

    def __init__(
        self, bundle: OpenBundle, spec: GenerationSpec, caches: Caches, planner: ChunkPlanner
    ) -> None:
        self._bundle, self._spec = bundle, spec
        self._caches, self._planner = caches, planner
        vocabulary: Any = bundle.manifest.outputs[0].shape[1]
        self._logits = np.zeros((spec.lookup, vocabulary), np.float32)
        # By the number of tokens; each serves until the text outgrows its view of the caches.
        self._bound: Dict[int, _Bound] = {}

    def takes(self, tokens: int) -> bool:
        """Whether a run of so many tokens gives the logits behind each of them."""
        return 2 <= tokens <= self._spec.lookup

    def run(self, row: int, tokens: Sequence[int]) -> "NDArray[np.float32]":
        """Runs tokens from a row on; the logits [tokens, vocabulary], valid until the next call."""
        count = len(tokens)
        bound = self._bound.get(count)
        if bound is None or row + count > bound.chunk.rows:
            bound = self._bound[count] = self._bind(row, count)
        bound.ids[0] = tokens
        bound.position[0] = row
        sizes = chunk_sizes(self._spec, bound.chunk)
        self._bundle.run_bound(bound.run, bound.chunk.bucket, sizes)
        return self._logits[:count]

    def _bind(self, row: int, count: int) -> _Bound:
        spec, chunk = self._spec, self._planner.next_chunk(row, count)
        ids, position = np.zeros((1, count), np.int64), np.zeros(1, np.int64)
        inputs = {spec.input: ids, spec.position: position, spec.last: np.array([count - 1])}
        run = self._caches.bind(chunk, inputs, self._logits[:count])
        return _Bound(run, chunk, ids, position)
