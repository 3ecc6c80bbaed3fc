"""Reads the part of a manifest that says how a model is called: axes, inputs, outputs, buckets."""

import math
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..document import Field, shorten
from ..dtypes import BFLOAT16, BY_NAME, CACHE_NAMES, INPUT_NAMES, Number, holds
from ..sums import axes_of, find_givers, size_span
from .schema import MODES, STEPPED, BucketSpec, Dim, Extent, TensorSpec

#: The sums of axes that the lower and the upper bound of an input follow.
Reach = Tuple[Optional[str], Optional[str]]

MAX_SIZE = 2**31 - 1
MAX_DIMS = 8
MAX_TENSOR_BYTES = 1 << 40
#: A generative program has two caches for each layer among its inputs.
MAX_INPUTS, MAX_OUTPUTS = 512, 64
_MAX_LISTED = 32


class Signature(NamedTuple):
    """The signature; complete only if no problem was noted."""

    axes: Dict[str, Extent]
    inputs: Tuple[TensorSpec, ...]
    outputs: Tuple[TensorSpec, ...]
    length_axis: Optional[str]
    buckets: Tuple[BucketSpec, ...]


class SignatureReader:
    """Reads in the order in which the keys depend on each other."""

    def __init__(self, document: Field) -> None:
        self.document = document
        self.axes: Dict[str, Extent] = {}

    def read(self) -> Signature:
        """The signature; what is wrong goes to the document's problems."""
        self.axes = self._axes()
        inputs = self._tensors("inputs", is_input=True)
        outputs = self._tensors("outputs", is_input=False)
        length_axis = self._length_axis()
        buckets = self._buckets(length_axis, inputs, outputs)
        return Signature(self.axes, tuple(inputs), tuple(outputs), length_axis, tuple(buckets))

    def _axes(self) -> Dict[str, Extent]:
        result = {}
        for axis, entry in self.document.at("axes").members(0, 16):
            extent = _extent(entry, "axis-range")
            if entry.check_name(axis) and extent is not None:
                result[axis] = extent
        return result

    def _axis(self, field: Field, rule: str) -> Optional[str]:
        """The name of one of the axes, or ``rule`` is broken."""
        axis = field.string()
        if axis is None or axis in self.axes:
            return axis
        field.refuse(rule, "{!r} isn't one of the axes".format(shorten(axis)))
        return None

    def _span(self, text: str) -> Optional[Tuple[int, int]]:
        """The least and the largest size of an axis or a sum of axes; None: it is neither."""
        try:
            return size_span(text, self.axes)
        except KeyError:
            return None

    def _sum(self, field: Field, rule: str, lowest: int) -> Optional[Tuple[int, int]]:
        """The span of a string that has to name an axis or a sum of axes within ``lowest`` to ``MAX_SIZE``."""
        span = self._span(field.value)
        text = shorten(field.value)
        if span is None:
            field.refuse(rule, "{!r} isn't one of the axes, nor a sum of them".format(text))
        elif span[0] < lowest or span[1] > MAX_SIZE:
            message = "{!r} is {} to {}, not within {}..{}"
            field.refuse(rule, message.format(text, *span, lowest, MAX_SIZE))
        else:
            return span
        return None

    def _tensors(self, key: str, is_input: bool) -> List[TensorSpec]:
        result: List[TensorSpec] = []
        used: Set[Dim] = set()
        most = MAX_INPUTS if is_input else MAX_OUTPUTS
        names: Set[str] = set()
        known = CACHE_NAMES if is_input and self.document.find("generation") else INPUT_NAMES
        for entry in self.document.at(key).objects(1, most):
            name = entry.at("name").name()
            if name is not None and name in names:
                entry.find("name").refuse("name-unique", "{!r} occurs twice".format(name))
            names.add(name or "")
            dtype = entry.at("dtype").choice(known, "dtype-known")
            shape = self._shape(entry.at("shape"), is_input)
            pad = bounds = default = None
            reach: Reach = (None, None)
            if dtype == BFLOAT16:
                for value in ("pad", "bounds", "default"):
                    if entry.find(value).given:
                        entry.find(value).refuse("dtype-cache", "must be null, as it is bfloat16")
            elif is_input:
                pad, bounds, reach = self._values(entry, dtype)
                default = self._default(entry.find("default"), dtype, bounds, reach)
            used.update(shape)
            if dtype is not None:
                self._check_bytes(entry.find("shape"), dtype, shape)
            result.append(TensorSpec(name or "", dtype or "", shape, pad, bounds, default, reach))
        if is_input:
            dims = [dim for item in result for dim in item.shape]
            used.update(axis for axis, _ in find_givers(dims, self.axes))
            for axis in self.axes:
                if axis not in used:
                    self._refuse_axis(axis, "axis-used", "no input gives the size of this axis")
        return result

    def _refuse_axis(self, axis: str, rule: str, text: str) -> None:
        self.document.find("axes").find(axis).refuse(rule, text)

    def _shape(self, field: Field, is_input: bool) -> Tuple[Dim, ...]:
        dims = field.value
        if not isinstance(dims, list):
            if field:
                field.refuse("key-type", "must be a list")
            return ()
        if len(dims) > MAX_DIMS:
            field.refuse("shape-rank", "{} dimensions, at most {}".format(len(dims), MAX_DIMS))
            return ()
        result: List[Dim] = []
        for item in field.items(0, MAX_DIMS):
            dim = item.value
            if isinstance(dim, str):
                self._sum(item, "shape-axis", lowest=1)
            elif isinstance(dim, int) and not isinstance(dim, bool):
                if not 1 <= dim <= MAX_SIZE:
                    text = "the size {} isn't within 1..{}".format(dim, MAX_SIZE)
                    item.refuse("shape-size", text)
            elif dim is not None or is_input:
                item.refuse("key-type", "must be a size or the name of an axis")
                continue
            result.append(dim)
        return tuple(result)

    def _check_bytes(self, field: Field, dtype: str, shape: Tuple[Dim, ...]) -> None:
        count = BY_NAME[dtype].size
        for dim in shape:
            if isinstance(dim, int):
                count *= max(dim, 1)
            elif dim is not None:
                count *= max(1, (self._span(dim) or (1, 1))[1])
        if count > MAX_TENSOR_BYTES:
            text = "up to {} bytes, at most {}".format(count, MAX_TENSOR_BYTES)
            field.refuse("tensor-bytes", text)

    def _length_axis(self) -> Optional[str]:
        field = self.document.at("length_axis")
        return self._axis(field, "length-axis") if field.given else None

    def _buckets(
        self,
        length_axis: Optional[str],
        inputs: List[TensorSpec],
        outputs: List[TensorSpec],
    ) -> List[BucketSpec]:
        result = []
        expected = ""  # made once: a hostile document has 256 buckets and as many axes as it likes
        for entry in self.document.at("buckets").objects(1, 256):
            mode = entry.at("mode").choice(MODES, "bucket-mode")
            pad_axes = self._pad_axes(entry.find("pad_axes"), mode, length_axis)
            if mode == "pad":
                if length_axis is None:
                    entry.refuse("bucket-pad", "pad mode needs a length_axis")
                self._check_paddable(entry, pad_axes, inputs, outputs)
            axes = entry.at("axes")
            names = axes.mapping().keys()
            if axes and names != self.axes.keys():
                expected = expected or _names(self.axes)
                axes.refuse("bucket-axes", "has {}, must have {}".format(_names(names), expected))
            extents = {}
            for axis in names:
                extent = _extent(axes.find(axis), "bucket-range")
                if extent is not None and axis in self.axes:
                    extents[axis] = extent
            if pad_axes == [length_axis]:
                pad_axes = []
            if mode == STEPPED:
                mode = "exact"
                if length_axis is None:
                    entry.refuse("bucket-step", "the mode stepped needs a length_axis")
                elif length_axis in extents:
                    step = _step(axes.find(length_axis), extents[length_axis])
                    extents[length_axis] = extents[length_axis]._replace(step=step)
            result.append(BucketSpec(mode or "", extents, tuple(pad_axes)))
        if result and not any(len(item.axes) != len(self.axes) for item in result):
            self._check_coverage(result)
        return result

    def _check_paddable(
        self,
        bucket: Field,
        pad_axes: List[str],
        inputs: List[TensorSpec],
        outputs: List[TensorSpec],
    ) -> None:
        for item in inputs:
            along = {d for d in item.shape if not set(pad_axes).isdisjoint(axes_of(d, self.axes))}
            if along and item.pad is None:
                text = "pad mode needs a pad value for the input {!r}".format(item.name)
                bucket.refuse("bucket-pad", text)
            elif not along <= set(pad_axes):
                text = "the input {!r} has a size that follows from a padded axis".format(item.name)
                bucket.refuse("bucket-pad", text)
        for item in outputs:
            if None in item.shape:
                text = "the output {!r} has a size that can't be cut after padding"
                bucket.refuse("bucket-pad", text.format(item.name))

    def _pad_axes(self, field: Field, mode: Optional[str], length_axis: Optional[str]) -> List[str]:
        """The axes that the bucket pads; [] in another mode."""
        if not field:
            return [length_axis] if mode == "pad" and length_axis is not None else []
        result: List[str] = []
        for axis in field.strings(1, 16):
            if axis not in self.axes:
                text = "{!r} isn't one of the axes".format(shorten(axis))
                field.refuse("bucket-pad-axes", text)
            elif axis in result:
                field.refuse("bucket-pad-axes", "{!r} occurs twice".format(shorten(axis)))
            else:
                result.append(axis)
        if mode in ("exact", STEPPED):
            field.refuse("bucket-pad-axes", "a bucket of mode {} pads no axis".format(mode))
        elif length_axis is not None and length_axis not in result:
            text = "must have the length axis {!r} among them".format(shorten(length_axis))
            field.refuse("bucket-pad-axes", text)
        return result

    def _check_coverage(self, buckets: List[BucketSpec]) -> None:
        for axis, extent in self.axes.items():
            lo = min(item.axes[axis].lo for item in buckets)
            hi = max(item.axes[axis].hi for item in buckets)
            if (lo, hi) != (extent.lo, extent.hi):
                text = "is {}, but the buckets reach from {} to {}".format(extent, lo, hi)
                self._refuse_axis(axis, "axis-buckets", text)

    def _values(
        self, entry: Field, dtype: Optional[str]
    ) -> Tuple[Optional[Number], Optional[Tuple[Number, Number]], Reach]:
        """The pad value and the bounds of an input, and the sums that the bounds follow."""
        field, limits = entry.find("pad"), entry.find("bounds")
        pad = field.number() if field.given else None
        if pad is not None and dtype is not None and not holds(dtype, pad):
            field.refuse("pad-value", "{} isn't a value of {}".format(pad, dtype))
        if not limits.given:
            return pad, None, (None, None)
        if not isinstance(limits.value, list) or len(limits.value) != 2:
            limits.refuse("bounds-form", "must be null or [smallest, largest]")
            return pad, None, (None, None)
        ends: List[Optional[Number]] = []
        reach: List[Optional[str]] = []
        for index, item in enumerate(limits.items(2, 2)):
            text = item.value if isinstance(item.value, str) else None
            reach.append(text)
            if text is None:
                ends.append(item.number())
                continue
            span = self._sum(item, "bounds-form", lowest=-MAX_SIZE)
            ends.append(None if span is None else span[index])
        low, high = ends
        if low is None or high is None:
            return pad, None, (None, None)
        if low > high or (dtype is not None and not (holds(dtype, low) and holds(dtype, high))):
            text = "[{}, {}] isn't an ascending pair of values of {}".format(low, high, dtype)
            limits.refuse("bounds-form", text)
        elif pad is not None and not low <= pad <= high:
            field.refuse("pad-bounds", "{} isn't within the bounds {}..{}".format(pad, low, high))
        return pad, (low, high), (reach[0], reach[1])

    def _default(
        self,
        field: Field,
        dtype: Optional[str],
        bounds: Optional[Tuple[Number, Number]],
        reach: Reach,
    ) -> Optional[Number]:
        """The value that stands for an input that isn't given, within its bounds at every size."""
        value = field.number() if field.given else None
        if value is not None and dtype is not None:
            low, high = (-math.inf, math.inf) if bounds is None else bounds
            # Of a bound that follows axes, the narrowest counts.
            low = low if reach[0] is None else self._span(reach[0])[1]  # type: ignore[index]
            high = high if reach[1] is None else self._span(reach[1])[0]  # type: ignore[index]
            if not holds(dtype, value) or not low <= value <= high:
                text = "{} isn't a value of {} within its bounds".format(value, dtype)
                field.refuse("default-value", text)
        return value


def _extent(entry: Field, rule: str) -> Optional[Extent]:
    if not entry.object():
        return None
    lo, hi = entry.at("lo").integer(), entry.at("hi").integer()
    hint = entry.at("hint").integer() if rule == "bucket-range" else None
    if lo is None or hi is None or (hint is None and rule == "bucket-range"):
        return None
    if not 1 <= lo <= hi <= MAX_SIZE:
        text = "lo {} and hi {} must be 1 <= lo <= hi <= {}".format(lo, hi, MAX_SIZE)
        entry.refuse(rule, text)
        return None
    if hint is not None and not lo <= hint <= hi:
        entry.refuse(rule, "the hint {} isn't within {}..{}".format(hint, lo, hi))
        return None
    return Extent(lo, hi, hint)


def _step(entry: Field, extent: Extent) -> int:
    """The step of a stepped bucket's length axis; 1 if that broke a rule."""
    field = entry.at("step")
    step = field.within(2, MAX_SIZE, "bucket-step")
    if step is None or not 2 <= step <= MAX_SIZE:
        return 1
    for name, size in (("hi", extent.hi), ("hint", extent.hint or extent.lo)):
        if (size - extent.lo) % step:
            text = "{} {} isn't reached from lo {} in steps of {}"
            field.refuse("bucket-step", text.format(name, size, extent.lo, step))
    return step


def _names(entries: Iterable[str]) -> str:
    names = sorted(entries)
    more = len(names) - _MAX_LISTED
    text = ", ".join(shorten(name) for name in names[:_MAX_LISTED]) or "none"
    return text if more <= 0 else "{}, ... and {} more".format(text, more)
