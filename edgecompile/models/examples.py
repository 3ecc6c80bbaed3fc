"""Random valid inputs of a model, for tracing, checks and golden vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from edgecompile.models.cache_rows import quantize_rows, row_width
from edgecompile.models.draws import shape_values
from edgecompile.models.specs import InputSpec
from edgecompile.runtime.format.dtypes import BY_NAME, Number
from edgecompile.runtime.format.sums import size_of


def make_example(
    inputs: Sequence[InputSpec],
    sizes: Mapping[str, int],
    *,
    seed: int = 0,
    length_axis: str | None = None,
    padding: int | Sequence[int] = 0,
    kind: str = "",
) -> dict[str, torch.Tensor]:
    """Draws inputs with the given axis sizes; the same seed gives the same values.

    Integers come from ``draw``, else ``bounds``, else {0, 1}; floats are standard normal unless
    there is a range to draw from; masks are 1.

    Args:
        inputs: the inputs to make.
        sizes: size of every axis that occurs in the shapes.
        seed: the seed of the draw.
        length_axis: the axis that ``padding`` is about.
        padding: the number of trailing positions of the length axis that hold pad values; one, or
            one per index of the first dimension.
        kind: the kind of likeness to real values (:mod:`edgecompile.models.kinds`); "": independent
            values.

    Raises:
        ValueError: an axis has no size, or an input with padding has no pad value.
    """
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for spec in inputs:
        try:
            shape = [size_of(dim, sizes) for dim in spec.shape]
        except KeyError as missing:
            raise ValueError(
                f"no size was given for the axis {missing} of input '{spec.name}'"
            ) from None
        tensor = _draw(spec, spec.span(sizes), shape, generator)
        # Numbers of its own: what is drawn for the next input doesn't depend on the kind.
        random = torch.Generator().manual_seed(seed + 1)
        tensor = shape_values(spec, tensor, length_axis, kind, random).contiguous()
        if padding and length_axis in spec.shape:
            _fill_tail(spec, tensor, spec.shape.index(length_axis), padding)
        result[spec.name] = tensor
    return result


def pad_inputs(
    inputs: Sequence[InputSpec], example: Mapping[str, torch.Tensor], axis: str, size: int
) -> dict[str, torch.Tensor]:
    """The example with every input padded along ``axis`` to ``size``, as pad mode does it."""
    result = {}
    for spec in inputs:
        tensor = example[spec.name]
        for dim, name in enumerate(spec.shape):
            if name == axis:
                if spec.pad is None:
                    raise ValueError(f"input '{spec.name}' has no pad value")
                tail = list(tensor.shape)
                tail[dim] = size - tail[dim]
                fill = torch.full(tail, spec.pad, dtype=tensor.dtype)
                tensor = torch.cat([tensor, fill], dim)
        result[spec.name] = tensor
    return result


def _draw(
    spec: InputSpec,
    span: tuple[Number, Number] | None,
    shape: Sequence[int],
    generator: torch.Generator,
) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    if spec.has_scales:
        return quantize_rows(torch.randn([*shape[:-1], row_width(shape[-1])], generator=generator))
    if BY_NAME[spec.dtype].kind == "f":
        if span is None:
            return torch.randn(shape, generator=generator).to(dtype)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (span[0] + uniform * (span[1] - span[0])).to(dtype)
    low, high = _whole(span) if span is not None else (0, 1)
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def _whole(span: tuple[Number, Number]) -> tuple[int, int]:
    # torch.randint's upper end is exclusive and must fit in int64.
    return max(int(span[0]), -(2**62)), min(int(span[1]), 2**62)


def _fill_tail(
    spec: InputSpec, tensor: torch.Tensor, dim: int, padding: int | Sequence[int]
) -> None:
    if spec.pad is None:
        raise ValueError(f"input '{spec.name}' has no pad value")
    if isinstance(padding, int):
        tensor.narrow(dim, tensor.shape[dim] - padding, padding).fill_(spec.pad)
        return
    if dim == 0:
        raise ValueError(f"input '{spec.name}' has the length first: one padding for all")
    for row, amount in zip(tensor, padding, strict=True):
        row.narrow(dim - 1, row.shape[dim - 1] - amount, amount).fill_(spec.pad)
