"""Checks what ``Model.run`` is given before native code sees it.

Native code trusts its inputs: a wrong count or an index outside its table ends the process, and a
wrong size gives wrong numbers. Everything that could do so is refused here, all problems at once.
"""

import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    FrozenSet,
    List,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from ..base.errors import InputError
from ..format.document import shorten
from ..format.dtypes import BFLOAT16, BY_NAME, Number, array_type
from ..format.manifest.schema import GenerationSpec, Manifest, TensorSpec
from ..format.sums import axes_of, find_givers, size_of, take_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .caches import CacheRules

MAX_LISTED = 40


def _cache_rules(spec: GenerationSpec) -> "CacheRules":
    from .caches import CacheRules  # other models start without it

    return CacheRules(spec)


class InputChecker:
    """Checks mappings of inputs against a manifest; holds no state of a run."""

    def __init__(self, manifest: Manifest) -> None:
        self._specs = manifest.inputs
        self._caches = None if manifest.generation is None else _cache_rules(manifest.generation)
        self._names = frozenset(item.name for item in manifest.inputs)
        self._dtypes = [np.dtype(array_type(item.dtype)) for item in manifest.inputs]
        # Sizes that follow from axes are compared once the sizes of the axes are known.
        dims = [dim for item in manifest.inputs for dim in item.shape if isinstance(dim, str)]
        self._sums = tuple(sorted(set(dims) - set(manifest.axes)))
        self._axes = manifest.axes
        self._givers = find_givers(dims, manifest.axes)
        # A cache has none: what the program writes there would be lost.
        caches: FrozenSet[str] = frozenset() if self._caches is None else self._caches.names
        self._optional = frozenset(
            item.name
            for item in manifest.inputs
            if item.default is not None and item.name not in caches
        )

    def check(self, inputs: Mapping[str, Any]) -> Tuple[List["NDArray[Any]"], Dict[str, int]]:
        """C-contiguous arrays in the manifest's order, and the size of every axis.

        Integers and booleans are widened to the input's integer dtype where every value fits;
        any other dtype must match exactly. Inputs that have a default may be left out. Whether the
        sizes are in a bucket isn't checked here.

        Raises:
            InputError: lists every problem.
        """
        # Python looks a dict up sooner than what all mappings are.
        if not isinstance(inputs, dict) and not isinstance(inputs, Mapping):
            raise InputError(
                "inputs must be a mapping of names to arrays, not {}".format(type(inputs).__name__),
                "the model takes " + ", ".join(item.name for item in self._specs),
            )
        whole = self._take_whole(inputs) if inputs.keys() == self._names else None
        if whole is not None:
            return whole
        problems: List[str] = []
        arrays: List[NDArray[Any]] = []
        checked: List[Tuple[TensorSpec, NDArray[Any]]] = []
        sizes: Dict[str, int] = {}
        origins: Dict[str, Tuple[int, str]] = {}
        if inputs.keys() != self._names:
            self._check_names(inputs, problems)
        for spec, dtype in zip(self._specs, self._dtypes):
            if spec.name not in inputs:
                continue
            value = inputs[spec.name]
            if self._caches is not None and spec.name in self._caches.names:
                array = self._caches.take(spec, value, arrays, problems)
            else:
                array = self._convert(spec, dtype, value, problems)
            if array is not None and self._check_shape(spec, array, sizes, origins, problems):
                arrays.append(array)
                checked.append((spec, array))
        self._check_sums(sizes, origins, problems)
        for spec, array in checked:
            _check_bounds(spec, array, sizes, problems)
        if problems:
            _raise(problems)
        if len(arrays) < len(self._specs):
            self._add_defaults(inputs, arrays, sizes)
        return arrays, sizes

    def _take_whole(
        self, inputs: Mapping[str, Any]
    ) -> Optional[Tuple[List["NDArray[Any]"], Dict[str, int]]]:
        """The same for what most runs are given, arrays as they have to be, in half of the time; None: it
        is something else, or wrong."""
        if self._caches is not None:
            return None
        arrays: List[NDArray[Any]] = []
        sizes: Dict[str, int] = {}
        dims, shape = None, None  # of the input before, which the next is often like
        for spec, dtype in zip(self._specs, self._dtypes):
            array = inputs[spec.name]
            if (
                type(array) is not np.ndarray
                or array.dtype != dtype
                or not array.flags.c_contiguous
            ):
                return None
            if spec.shape != dims or array.shape != shape:
                dims, shape = spec.shape, array.shape
                if len(shape) != len(dims):
                    return None
                for size, dim in zip(shape, dims):
                    if size != (dim if isinstance(dim, int) else sizes.setdefault(dim, size)):  # type: ignore[arg-type]
                        return None
            if spec.bounds is not None:
                if spec.reach != (None, None) or array.size == 0:
                    return None
                if not _within(array, *spec.bounds):
                    return None
            arrays.append(array)
        if self._givers and take_sizes(sizes, self._givers):
            return None
        for text in self._sums:
            if sizes.pop(text) != size_of(text, sizes):
                return None
        return arrays, sizes

    def _add_defaults(
        self,
        inputs: Mapping[str, Any],
        arrays: List["NDArray[Any]"],
        sizes: Mapping[str, int],
    ) -> None:
        """Puts the inputs that weren't given, all at their default, to their places."""
        for index, spec in enumerate(self._specs):
            if spec.name in inputs:
                continue
            try:
                shape = [size_of(dim, sizes) for dim in spec.shape]
            except KeyError:
                _raise(["{}: is missing, and nothing else has its size".format(spec.name)])
            for place, size in enumerate(shape):
                if size < 0:  # a sum's
                    text = "{}: its default would have size {} in dimension {} ({})"
                    _raise([text.format(spec.name, size, place, spec.shape[place])])
            arrays.insert(index, np.full(shape, spec.default, self._dtypes[index]))

    def choose_fill(
        self,
        arrays: Sequence["NDArray[Any]"],
        sizes: Mapping[str, int],
        fills: Sequence[Mapping[str, int]],
    ) -> Mapping[str, int]:
        """The sizes that axes are padded to: the first of ``fills`` with which a generative program's rows are
        within its caches; other programs have none.

        Args:
            arrays, sizes: the results of ``check``.
            fills: the result of ``Dispatcher.fills``.

        Raises:
            InputError: the rows lie outside the caches, or the last token outside the input.
        """
        if self._caches is None:
            return fills[0]
        named = {spec.name: array for spec, array in zip(self._specs, arrays)}
        problems: List[str] = []
        for fill in fills:
            problems = self._caches.check_rows(named, sizes, fill)
            if not problems:
                return fill
        _raise(problems)

    def _check_names(self, inputs: Mapping[str, Any], problems: List[str]) -> None:
        import difflib

        absent = [item.name for item in self._specs if item.name not in inputs]
        extra = [name for name in inputs if name not in self._names]
        for name in extra:
            near = difflib.get_close_matches(str(name), absent, 1, 0.5)
            text = "{}: the model has no such input".format(shorten(name))
            if near:
                text += "; did you mean {}?".format(near[0])
                absent.remove(near[0])
            problems.append(text)
        problems.extend(
            "{}: is missing".format(name) for name in absent if name not in self._optional
        )

    def _convert(
        self, spec: TensorSpec, dtype: "np.dtype[Any]", value: object, problems: List[str]
    ) -> Optional["NDArray[Any]"]:
        if type(value) is np.ndarray and value.dtype == dtype and value.flags.c_contiguous:
            return value
        try:
            array = as_array(value)
        except Exception as error:  # whatever an object's __array__ raises
            problems.append("{}: isn't an array: {}".format(spec.name, shorten(error, 160)))
            return None
        if array.dtype != dtype:
            widens = (
                array.dtype.kind in "biu"
                and dtype.kind in "iu"
                and np.can_cast(array.dtype, dtype, "safe")
            )
            if not widens:
                text = "{}: has dtype {}, must be {}".format(spec.name, array.dtype, dtype.name)
                problems.append(text)
                return None
        # Copies only where the dtype or the layout differs; also turns subclasses into arrays.
        return np.array(array, dtype=dtype, order="C", copy=_IF_NEEDED, ndmin=0)

    @staticmethod
    def _check_shape(
        spec: TensorSpec,
        array: "NDArray[Any]",
        sizes: Dict[str, int],
        origins: Dict[str, Tuple[int, str]],
        problems: List[str],
    ) -> bool:
        shape = array.shape
        if len(shape) != len(spec.shape):
            expected = "[{}]".format(", ".join(str(dim) for dim in spec.shape))
            text = "{}: has shape {} with {} dimensions, must be {} with {}"
            problems.append(
                text.format(spec.name, list(shape), len(shape), expected, len(spec.shape))
            )
            return False
        good = True
        for index, (size, dim) in enumerate(zip(shape, spec.shape)):
            assert dim is not None  # only outputs have sizes that vary in another way
            if isinstance(dim, int):
                if size != dim:
                    text = "{}: dimension {} has size {}, must be {}"
                    problems.append(text.format(spec.name, index, size, dim))
                    good = False
            elif dim not in sizes:
                sizes[dim] = size
                origins[dim] = index, spec.name
            elif sizes[dim] != size:
                text = "{}: dimension {} ({}) has size {}, but dimension {} of {} has {}"
                text = text.format(spec.name, index, dim, size, *origins[dim], sizes[dim])
                problems.append(text)
                good = False
        return good

    def _check_sums(
        self,
        sizes: Dict[str, int],
        origins: Mapping[str, Tuple[int, str]],
        problems: List[str],
    ) -> None:
        """Takes the sums out of ``sizes``: these give the sizes of some axes, and are compared with the others.

        A size that nothing gives is no problem.
        """
        # The sums of inputs that were left out give nothing, so others may.
        givers = find_givers(sizes, self._axes) if self._sums else ()
        for text in take_sizes(sizes, givers):
            message = "{1}: dimension {0} ({2}) has size {3}, which it has for no size of its axes"
            problems.append(message.format(*origins[text], text, sizes[text]))
        for text in self._sums:
            size = sizes.pop(text, None)
            try:
                wanted = size_of(text, sizes)
            except KeyError:  # the input that gives it is refused
                continue
            if size not in (None, wanted):
                given = ["{} {}".format(a, sizes[a]) for a in axes_of(text, ())]
                message = "{1}: dimension {0} ({2}) has size {3}, must be {4} with {5}"
                at = origins[text]
                problems.append(message.format(*at, text, size, wanted, ", ".join(given)))


class CheckedInputs(Dict[str, "NDArray[Any]"]):
    """Inputs that a checker found good; a run of the same bundle takes them as they are.

    Attributes:
        checker: the one that did.
        arrays: the arrays in the manifest's order.
        sizes: the size of every axis.
        bucket: the one that serves these sizes.
    """

    def __init__(
        self,
        checker: "InputChecker",
        specs: Sequence[TensorSpec],
        arrays: "Sequence[NDArray[Any]]",
        sizes: Dict[str, int],
        bucket: int,
    ) -> None:
        super().__init__(zip([spec.name for spec in specs], arrays))
        self.checker, self.arrays, self.sizes = checker, tuple(arrays), sizes
        self.bucket = bucket


def as_array(value: object) -> "NDArray[Any]":
    """``value`` as a plain array; as ``np.asarray``, but nothing is lost silently.

    Raises:
        ValueError: it has a mask, which would be lost.
        Exception: whatever an object's ``__array__`` raises.
    """
    masked = sys.modules.get("numpy.ma")  # where that isn't imported, nothing is masked
    if masked is not None and _has(value, masked.MaskedArray):
        raise ValueError("it is masked, and its mask would be lost; give array.filled(value)")
    return np.asarray(value)


def _has(value: object, kind: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has(item, kind) for item in value)
    return isinstance(value, kind)


# numpy 2 changed the meaning of copy=False to "never"; None means "if needed" there.
_IF_NEEDED: Any = None if int(np.__version__.split(".")[0]) >= 2 else False


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _within(array: "NDArray[Any]", low: Any, high: Any) -> bool:
    """Whether all values, of which there is one at least, are from ``low`` to ``high``."""
    if low == 0 and array.dtype.kind == "i":
        # As unsigned integers negative ones are the largest: one pass instead of two.
        array = array.view(_UNSIGNED[array.itemsize])
        return bool(np.maximum.reduce(array, axis=None) <= high)
    # Written so that a NaN is outside.
    return bool(
        np.minimum.reduce(array, axis=None) >= low and np.maximum.reduce(array, axis=None) <= high
    )


def find_bounds(spec: TensorSpec, sizes: Mapping[str, int]) -> Tuple[Number, Number]:
    """The bounds of an input that has some, where axes have these sizes."""
    assert spec.bounds is not None
    low, high = (
        end if text is None else size_of(text, sizes) for text, end in zip(spec.reach, spec.bounds)
    )
    return low, high


def _check_bounds(
    spec: TensorSpec, array: "NDArray[Any]", sizes: Mapping[str, int], problems: List[str]
) -> None:
    if spec.bounds is None or array.size == 0:
        return
    try:
        low, high = find_bounds(spec, sizes)
    except KeyError:  # an input with a wrong shape has the axis, and is refused
        return
    if _within(array, low, high):
        return
    with np.errstate(invalid="ignore"):
        outside = np.argwhere(~((array >= low) & (array <= high)))
    first = tuple(int(i) for i in outside[0])
    text = "{}: {} of {} values lie outside {}..{}, the first is {} at {}"
    problems.append(
        text.format(spec.name, len(outside), array.size, low, high, array[first], list(first))
        + "".join([", bounded by " + text for text in spec.reach if text is not None])
    )


def _raise(problems: List[str]) -> NoReturn:
    lines = problems[:MAX_LISTED]
    if len(problems) > MAX_LISTED:
        lines.append("... and {} more".format(len(problems) - MAX_LISTED))
    if len(lines) == 1:
        raise InputError("input " + lines[0])
    raise InputError("\n  ".join(["{} problems with the inputs".format(len(problems)), *lines]))


def make_inputs(
    manifest: Manifest, sizes: Mapping[str, int], seed: Optional[int] = None
) -> Dict[str, "NDArray[Any]"]:
    """Valid inputs of the given axis sizes, for warm-up and benchmarks.

    Ones where the bounds allow it (a mask that masks nothing, a token that exists), the nearest
    bound otherwise. With a ``seed``, integer inputs whose bounds hold more than two values are
    random within them instead, and floats without bounds are normal. A generative program begins at
    row 0 of its caches, which is right at every size, and all of its tokens count. Without a seed caches are
    zeros, which take no memory.
    """
    rng = None if seed is None else np.random.RandomState(seed)
    result = {}
    generation = manifest.generation
    zeros: List[str] = []
    if generation is not None:
        zeros = [generation.position, *(generation.caches if rng is None else ())]
    for spec in manifest.inputs:
        shape = tuple(size_of(dim, sizes) for dim in spec.shape)
        value = 1
        low, high = (0, 0) if spec.bounds is None else find_bounds(spec, sizes)
        if spec.bounds is not None:
            value = min(max(1, low), high)  # type: ignore[assignment]
        if spec.name in zeros:
            result[spec.name] = np.zeros(shape, dtype=array_type(spec.dtype))
            continue
        if generation is not None and spec.name == generation.last:
            last = sizes.get(generation.length_axis, 1) - 1
            result[spec.name] = np.full(shape, last, dtype=array_type(spec.dtype))
            continue
        is_bfloat16 = spec.dtype == BFLOAT16
        array = np.full(shape, value, dtype="float32" if is_bfloat16 else spec.dtype)
        if rng is not None:
            kind = BY_NAME[spec.dtype].kind
            if kind in "iu" and high - low > 1:
                end = min(int(high), 2**62) + 1
                array[...] = rng.randint(int(low), end, shape, dtype=np.int64)
            elif kind == "f" and spec.bounds is None:
                array[...] = rng.standard_normal(shape)
        if is_bfloat16:
            array = (array.view(np.uint32) >> 16).astype(np.uint16)
        result[spec.name] = array
    return result
