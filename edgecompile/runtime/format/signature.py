"""Reads the part of a manifest that says how a model is called: axes, inputs, outputs, buckets."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from .document import Reader, join, shorten
from .dtypes import BY_NAME, INPUT_NAMES, Number, holds
from .schema import MODES, BucketSpec, Dim, Extent, TensorSpec

MAX_SIZE = 2**31 - 1
MAX_DIMS = 8
MAX_TENSOR_BYTES = 1 << 40
#: A generative program has two caches for each layer among its inputs.
MAX_INPUTS, MAX_OUTPUTS = 512, 64
_MAX_LISTED = 32


class Signature(NamedTuple):
    """The signature; complete only if the reader noted no problem."""

    axes: Dict[str, Extent]
    inputs: Tuple[TensorSpec, ...]
    outputs: Tuple[TensorSpec, ...]
    length_axis: Optional[str]
    buckets: Tuple[BucketSpec, ...]


class SignatureReader:
    """Reads in the order in which the keys depend on each other."""

    def __init__(self, document: Dict[str, Any], reader: Reader) -> None:
        self.document = document
        self.reader = reader
        self.add = reader.problems.add
        self.axes: Dict[str, Extent] = {}

    def read(self) -> Signature:
        """The signature; what is wrong goes to the reader's problems."""
        self.axes = self._axes()
        inputs = self._tensors("inputs", is_input=True)
        outputs = self._tensors("outputs", is_input=False)
        length_axis = self._length_axis()
        buckets = self._buckets(length_axis, inputs, outputs)
        return Signature(self.axes, tuple(inputs), tuple(outputs), length_axis, tuple(buckets))

    def _axes(self) -> Dict[str, Extent]:
        entries = self.reader.mapping(self.document, "axes", "")
        self.reader.count(len(entries), "axes", 0, 16)
        result = {}
        for axis, value in entries.items():
            where = join("axes", axis)
            extent = self._extent(value, where, "axis-range")
            if self.reader.check_name(axis, where) and extent is not None:
                result[axis] = extent
        return result

    def _extent(self, value: object, where: str, rule: str) -> Optional[Extent]:
        entry = self.reader.as_object(value, where)
        if entry is not value:
            return None
        lo = self.reader.integer(entry, "lo", where)
        hi = self.reader.integer(entry, "hi", where)
        hint = self.reader.integer(entry, "hint", where) if rule == "bucket-range" else None
        if lo is None or hi is None or (hint is None and rule == "bucket-range"):
            return None
        if not 1 <= lo <= hi <= MAX_SIZE:
            text = "lo {} and hi {} must be 1 <= lo <= hi <= {}".format(lo, hi, MAX_SIZE)
            self.add(rule, where, text)
            return None
        if hint is not None and not lo <= hint <= hi:
            self.add(rule, where, "the hint {} isn't within {}..{}".format(hint, lo, hi))
            return None
        return Extent(lo, hi, hint)

    def _tensors(self, key: str, is_input: bool) -> List[TensorSpec]:
        result: List[TensorSpec] = []
        used: Set[Dim] = set()
        most = MAX_INPUTS if is_input else MAX_OUTPUTS
        names: Set[str] = set()
        for where, entry in self.reader.objects(self.document, key, "", 1, most):
            name = self.reader.name(entry, "name", where)
            if name is not None and name in names:
                self.add("name-unique", join(where, "name"), "{!r} occurs twice".format(name))
            names.add(name or "")
            dtype = self.reader.string(entry, "dtype", where)
            place = join(where, "dtype")
            if dtype is not None:
                known = self.reader.check_choice(dtype, place, INPUT_NAMES, "dtype-known")
                dtype = dtype if known else None
            shape = self._shape(entry, where, is_input)
            pad, bounds = self._values(entry, where, dtype) if is_input else (None, None)
            default = self._default(entry, where, dtype, bounds) if is_input else None
            used.update(shape)
            if dtype is not None:
                self._check_bytes(where, dtype, shape)
            result.append(TensorSpec(name or "", dtype or "", shape, pad, bounds, default))
        if is_input:
            for axis in self.axes:
                if axis not in used:
                    self.add("axis-used", join("axes", axis), "no input has this axis")
        return result

    def _shape(self, entry: Dict[str, Any], where: str, is_input: bool) -> Tuple[Dim, ...]:
        where = join(where, "shape")
        dims = self.reader.key(entry, "shape", where[: -len(".shape")])
        if "shape" not in entry:
            return ()
        if not isinstance(dims, list):
            self.add("key-type", where, "must be a list")
            return ()
        if len(dims) > MAX_DIMS:
            self.add("shape-rank", where, "{} dimensions, at most {}".format(len(dims), MAX_DIMS))
            return ()
        result: List[Dim] = []
        for index, dim in enumerate(dims):
            place = "{}[{}]".format(where, index)
            if isinstance(dim, str):
                if dim not in self.axes:
                    text = "{!r} isn't one of the axes".format(shorten(dim))
                    self.add("shape-axis", place, text)
                result.append(dim)
            elif isinstance(dim, int) and not isinstance(dim, bool):
                if not 1 <= dim <= MAX_SIZE:
                    text = "the size {} isn't within 1..{}".format(dim, MAX_SIZE)
                    self.add("shape-size", place, text)
                result.append(dim)
            elif dim is None and not is_input:
                result.append(dim)
            else:
                self.add("key-type", place, "must be a size or the name of an axis")
        return tuple(result)

    def _check_bytes(self, where: str, dtype: str, shape: Tuple[Dim, ...]) -> None:
        count = BY_NAME[dtype].size
        for dim in shape:
            if isinstance(dim, int):
                count *= max(dim, 1)
            elif dim in self.axes:
                count *= self.axes[dim].hi
        if count > MAX_TENSOR_BYTES:
            text = "up to {} bytes, at most {}".format(count, MAX_TENSOR_BYTES)
            self.add("tensor-bytes", join(where, "shape"), text)

    def _values(
        self, entry: Dict[str, Any], where: str, dtype: Optional[str]
    ) -> Tuple[Optional[Number], Optional[Tuple[Number, Number]]]:
        pad = None
        if entry.get("pad") is not None:
            pad = self.reader.number(entry, "pad", where)
            if pad is not None and dtype is not None and not holds(dtype, pad):
                text = "{} isn't a value of {}".format(pad, dtype)
                self.add("pad-value", join(where, "pad"), text)
        limits = entry.get("bounds")
        if limits is None:
            return pad, None
        place = join(where, "bounds")
        if not isinstance(limits, list) or len(limits) != 2:
            self.add("bounds-form", place, "must be null or [smallest, largest]")
            return pad, None
        low = self.reader.as_number(limits[0], place + "[0]")
        high = self.reader.as_number(limits[1], place + "[1]")
        if low is None or high is None:
            return pad, None
        if low > high or (dtype is not None and not (holds(dtype, low) and holds(dtype, high))):
            text = "[{}, {}] isn't an ascending pair of values of {}".format(low, high, dtype)
            self.add("bounds-form", place, text)
        elif pad is not None and not low <= pad <= high:
            text = "{} isn't within the bounds {}..{}".format(pad, low, high)
            self.add("pad-bounds", join(where, "pad"), text)
        return pad, (low, high)

    def _default(
        self,
        entry: Dict[str, Any],
        where: str,
        dtype: Optional[str],
        bounds: Optional[Tuple[Number, Number]],
    ) -> Optional[Number]:
        if entry.get("default") is None:
            return None
        value = self.reader.number(entry, "default", where)
        if value is not None and dtype is not None:
            inside = bounds is None or bounds[0] <= value <= bounds[1]
            if not holds(dtype, value) or not inside:
                text = "{} isn't a value of {} within its bounds".format(value, dtype)
                self.add("default-value", join(where, "default"), text)
        return value

    def _length_axis(self) -> Optional[str]:
        axis = self.reader.key(self.document, "length_axis", "")
        if axis is None:
            return None
        text = self.reader.as_string(axis, "length_axis")
        if text is not None and text not in self.axes:
            text = "{!r} isn't one of the axes".format(shorten(text))
            self.add("length-axis", "length_axis", text)
            return None
        return text

    def _buckets(
        self,
        length_axis: Optional[str],
        inputs: List[TensorSpec],
        outputs: List[TensorSpec],
    ) -> List[BucketSpec]:
        result = []
        wanted = ""  # made once: a hostile document has 256 buckets and as many axes as it likes
        for where, entry in self.reader.objects(self.document, "buckets", "", 1, 256):
            mode = self.reader.string(entry, "mode", where)
            if mode is not None:
                self.reader.check_choice(mode, join(where, "mode"), MODES, "bucket-mode")
            pad_axes = self._pad_axes(entry, where, mode, length_axis)
            if mode == "pad":
                if length_axis is None:
                    self.add("bucket-pad", where, "pad mode needs a length_axis")
                self._check_paddable(where, pad_axes, inputs, outputs)
            axes = self.reader.mapping(entry, "axes", where)
            if "axes" in entry and axes.keys() != self.axes.keys():
                wanted = wanted or _names(self.axes)
                text = "has {}, must have {}".format(_names(axes), wanted)
                self.add("bucket-axes", join(where, "axes"), text)
            extents = {}
            for axis, extent_entry in axes.items():
                place = join(where + ".axes", axis)
                extent = self._extent(extent_entry, place, "bucket-range")
                if extent is not None and axis in self.axes:
                    extents[axis] = extent
            if pad_axes == [length_axis]:
                pad_axes = []
            result.append(BucketSpec(mode or "", extents, tuple(pad_axes)))
        if result and not any(len(item.axes) != len(self.axes) for item in result):
            self._check_coverage(result)
        return result

    def _pad_axes(
        self, entry: Dict[str, Any], where: str, mode: Optional[str], length_axis: Optional[str]
    ) -> List[str]:
        """The axes that the bucket pads; [] in another mode."""
        if "pad_axes" not in entry:
            return [length_axis] if mode == "pad" and length_axis is not None else []
        place = join(where, "pad_axes")
        result: List[str] = []
        for axis in self.reader.strings(entry, "pad_axes", where, 1, 16):
            if axis not in self.axes:
                text = "{!r} isn't one of the axes".format(shorten(axis))
                self.add("bucket-pad-axes", place, text)
            elif axis in result:
                self.add("bucket-pad-axes", place, "{!r} occurs twice".format(shorten(axis)))
            else:
                result.append(axis)
        if mode == "exact":
            self.add("bucket-pad-axes", place, "a bucket of mode exact pads no axis")
        elif length_axis is not None and length_axis not in result:
            text = "must have the length axis {!r} among them".format(shorten(length_axis))
            self.add("bucket-pad-axes", place, text)
        return result

    def _check_paddable(
        self,
        where: str,
        pad_axes: List[str],
        inputs: List[TensorSpec],
        outputs: List[TensorSpec],
    ) -> None:
        for item in inputs:
            if item.pad is None and any(axis in item.shape for axis in pad_axes):
                text = "pad mode needs a pad value for the input {!r}".format(item.name)
                self.add("bucket-pad", where, text)
        for item in outputs:
            if None in item.shape:
                text = "the output {!r} has a size that can't be cut after padding"
                self.add("bucket-pad", where, text.format(item.name))

    def _check_coverage(self, buckets: List[BucketSpec]) -> None:
        for axis, extent in self.axes.items():
            lo = min(item.axes[axis].lo for item in buckets)
            hi = max(item.axes[axis].hi for item in buckets)
            if (lo, hi) != (extent.lo, extent.hi):
                text = "is {}, but the buckets reach from {} to {}".format(extent, lo, hi)
                self.add("axis-buckets", join("axes", axis), text)


def _names(entries: Iterable[str]) -> str:
    names = sorted(entries)
    more = len(names) - _MAX_LISTED
    text = ", ".join(shorten(name) for name in names[:_MAX_LISTED]) or "none"
    return text if more <= 0 else "{}, ... and {} more".format(text, more)
