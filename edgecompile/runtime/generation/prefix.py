"""A prompt that a bundle was built with: its tokens, and the caches that the model leaves behind them.

The file is little-endian: the tokens as int64; of each cache with rows those of the tokens, and each state, as the
manifest has them, in the order of its ``caches``. The number of tokens follows from its size.
"""

import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence

import numpy as np

from ..base.errors import DamagedBundleError
from ..format.manifest.schema import GenerationSpec
from .caches import Caches, rows_and_states
from .session_file import is_finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle

FILE = "prefix/caches.bin"
# By bundle, which may have many sessions; None: it has no such file.
_known: "weakref.WeakKeyDictionary[OpenBundle, Optional[Prefix]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Prefix(NamedTuple):
    """Tokens that texts are expected to begin with.

    Attributes:
        tokens: Token ids.
        rows: Rows of the caches that grow with the text, one for each token; mapped from the file.
        states: States of a fixed size behind the last token; mapped from the file.
    """

    tokens: List[int]
    rows: "List[NDArray[Any]]"
    states: "List[NDArray[np.float32]]"

    def count_usable(self, prompt: Sequence[int]) -> int:
        """The number of tokens of a prompt that needn't be run. Of states there is no earlier one."""
        common = count_common(prompt, self.tokens)
        if self.states:
            return common if len(prompt) > common == len(self.tokens) else 0
        return min(common, len(prompt) - 1)


def find_prefix(bundle: "OpenBundle", spec: GenerationSpec, caches: Caches) -> Optional[Prefix]:
    """The prompt that a bundle was built with, whose sizes ``caches`` have; None: it has none.

    Raises:
        DamagedBundleError: the file isn't the one that was written, or isn't what FORMAT.md says.
    """
    with _lock:
        if bundle not in _known:
            listed = FILE in bundle.manifest.files
            _known[bundle] = _read(bundle, spec, caches) if listed else None
        return _known[bundle]


def count_common(new: Sequence[int], old: Sequence[int]) -> int:
    """The number of tokens that two texts have in common at their beginning."""
    for index, (a, b) in enumerate(zip(new, old)):
        if a != b:
            return index
    return min(len(new), len(old))


def _read(bundle: "OpenBundle", spec: GenerationSpec, caches: Caches) -> Prefix:
    growing, fixed = rows_and_states(caches, spec)
    per_token = sum(array[0].nbytes for array in growing)
    fd = bundle.open_file(FILE)
    try:
        size = os.fstat(fd).st_size
        count, left = divmod(size - sum(array.nbytes for array in fixed), 8 + per_token)
        if left or spec.encoder or not 0 < count < spec.max_context:
            raise _damaged(
                "its {} bytes aren't those of 1 to {} tokens", size, spec.max_context - 1
            )
        data = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    at = 0

    def take(shape: "Sequence[int]", dtype: str) -> "NDArray[Any]":
        nonlocal at
        array = np.frombuffer(data, dtype, int(np.prod(shape)), at).reshape(shape)
        at += array.nbytes
        return array

    tokens = take((count,), "<i8")
    bounds = next(x.bounds for x in bundle.manifest.inputs if x.name == spec.input)
    assert bounds is not None
    if not bounds[0] <= tokens.min() <= tokens.max() <= bounds[1]:
        raise _damaged("one of its tokens isn't one of the model's")
    rows = [take((count, *array.shape[1:]), array.dtype.str) for array in growing]
    states = [take(array.shape, array.dtype.str) for array in fixed]
    if not all(map(is_finite, (*rows, *states))):
        raise _damaged("it holds NaN or infinity")
    return Prefix(tokens.tolist(), rows, states)


def _damaged(text: str, *values: int) -> DamagedBundleError:
    return DamagedBundleError("{}: {}".format(FILE, text.format(*values)))
