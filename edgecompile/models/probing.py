"""Finds out by running a model which inputs it changes, and the shapes of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from edgecompile.errors import ModelError
from edgecompile.models.examples import make_example
from edgecompile.models.modules import NamedModule, run_module
from edgecompile.models.specs import AxisLimits, InputSpec, OutputSpec
from edgecompile.runtime.format.dtypes import INPUT_NAMES

# A size that is no model's hidden size by accident, and small enough to cost nothing.
_USUAL = 11


def probe_model(
    module: torch.nn.Module,
    inputs: Sequence[InputSpec],
    axes: Mapping[str, AxisLimits],
    name: str,
    working_sizes: Mapping[str, int] | None = None,
) -> tuple[tuple[OutputSpec, ...], tuple[str, ...]]:
    """Runs ``module`` at a first size, then at two other sizes of each axis.

    A :class:`NamedModule` then works on copies of the inputs that its code changes in place: what a
    program changes is the caller's own memory, which may be a file mapped read-only. Only these are
    copied, as a copy that nothing writes to would cost time for nothing.

    Args:
        module: takes inputs by name; its ``copied`` is set, if it has that.
        inputs, axes: its inputs and their axes.
        name: the model's name in errors.
        working_sizes: the sizes for which the model is known to work; default: small ones.

    Returns:
        The outputs, and a note for each input that is copied.

    Raises:
        ModelError: the model fails at the first sizes, or returns what no array can hold.
    """
    start = working_sizes or {axis: _first(limits) for axis, limits in axes.items()}
    example = make_example(inputs, start, seed=1)
    watch = WriteWatch(example, values=True)
    first = run_module(module, example, name)
    if isinstance(module, NamedModule):
        module.copied = tuple(watch.written())
    notes = tuple(
        f"its code changes the input '{changed}' in place: the program works on a copy"
        for changed in getattr(module, "copied", ())
    )
    _check_dtypes(first)
    shapes: dict[str, list[int | str | None]] = {key: list(t.shape) for key, t in first.items()}
    for axis, limits in axes.items():
        # A step that is too small for a strided convolution changes nothing, a large one does.
        usual = start[axis]
        tries = ((usual + 2, usual - 1, usual + 1), (2 * usual, usual // 2))
        runs = [_vary(module, inputs, start, axis, limits, name, sizes) for sizes in tries]
        others = [other for other in runs if other is not None]
        for key, tensor in first.items():
            for dim, size in enumerate(tensor.shape):
                if not others:
                    # The axis can't vary, or only in ways not tried: equal sizes are taken for it.
                    if size == usual and size > 1:
                        shapes[key][dim] = axis
                    continue
                pairs = [
                    (sizes[axis], results[key].shape[dim] if key in results else size)
                    for sizes, results in others
                ]
                if all(varied == size for _, varied in pairs):
                    continue
                same = size == usual and all(varied == axis_size for axis_size, varied in pairs)
                shapes[key][dim] = axis if same and shapes[key][dim] is not None else None
    outputs = tuple(
        OutputSpec(key, str(tensor.dtype).removeprefix("torch."), tuple(shapes[key]))
        for key, tensor in first.items()
    )
    return outputs, notes


def _first(limits: AxisLimits) -> int:
    if limits.lo == limits.hi:
        return limits.lo
    return max(limits.lo, min(_USUAL, limits.hi or _USUAL))


def _vary(
    module: torch.nn.Module,
    inputs: Sequence[InputSpec],
    start: Mapping[str, int],
    axis: str,
    limits: AxisLimits,
    name: str,
    tried: Sequence[int],
) -> tuple[dict[str, int], dict[str, torch.Tensor]] | None:
    for other in tried:
        # An axis that is fixed by choice (batch 1) can usually vary all the same.
        inside = limits.lo <= other <= (limits.hi or other) or limits.lo == limits.hi
        if other < 1 or other == start[axis] or not inside:
            continue
        sizes = {**start, axis: other}
        try:
            return sizes, run_module(module, make_example(inputs, sizes, seed=1), name)
        except ModelError:
            continue
    return None


def _check_dtypes(outputs: Mapping[str, torch.Tensor]) -> None:
    bad = [
        f"'{key}' is {str(tensor.dtype).removeprefix('torch.')}"
        for key, tensor in outputs.items()
        if str(tensor.dtype).removeprefix("torch.") not in INPUT_NAMES
    ]
    if bad:
        raise ModelError(
            "outputs have element types that numpy doesn't have: " + ", ".join(bad),
            hint="let the model convert them, for example to float32",
        )


class WriteWatch:
    """Tells which of some tensors were written to since it was made.

    torch counts the writes to a tensor: ``x.clamp_(min=0)`` is one also where nothing was below 0.
    A write that goes round torch (through numpy, or ``x.data``) shows in the values alone.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, values: bool = False) -> None:
        """``values``: whether to keep copies to compare with, which takes their memory again."""
        self._tensors = dict(tensors)
        self._versions = {name: _version(tensor) for name, tensor in tensors.items()}
        self._copies = {
            name: tensor.detach().clone() if values else tensor for name, tensor in tensors.items()
        }

    def written(self, now: Mapping[str, torch.Tensor] | None = None) -> list[str]:
        """Names of those that were written to, or are new, or were replaced by other values.

        Args:
            now: the present tensors of these names; None: the same tensors as before.
        """
        return [
            name
            for name, tensor in (self._tensors if now is None else now).items()
            if self._changed(name, tensor)
        ]

    def _changed(self, name: str, tensor: torch.Tensor) -> bool:
        old = self._tensors.get(name)
        if old is None or (tensor is old and _version(tensor) != self._versions[name]):
            return True
        copy = self._copies[name]
        return tensor is not copy and not (tensor.shape == copy.shape and torch.equal(tensor, copy))


def _version(tensor: torch.Tensor) -> int:
    # Tensors made in inference mode have no count.
    return 0 if tensor.is_inference() else tensor._version
