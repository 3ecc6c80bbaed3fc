"""Chooses the program for the next tokens of a text, their number, and how much of the cache it sees.

A prompt is run in chunks, each by one program. Tokens may be filled up behind their end: the rows that
this writes are overwritten before they are seen, and no state depends on them. So a chunk that is in no bucket's
range takes the next longer program, if the context has the room. On a GPU a mode fills up every program, where
there is the room: elsewhere it takes the tokens as they are.
"""

from typing import Dict, NamedTuple, Optional, Tuple

from ..format.manifest.schema import BucketSpec, GenerationSpec, Manifest

#: Views of the caches grow by so many rows on a CPU, so that a view serves many steps.
ROWS_STEP = 64


class Chunk(NamedTuple):
    """One run: ``taken`` tokens by program ``bucket``, filled up to ``length``.

    ``rows`` is how much of each cache the program is given.
    """

    bucket: int
    taken: int
    length: int
    rows: int


class _Program(NamedTuple):
    """A bucket as it runs: any length from ``lo`` to ``hi``, equal where it pads.

    Where the context has no room for ``lo`` tokens, from ``least``.
    """

    bucket: int
    least: int
    lo: int
    hi: int
    least_rows: int
    most_rows: int


class ChunkPlanner:
    """The buckets of a generative manifest; holds no state of a generation."""

    def __init__(
        self,
        manifest: Manifest,
        spec: GenerationSpec,
        rows_step: int = ROWS_STEP,
        built: Optional[Manifest] = None,
    ) -> None:
        """Args:
        manifest: its buckets are what runs.
        spec: the generation entry of the model.
        rows_step: the number of rows by which the views of the caches grow.
        built: the bundle's manifest, where ``manifest`` pads more than its programs need.
        """
        self.max_context = spec.max_context
        self._rows_step = rows_step
        self._programs = [
            _program(i, item, own, spec)
            for i, (item, own) in enumerate(zip(manifest.buckets, (built or manifest).buckets))
        ]
        # The least computed length first; of equals an exact one, which other lengths fit, too.
        self._programs.sort(key=lambda item: (item.hi, -item.lo, item.bucket))

    def next_chunk(self, position: int, left: int) -> Chunk:
        """The next run of a text of which ``left`` tokens, at least 1, follow row ``position``.

        The longest chunk that there is a program for; of the programs for it the one that computes
        least. ``position + left`` mustn't be more than ``max_context``: then there always is one,
        as every bundle has a program for one token.
        """
        best: Optional[Tuple[Tuple[int, int], Chunk]] = None
        for item in self._programs:
            chunk = self._fit(item, position, left)
            if chunk is None:
                continue
            # One that is filled up goes before one that has no room for it.
            rank = chunk.taken, -max(chunk.length, item.lo)
            if best is None or rank > best[0]:
                best = rank, chunk
        assert best is not None
        return best[1]

    def _fit(self, item: _Program, position: int, left: int) -> Optional[Chunk]:
        taken = min(left, item.hi)
        length = max(taken, item.lo)
        end = position + length
        if end > item.most_rows:
            # An exact program can take fewer tokens where the context ends.
            length = taken = min(taken, item.most_rows - position)
            if taken < item.least:
                return None
            end = position + length
        rounded = -(-end // self._rows_step) * self._rows_step
        return Chunk(item.bucket, taken, length, min(max(rounded, item.least_rows), item.most_rows))


def _program(index: int, bucket: BucketSpec, built: BucketSpec, spec: GenerationSpec) -> _Program:
    length = bucket.axes[spec.length_axis]
    # Without caches that grow, every view of the context is all of it.
    rows = spec.max_context, spec.max_context
    if spec.context_axis is not None:
        rows = bucket.axes[spec.context_axis].lo, bucket.axes[spec.context_axis].hi
    lo, least = (length.hi if x.mode == "pad" else length.lo for x in (bucket, built))
    return _Program(index, least, lo, length.hi, *rows)


def chunk_sizes(spec: GenerationSpec, chunk: Chunk) -> Dict[str, int]:
    """The axis sizes that statistics count for a chunk: its own tokens, not what fills it up."""
    context = {} if spec.context_axis is None else {spec.context_axis: chunk.rows}
    return {spec.length_axis: chunk.taken, **context}
