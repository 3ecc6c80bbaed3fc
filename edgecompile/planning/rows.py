"""Rows of a batch: whether one changes with those beside it, which are another client's on a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from edgecompile.buckets.ranges import AxisRange
from edgecompile.errors import ModelError
from edgecompile.models.loaded import LoadedModel
from edgecompile.precision import TOLERANCES
from edgecompile.runtime.format.dtypes import BY_NAME
from edgecompile.runtime.format.golden.compare import compare_arrays

if TYPE_CHECKING:
    import torch

#: Rows of the largest trial: a sum over all of them shows in a few.
_MOST_ROWS = 8


def why_rows_mix(model: LoadedModel, axes: Mapping[str, AxisRange]) -> str:
    """Runs batches eagerly, and each of their rows alone; the answers must be the same.

    The rows of a batch are drawn apart, later ones larger and more of them masked, so that a norm
    or a maximum over all rows shows.

    Args:
        model: the model.
        axes: the sizes to be served, of every axis.

    Returns:
        Empty if no row changed with those beside it by more than verification allows in fp32; else
        what was seen.
    """
    shapes = [spec.shape for spec in model.inputs] + [spec.shape for spec in model.outputs]
    first = {shape[0] if shape else None for shape in shapes}
    axis = first.pop() if len(first) == 1 else None
    if not isinstance(axis, str) or axis == model.length_axis:
        return "not every input and output begins with the batch"
    try:
        for sizes in _trials(model, axis, axes):
            reason = _compare(model, axis, axes[axis].lo, sizes)
            if reason:
                return reason
    except ModelError as error:
        return f"the eager model fails: {error.message}"
    return ""


def _trials(
    model: LoadedModel, axis: str, axes: Mapping[str, AxisRange]
) -> Iterator[dict[str, int]]:
    """Two of the least batches at the ends of the lengths, and more of them in the middle."""
    least, most = axes[axis].lo, axes[axis].hi
    low = {name: extent.lo for name, extent in axes.items()}
    extent = None if model.length_axis is None else axes[model.length_axis]
    lengths = [1] if extent is None else [extent.lo, (extent.lo + extent.hi) // 2, extent.hi]
    rows = [2 * least, min(most, max(2 * least, _MOST_ROWS)) // least * least, 2 * least]
    for length, count in dict(zip(lengths, rows, strict=False)).items():
        if count <= most:
            yield {**low, axis: count, **({model.length_axis: length} if extent else {})}  # type: ignore[dict-item]


def _compare(model: LoadedModel, axis: str, least: int, sizes: Mapping[str, int]) -> str:
    batch = _draw(model, axis, sizes)
    together = model.run(batch)
    for at in range(0, sizes[axis], least):
        alone = model.run({name: tensor[at : at + least] for name, tensor in batch.items()})
        for name, want in alone.items():
            got = together[name][at : at + least]
            agreement = compare_arrays(got.numpy(), want.numpy(), TOLERANCES["fp32"])
            if not agreement.ok:
                shape = ", ".join(f"{key} {size}" for key, size in sizes.items())
                return (
                    f"row {at} of a batch ({shape}) isn't what it is alone: {name} "
                    f"{agreement.reason}"
                )
    return ""


def _draw(model: LoadedModel, axis: str, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Valid inputs whose later rows have larger numbers, and fewer real positions."""
    import torch

    length = sizes.get(model.length_axis or "", 1)
    masked = [row * (length - 1) // sizes[axis] for row in range(sizes[axis])]
    padding = masked if model.has_mask and model.paddable else 0
    drawn = model.make_example(sizes, seed=23, padding=padding)
    for spec in model.inputs:
        if BY_NAME[spec.dtype].kind == "f" and not spec.is_mask:
            x = drawn[spec.name]
            scale = torch.logspace(0, 2, len(x), dtype=x.dtype).view(-1, *[1] * (x.dim() - 1))
            x = x * scale
            span = spec.span(sizes)
            drawn[spec.name] = x if span is None else x.clamp(*map(float, span))
    return drawn
