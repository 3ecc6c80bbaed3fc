"""Inputs of a model from a seed and a length: the same bytes in every contender's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def make_inputs(
    specs: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """Arrays by input name.

    Integers whose bounds hold more than two values are uniform within them, floats without bounds
    are normal, floats with bounds uniform; all else is one, or the nearest allowed value: a mask
    that masks nothing. ``draw``, where a specification has it, is narrower than its ``bounds``.

    Args:
        specs: dicts with ``name``, ``dtype``, ``shape`` (sizes or names of axes), ``bounds`` and
            ``draw`` ([low, high] or None).
        sizes: size of every axis.
        seed: of the values. Legacy seeding, because numpy promises its stream for ever.
    """
    random = np.random.RandomState(seed % 2**32)
    result = {}
    for spec in specs:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in spec["shape"])
        dtype = np.dtype(spec["dtype"])
        span = spec.get("draw") or spec.get("bounds")
        values: Any
        if dtype.kind == "f":
            if span is None:
                values = random.standard_normal(shape)
            else:
                values = random.uniform(span[0], span[1], shape)
        elif span is not None and span[1] - span[0] > 1:
            values = random.randint(int(span[0]), min(int(span[1]), 2**62) + 1, shape, np.int64)
        else:
            values = np.full(shape, 1 if span is None else min(max(1, span[0]), span[1]))
        result[str(spec["name"])] = np.ascontiguousarray(values.astype(dtype))
    return result
