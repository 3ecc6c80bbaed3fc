"""Checks the caches that ``Model.run`` is given for a generative program, and the rows of a run.

Such a program changes its caches in place: these are the caller's own memory, as the changes would be
lost with a copy, and rows outside of them would be written outside of the array.
"""

from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence

import numpy as np

from ..format.dtypes import array_type
from ..format.manifest.schema import GenerationSpec, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CacheRules:
    """The rules for inputs of one generative manifest; holds no state of a run."""

    def __init__(self, spec: GenerationSpec) -> None:
        self._spec = spec
        self.names = frozenset(spec.caches)

    def take(
        self,
        spec: TensorSpec,
        value: object,
        others: "Sequence[NDArray[Any]]",
        problems: List[str],
    ) -> "Optional[NDArray[Any]]":
        """``value`` itself if it can be changed in place; None and a problem otherwise.

        Args:
            spec: the input.
            value: the value that was given for it.
            others: the inputs that were taken before, which it may not overlap.
            problems: a list that gets a line for every problem.
        """
        problem = _cache_misfit(spec, value, others)
        if problem is None:
            assert isinstance(value, np.ndarray)
            return value
        problems.append("{}: {}; the model changes it in place".format(spec.name, problem))
        return None

    def check_rows(
        self,
        arrays: "Mapping[str, NDArray[Any]]",
        sizes: Mapping[str, int],
        filled: Mapping[str, int],
    ) -> List[str]:
        """Faults in the rows of a run: of inputs of these ``sizes``, padded to ``filled``."""
        spec, problems = self._spec, []
        position, last = int(arrays[spec.position][0]), int(arrays[spec.last][0])
        length = sizes[spec.length_axis]
        rows = spec.max_context if spec.context_axis is None else sizes[spec.context_axis]
        computed = filled.get(spec.length_axis, length)
        if not 0 <= position <= rows - computed:
            padded = " (padded to {})".format(computed) if computed != length else ""
            text = "{}: {} with {} tokens{} doesn't lie within the {} rows of the {}"
            owner = "context" if spec.context_axis is None else "caches"
            problems.append(text.format(spec.position, position, length, padded, rows, owner))
        if not 0 <= last < length:
            text = "{}: {} isn't one of the {} tokens, 0..{}"
            problems.append(text.format(spec.last, last, length, length - 1))
        return problems


def _cache_misfit(
    spec: TensorSpec, value: object, others: "Sequence[NDArray[Any]]"
) -> Optional[str]:
    if type(value) is not np.ndarray:
        return "is a {}, must be an array".format(type(value).__name__)
    if value.dtype != np.dtype(array_type(spec.dtype)) or not value.dtype.isnative:
        return "has dtype {}, must be {}".format(value.dtype, array_type(spec.dtype))
    if not value.flags.writeable:
        return "is read-only"
    if not value.flags.c_contiguous:
        return "isn't contiguous"
    if not value.flags.aligned:
        return "isn't aligned in memory"
    # Contiguous arrays overlap where their bounds do, which is quickly told.
    if any(np.may_share_memory(value, other) for other in others):
        return "overlaps another input"
    return None
