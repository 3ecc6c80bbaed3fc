"""Pad values, bounds and masks that a factory declares for its inputs, checked against them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from edgecompile.checks import describe
from edgecompile.errors import ModelError
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions
from edgecompile.models.specs import AxisLimits, InputSpec
from edgecompile.runtime.format.dtypes import BY_NAME, Number, holds

#: Of a ModelSpec's fields that may be None: their types, and the words for them.
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "pad": ((Mapping,), "a dict by input name"),
    "bounds": ((Mapping,), "a dict by input name"),
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


def describe_inputs(
    examples: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[int | str]],
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
        pad, bounds: what is declared, by input name, not yet checked.
        masks: names of the masks; None: integers and bools whose name ends in ``mask``.
        problems: gets a line for everything that is wrong.
    """
    for label, names in (("pad", pad), ("bounds", bounds), ("masks", masks or ())):
        unknown = [str(name) for name in names if name not in examples]
        if unknown:
            problems.append(f"{label} names inputs that don't exist: {', '.join(unknown)}")
    result = []
    for name, tensor in examples.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        whole = BY_NAME[dtype].kind != "f"
        is_mask = name in masks if masks is not None else whole and name.endswith("mask")
        value = pad.get(name, 0 if is_mask else None)
        if value is not None and not _fits(dtype, value):
            problems.append(f"the pad value {value!r} of '{name}' isn't a {dtype}")
            value = None
        span = _check_bounds(name, dtype, tensor, bounds.get(name), problems)
        if is_mask:
            span = span or (0, 1)
        draw: tuple[Number, Number] | None = (1, 1) if is_mask else None
        if whole and span is None and draw is None:
            # The example is the only evidence of what values are allowed.
            draw = (int(tensor.min()), int(tensor.max()))
        if value is not None and span is not None and not span[0] <= value <= span[1]:
            problems.append(f"the pad value {value} of '{name}' is outside its bounds")
        result.append(InputSpec(name, dtype, tuple(shapes[name]), value, span, draw))
    return tuple(result)


def with_one_size(loaded: LoadedModel) -> LoadedModel:
    """The model, or one of which nothing varies with its inputs' first dimension as an axis.

    That axis has one size: ``batch`` where it is 1, else ``rows``. One size is a plan, too.
    """
    size = next((spec.shape[0] for spec in loaded.inputs if spec.shape), None)
    if loaded.axes or not isinstance(size, int):
        return loaded
    axis = "batch" if size == 1 else "rows"
    inputs = tuple(
        replace(spec, shape=(axis, *spec.shape[1:])) if spec.shape[:1] == (size,) else spec
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
    name: str, dtype: str, tensor: torch.Tensor, bounds: Any, problems: list[str]
) -> tuple[Number, Number] | None:
    if bounds is None:
        return None
    ok = (
        isinstance(bounds, Sequence)
        and len(bounds) == 2
        and all(_fits(dtype, value) for value in bounds)
        and bounds[0] <= bounds[1]
    )
    if not ok:
        problems.append(f"the bounds {bounds!r} of '{name}' aren't (lowest, highest)")
        return None
    low, high = float(tensor.min()), float(tensor.max())
    if low < bounds[0] or high > bounds[1]:
        problems.append(
            f"the example '{name}' has values {low:g}..{high:g}, outside its bounds "
            f"{bounds[0]}..{bounds[1]}"
        )
    return bounds[0], bounds[1]


def _fits(dtype: str, value: Any) -> bool:
    # A manifest is JSON, which has neither NaN nor infinity: a large finite number pads a mask.
    if not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        return False
    return holds(dtype, int(value) if isinstance(value, bool) else value)
