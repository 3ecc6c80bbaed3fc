"""Pad values, bounds and masks that a factory declares for its inputs, checked against them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from edgecompile.checks import describe
from edgecompile.errors import ModelError
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions
from edgecompile.models.specs import AxisLimits, Bound, InputSpec
from edgecompile.runtime.format.dtypes import BY_NAME, Number, holds
from edgecompile.runtime.format.sums import AxisSum, parse_sum, size_of

_SIGN = re.compile(r"\s*([-+*])\s*")
#: Of a ModelSpec's fields that may be None: their types, and the words for them.
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "pad": ((Mapping,), "a dict by input name"),
    "bounds": ((Mapping,), "a dict by input name"),
    "state": ((Mapping,), "a dict by input name"),
    "start": ((Mapping,), "a dict by input name"),
    "masks": ((list, tuple, set, frozenset), "a list of names"),
    "outputs": ((list, tuple), "a list of names"),
    "length_axis": ((str,), "the name of an axis"),
    "name": ((str,), "a text"),
    "tokenizer": ((str, os.PathLike), "a path"),
}


def check_kinds(spec: Any, problems: list[str]) -> Any:
    """A ModelSpec without the fields that have a wrong type; each adds a line to ``problems``."""
    for name, (kinds, form) in _KINDS.items():
        value: Any = getattr(spec, name)
        names: Any = value if isinstance(value, (list, tuple, set, frozenset)) else ()
        if value is None or (isinstance(value, kinds) and all(isinstance(n, str) for n in names)):
            continue
        problems.append(f"{name} is {describe(value)}, not {form}")
        spec = replace(spec, **{name: None})
    return spec


def read_sum(text: str) -> AxisSum | None:
    """The sum of axes that a text states, with or without spaces around its signs; None: it is no sum."""
    return parse_sum(_SIGN.sub(r"\1", text.strip()))


def describe_inputs(
    examples: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[int | str]],
    extents: Mapping[str, tuple[int, int]],
    *,
    pad: Mapping[str, Any],
    bounds: Mapping[str, Any],
    masks: Collection[str] | None,
    problems: list[str],
) -> tuple[InputSpec, ...]:
    """An InputSpec for every example.

    Args:
        examples: the example inputs by name.
        shapes: their shapes, with axis names where the size varies.
        extents: Smallest and largest size of every axis.
        pad, bounds: Declared values by input name, not yet checked.
        masks: names of the masks; None: integers and bools whose name ends in ``mask``.
        problems: a list that gets a line for every problem.
    """
    for label, names in (("pad", pad), ("bounds", bounds), ("masks", masks or ())):
        unknown = [str(name) for name in names if name not in examples]
        if unknown:
            problems.append(f"{label} names inputs that don't exist: {', '.join(unknown)}")
    result = []
    sizes = {
        dim: size
        for name, tensor in examples.items()
        for dim, size in zip(shapes[name], tensor.shape, strict=True)
        if isinstance(dim, str)
    }
    for name, tensor in examples.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        whole = BY_NAME[dtype].kind != "f"
        is_mask = name in masks if masks is not None else whole and name.endswith("mask")
        value = pad.get(name, 0 if is_mask else None)
        if value is not None and not _fits(dtype, value):
            problems.append(f"the pad value {value!r} of '{name}' isn't a {dtype}")
            value = None
        span = _check_bounds(name, dtype, tensor, bounds.get(name), sizes, problems)
        if span is not None and _least_room(span, extents) < 0:
            problems.append(
                f"the bounds {span[0]}..{span[1]} of '{name}' leave no value at some sizes: limits must "
                "exclude these"
            )
        if is_mask:
            span = span or (0, 1)
        draw: tuple[Number, Number] | None = (1, 1) if is_mask else None
        if whole and span is None and draw is None:
            # The example is the only evidence of what values are allowed.
            draw = (int(tensor.min()), int(tensor.max()))
        if value is not None and span is not None and not _inside(value, span, sizes):
            problems.append(f"the pad value {value} of '{name}' is outside its bounds")
        result.append(InputSpec(name, dtype, tuple(shapes[name]), value, span, draw))
    return tuple(result)


def with_one_size(loaded: LoadedModel) -> LoadedModel:
    """The model, or one of which nothing varies with its inputs' first dimension as an axis.

    That axis has one size: ``batch`` where it is 1, else ``rows``. One size is a plan, too.
    """
    states = {item.input for item in loaded.state}  # which have fixed sizes
    free = [spec for spec in loaded.inputs if spec.name not in states]
    size = next((spec.shape[0] for spec in free if spec.shape), None)
    if loaded.axes or not isinstance(size, int):
        return loaded
    axis = "batch" if size == 1 else "rows"
    inputs = tuple(
        replace(spec, shape=(axis, *spec.shape[1:]))
        if spec in free and spec.shape[:1] == (size,)
        else spec
        for spec in loaded.inputs
    )
    limits = {axis: AxisLimits(size, size)}
    return replace(loaded, inputs=inputs, axes=limits, length_axis=axis)


def with_pads(inputs: tuple[InputSpec, ...], options: LoadOptions) -> tuple[InputSpec, ...]:
    """The inputs with the pad values that were asked for.

    Raises:
        ModelError: there is no such input.
    """
    unknown = sorted(set(options.pad) - {spec.name for spec in inputs})
    if unknown:
        raise ModelError(f"pad values for inputs that don't exist: {', '.join(unknown)}")
    return tuple(replace(s, pad=options.pad.get(s.name, s.pad)) for s in inputs)


def _check_bounds(
    name: str,
    dtype: str,
    tensor: torch.Tensor,
    bounds: Any,
    sizes: Mapping[str, int],
    problems: list[str],
) -> tuple[Bound, Bound] | None:
    if bounds is None:
        return None
    ends = [_read_bound(dtype, end, sizes) for end in bounds] if _is_pair(bounds) else []
    numbers = [end for end in ends if not isinstance(end, str)]
    if len(ends) != 2 or None in ends or numbers != sorted(numbers):  # type: ignore[type-var]
        form = f"numbers of {dtype}"
        if sizes and BY_NAME[dtype].kind in "iu":
            form += f" or sums of axes ({', '.join(sizes)})"
        problems.append(f"the bounds {bounds!r} of '{name}' aren't (lowest, highest), {form}")
        return None
    span: tuple[Bound, Bound] = (ends[0], ends[1])  # type: ignore[assignment]
    low, high = float(tensor.min()), float(tensor.max())
    if not (_inside(low, span, sizes) and _inside(high, span, sizes)):
        problems.append(
            f"the example '{name}' has values {low:g}..{high:g}, outside its bounds "
            f"{span[0]}..{span[1]}"
        )
    return span


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


def _read_bound(dtype: str, value: Any, sizes: Mapping[str, int]) -> Bound | None:
    """A bound as it is declared, sums in their usual form; None: it is no bound of this dtype."""
    if not isinstance(value, str):
        return value if _fits(dtype, value) else None
    found = read_sum(value)
    known = found is not None and all(axis in sizes for axis, _ in found.terms)
    return str(found) if known and BY_NAME[dtype].kind in "iu" else None


def _least_room(span: tuple[Bound, Bound], extents: Mapping[str, tuple[int, int]]) -> Number:
    """The least distance from the lower to the upper bound, below 0 where some sizes leave no value."""
    ends = [parse_sum(end) if isinstance(end, str) else None for end in span]
    if ends == [None, None]:
        return 0  # numbers have been compared
    low, high = (
        AxisSum((), int(number)) if end is None else end
        for end, number in zip(ends, span, strict=True)
    )
    factors = dict(high.terms)
    for axis, factor in low.terms:
        factors[axis] = factors.get(axis, 0) - factor
    room = AxisSum(tuple(factors.items()), high.constant - low.constant)
    return room.span(extents)[0]


def _inside(value: float, span: tuple[Bound, Bound], sizes: Mapping[str, int]) -> bool:
    low, high = (size_of(end, sizes) if isinstance(end, str) else end for end in span)
    return low <= value <= high


def _fits(dtype: str, value: Any) -> bool:
    # A manifest is JSON, which has neither NaN nor infinity: a large finite number pads a mask.
    if not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        return False
    return holds(dtype, int(value) if isinstance(value, bool) else value)
