"""Reads the manifest's ``state``: the outputs that are inputs of the next run."""

import math
from typing import List, Mapping, Optional, Set, Tuple

from ..document import Field, shorten
from ..dtypes import Number, holds
from .schema import StateSpec, TensorSpec
from .signature import MAX_OUTPUTS, Signature

MAX_START = 65536


def read_state(top: Field, signature: Signature) -> Tuple[StateSpec, ...]:
    """The ``state`` of a manifest; what is wrong goes to its problems.

    Args:
        top: the whole manifest.
        signature: the inputs and outputs that were read before.
    """
    result: List[StateSpec] = []
    entries = top.find("state")
    inputs = {item.name: item for item in signature.inputs}
    outputs = {item.name: item for item in signature.outputs}
    if entries and top.find("generation"):
        entries.refuse("state-tensors", "a language model keeps its states as generation says")
    for entry in entries.objects(1, MAX_OUTPUTS):
        output = _named(entry.at("output"), outputs, {item.output for item in result})
        item = _named(entry.at("input"), inputs, {item.input for item in result})
        if output is None or item is None or not item.dtype:
            continue
        problem = pair_problem(output, item)
        if problem is not None:
            entry.refuse("state-tensors", problem)
            continue
        start = _start(entry.find("start"), item)
        result.append(StateSpec(output.name, item.name, start))
    return tuple(result)


def pair_problem(output: TensorSpec, item: TensorSpec) -> Optional[str]:
    """The reason why an output can't be the next run's input; None: it can."""
    for tensor in (output, item):
        varying = [str(dim) for dim in tensor.shape if not isinstance(dim, int)]
        if varying:
            text = "{!r} has the shape {}, a state has fixed sizes"
            return text.format(tensor.name, _shape_text(tensor))
    if (output.dtype, output.shape) != (item.dtype, item.shape):
        text = "{!r} is {} {}, but {!r} is {} {}"
        return text.format(
            *(output.name, output.dtype, _shape_text(output)),
            *(item.name, item.dtype, _shape_text(item)),
        )
    return None


def _shape_text(tensor: TensorSpec) -> str:
    return "[{}]".format(", ".join("?" if dim is None else str(dim) for dim in tensor.shape))


def _named(field: Field, tensors: Mapping[str, TensorSpec], used: Set[str]) -> Optional[TensorSpec]:
    name = field.string()
    if name is None:
        return None
    if name not in tensors:
        field.refuse("state-tensors", "there is no {!r}".format(shorten(name)))
    elif name in used:
        field.refuse("state-tensors", "{!r} occurs twice".format(shorten(name)))
    return tensors.get(name)


def _start(field: Field, item: TensorSpec) -> Optional[Tuple[Number, ...]]:
    """The values of the first run; None: zeros."""
    values: Tuple[Number, ...] = (0,)
    if field.given:
        numbers = [value.number() for value in field.items(1, MAX_START)]
        values = tuple(number for number in numbers if number is not None)
        count = math.prod(dim for dim in item.shape if isinstance(dim, int))
        if isinstance(field.value, list) and len(field.value) not in (1, count):
            text = "has {} values, must have 1 or {}"
            field.refuse("state-start", text.format(len(field.value), count))
    problem = start_problem(item, values)
    if problem is not None:
        field.refuse("state-start", problem)
    return values if field.given else None


def start_problem(item: TensorSpec, values: Tuple[Number, ...]) -> Optional[str]:
    """The reason why an input can't begin with some values; None: it can."""
    low, high = (-math.inf, math.inf) if item.bounds is None else item.bounds
    for value in values:
        if not (holds(item.dtype, value) and low <= value <= high):
            return "{} isn't a value of {} within its bounds".format(value, item.dtype)
    return None
