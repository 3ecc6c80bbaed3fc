"""One token each of several texts in one run, each over the caches of its own session."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Sequence

import numpy as np

from ..open.bundle import OpenBundle
from .cached_text import CachedText
from .stream import TokenStream

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Bound(NamedTuple):
    """A run over arrays that stay."""

    run: "Callable[[], object]"
    ids: "NDArray[np.int64]"
    position: "NDArray[np.int64]"
    addresses: "NDArray[np.int64]"
    logits: "NDArray[np.float32]"


class Together:
    """Runs texts of one bundle together, with the tokens that each has alone. One thread calls it.

    Attributes:
        most: the largest number of texts; the least is 2.
    """

    def __init__(self, bundle: OpenBundle) -> None:
        """``bundle`` has ``batch_texts``."""
        self.most = bundle.batch_texts
        self._bundle = bundle
        spec, buckets = bundle.manifest.generation, bundle.manifest.buckets
        assert spec is not None
        self._sizes = {spec.length_axis: 1}
        if spec.context_axis is not None:
            self._sizes[spec.context_axis] = spec.max_context
        sizes = [bucket.axes[spec.length_axis].hi for bucket in buckets]
        self._bucket = sizes.index(1)
        self._bound: Dict[int, _Bound] = {}

    def run(self, streams: Sequence[TokenStream]) -> None:
        """Runs the token of ``single`` of each stream; ``next`` of each then only chooses.

        Raises:
            InputError: another text began in one's session, or one's states are lost; nothing was run.
            NativeError: the run failed. States of a fixed size are lost; a text without them can still be run alone.
        """
        tokens = [stream.single() for stream in streams]
        with ExitStack() as held:
            order = sorted(range(len(streams)), key=lambda index: id(streams[index]))
            lent: Dict[int, CachedText] = {i: held.enter_context(streams[i].lent()) for i in order}
            bound = self._bind(len(streams))
            for index, token in enumerate(tokens):
                assert token is not None
                bound.ids[0, index] = token
                bound.position[index] = lent[index].row
                bound.addresses[:, index] = lent[index].lend()
            for text in lent.values():
                text.mark_lost()
            # Counted as a run of one token.
            self._bundle.run_bound(bound.run, self._bucket, self._sizes)
            for index, (stream, token) in enumerate(zip(streams, tokens)):
                assert token is not None
                stream.give(lent[index].take(token, bound.logits[index]))

    def run_nothing(self, texts: int) -> None:
        """Runs as many tokens of no text: they see themselves alone. Statistics don't count it."""
        bound = self._bind(texts)
        for array in (bound.ids, bound.position, bound.addresses):
            array[...] = 0
        self._bundle.hold(bound.run)

    def _bind(self, texts: int) -> _Bound:
        bound = self._bound.get(texts)
        if bound is None:
            manifest = self._bundle.manifest
            assert manifest.generation is not None
            caches, vocabulary = len(manifest.generation.caches), manifest.outputs[0].shape[1]
            assert isinstance(vocabulary, int)
            arrays: List[NDArray[np.int64]] = [
                np.zeros(shape, np.int64) for shape in ((1, texts), (texts,), (caches, texts))
            ]
            logits = np.zeros((texts, vocabulary), np.float32)
            run = self._bundle.bind_batch(arrays, [logits])
            bound = self._bound[texts] = _Bound(run, arrays[0], arrays[1], arrays[2], logits)
        return bound
