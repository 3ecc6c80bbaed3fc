"""The memory of a text's caches: in this process, or on a GPU, which they never leave."""

import functools
import math
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    FrozenSet,
    List,
    Mapping,
    Optional,
    Protocol,
    Tuple,
)

import numpy as np

from ..base.errors import UnsupportedHostError
from ..format.dtypes import array_type
from ..format.manifest.schema import GenerationSpec, Manifest
from ..format.sums import size_of
from ..open.bundle import OpenBundle
from .chunks import ROWS_STEP, Chunk
from .windows import SPARE, RowMemory, WindowRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A run over arrays that stay; their values may change from one call to the next.
Run = Callable[[], Any]


class Caches(Protocol):
    """The caches of one text, which programs change in place.

    Attributes:
        manifest: the buckets that its runs are chosen from.
        rows_step: the number of rows by which a program's view of the caches grows.
        arrays: the memory of each, with the rows of the whole context; none on a GPU. Float32, the bits of
            bfloat16 as uint16, or int8 with scales.
        addresses: addresses of the caches, in the order of the specification; none on a GPU.
        growing: the names of those with a row for each token.
        windows: the rows of those with a sliding window; None: none has one, or on a GPU.
    """

    manifest: Manifest
    rows_step: int
    arrays: "Dict[str, NDArray[Any]]"
    addresses: "NDArray[np.int64]"
    growing: FrozenSet[str]
    windows: Optional[WindowRows]

    def bind(
        self, chunk: Chunk, inputs: "Mapping[str, NDArray[Any]]", logits: "NDArray[np.float32]"
    ) -> Run:
        """A run of a chunk, of the other inputs, whose logits [1, vocabulary] are written there."""
        ...


def rows_and_states(
    caches: Caches, spec: GenerationSpec
) -> "Tuple[List[NDArray[Any]], List[NDArray[np.float32]]]":
    """The memory of the caches with a row for each token, and of those of a fixed size, in the manifest's order."""
    rows = [caches.arrays[name] for name in spec.caches if name in caches.growing]
    return rows, [caches.arrays[name] for name in spec.caches if name not in caches.growing]


def windows_of(caches: Caches, spec: GenerationSpec) -> List[int]:
    """The window of each cache with a row for each token, in the manifest's order; 0: it has none."""
    return [spec.windows.get(name, 0) for name in spec.caches if name in caches.growing]


def text_bytes(manifest: Manifest) -> int:
    """Bytes of the caches of a text that fills the context, on a CPU, without further places that it can go back to.

    0: the bundle isn't generative.
    """
    spec, total = manifest.generation, 0
    for item in manifest.inputs:
        if spec is None or item.name not in spec.caches:
            continue
        rows = spec.max_context
        if item.name in spec.windows:
            longest = manifest.axes[spec.length_axis].hi
            rows = min(rows, spec.windows[item.name] - 1 + 2 * SPARE + longest)
        sizes = {} if spec.context_axis is None else {spec.context_axis: rows}
        shape = [size_of(dim, sizes) for dim in item.shape]
        total += math.prod(shape) * np.dtype(array_type(item.dtype)).itemsize
    return total


def make_caches(bundle: OpenBundle, spec: GenerationSpec) -> Caches:
    """Caches for a text of ``max_context`` rows, all zeros.

    Raises:
        UnsupportedHostError: there isn't the memory for them.
        GpuError: the GPU fails.
    """
    if bundle.gpu.keeps_texts:
        return _GpuCaches(bundle, spec)
    return _HostCaches(bundle, spec)


class _HostCaches:
    rows_step = ROWS_STEP

    def __init__(self, bundle: OpenBundle, spec: GenerationSpec) -> None:
        self.manifest = bundle.manifest
        self._bundle = bundle
        items = [item for item in self.manifest.inputs if item.name in spec.caches]
        self.growing = frozenset(item.name for item in items if spec.has_rows(item))
        sizes = {} if spec.context_axis is None else {spec.context_axis: spec.max_context}
        kinds = {
            item.name: ([size_of(dim, sizes) for dim in item.shape], array_type(item.dtype))
            for item in items
        }
        try:
            # Zeros, not whatever was there: a NaN in a row that isn't seen yet would spread, as
            # it is multiplied by its weight of 0. The system makes pages when they are written.
            rows = {x: RowMemory(*kinds[x], slides=x in spec.windows) for x in self.growing}
            self.arrays = {
                name: rows[name].array if name in rows else np.zeros(*kind)
                for name, kind in kinds.items()
            }
        except (MemoryError, OSError, OverflowError):
            raise UnsupportedHostError(
                "no memory for the caches of {} rows".format(spec.max_context),
                "build the bundle with a smaller max_context, or keep fewer sessions",
            ) from None
        self.windows: Optional[WindowRows] = None
        if spec.windows:
            self.windows = WindowRows([(rows[x], window) for x, window in spec.windows.items()])
        places = [self.arrays[name].ctypes.data for name in spec.caches]
        self.addresses = np.array(places, np.int64)

    def bind(
        self, chunk: Chunk, inputs: "Mapping[str, NDArray[Any]]", logits: "NDArray[np.float32]"
    ) -> Run:
        arrays: List[NDArray[Any]] = []
        for item in self.manifest.inputs:
            array = self.arrays[item.name] if item.name in self.arrays else inputs[item.name]
            arrays.append(array[: chunk.rows] if item.name in self.growing else array)
        return self._bundle.bind(chunk.bucket, arrays, [logits])


class _GpuCaches:
    """They are whole in every run, so that one graph serves every step of a text."""

    def __init__(self, bundle: OpenBundle, spec: GenerationSpec) -> None:
        self.rows_step = spec.max_context
        self.arrays: Dict[str, NDArray[Any]] = {}
        self.addresses = np.zeros(0, np.int64)
        self.growing = frozenset(spec.caches)
        self.windows: Optional[WindowRows] = None
        self._bundle = bundle
        self.manifest = bundle.gpu.manifest
        self._text = bundle.hold(bundle.gpu.take_text)
        # Whoever collects garbage may call this, in any thread and at any moment.
        weakref.finalize(self, bundle.gpu.give_back, self._text).atexit = False
        self._names = [x.name for x in self.manifest.inputs if x.name not in spec.caches]

    def bind(
        self, chunk: Chunk, inputs: "Mapping[str, NDArray[Any]]", logits: "NDArray[np.float32]"
    ) -> Run:
        program = self._bundle.hold(self._text.get, chunk.bucket)
        # It refers to this object: the text is given back when no run can come any more.
        return functools.partial(self._run, program, [inputs[x] for x in self._names], [logits])

    def _run(
        self, program: Any, arrays: "List[NDArray[Any]]", results: "List[NDArray[Any]]"
    ) -> None:
        program.run_into(arrays, results)
