"""Weights rounded to int8 or int4 so that later ones make up for the errors of earlier ones.

A product's weights may be rounded up or down each; what counts is by how much the product of the
rows that it will meet changes. Columns are rounded one after another, and what a column's rounding
adds to the results is taken, as well as it can be, from the columns that follow: GPTQ (Frantar et
al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022), with
a scale for each block of inputs. Only the inputs' second moments
are needed, which some runs in torch give; the runtime doesn't tell such weights from others.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.files import replacing
from edgecompile.precision import INT4, INT8

#: Added to each input's mean square, of the mean of all: keeps what a few hundred rows don't tell
#: from being taken for a law. From 0.01 to 0.1 MiniLM's errors fell by a tenth.
_DAMPING = 0.1


#: Numbers that are rounded at once, in float64: a table of tokens can have hundreds of millions.
_AT_ONCE = 1 << 25


@dataclass(frozen=True, eq=False)
class RoundedWeights:
    """Packed int8 and int4 weights of products, for lowering to take instead of packing its own.

    Attributes:
        packed: weights as :func:`~edgecompile.backends.operators.ops.pack_weight` packs int8 and int4, by the
            attribute of the packed weight.
        origins: :func:`hash_matrix` of the weights that they stand for, by the same names.
        inputs: the inputs that they were rounded for, in words; not kept in files.
    """

    packed: Mapping[str, Tensor]
    origins: Mapping[str, str]
    inputs: str = ""

    @cached_property
    def digest(self) -> str:
        """Tells unlike ones apart."""
        parts = hashlib.sha256()
        for name in sorted(self.packed):
            tensor = self.packed[name]
            parts.update(f"{name} {tuple(tensor.shape)} {self.origins[name]}\n".encode())
            parts.update(_bytes_of(tensor))
        return parts.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoundedWeights) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def take(self, name: str, weight: Tensor, precision: str) -> Tensor | None:
        """The packed weight of that name in a precision, which stands for ``weight``; None if there is none.

        Raises:
            CompileError: it stands for other numbers, those of another model or of an earlier one.
        """
        packed = self.packed.get(name)
        if packed is None or precision not in _FORMS or packed.dtype != _FORMS[precision].dtype:
            return None
        if self.origins[name] != hash_matrix(weight):
            raise CompileError(
                f"{name}: the weights were rounded to {precision} when they had other values",
                hint="plan again, so that the model's present ones are rounded",
            )
        return packed

    def keep(self, path: Path, beside: Collection[Path] = ()) -> None:
        """Saves them for later builds, then removes those of earlier ones from the folder; raises OSError.

        Several builds may use the folder at once: what another one removed is rounded again.

        Args:
            path: the file.
            beside: files of this build, which stay.
        """
        self.save(path)
        for other in path.parent.glob("gptq-*.npz"):
            if other != path and other not in beside:
                other.unlink(missing_ok=True)

    def save(self, path: Path) -> None:
        """Writes them as a .npz file, whole or not at all; raises OSError."""
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in self.packed.items()}
        for name, origin in self.origins.items():
            arrays[name + _ORIGIN] = np.frombuffer(bytes.fromhex(origin), np.uint8)
        with replacing(path) as stream:
            np.savez(stream, **arrays)

    @classmethod
    def load(cls, path: Path, digest: str | None = None) -> RoundedWeights:
        """Reads what :meth:`save` wrote.

        Raises:
            CompileError: the file is missing, damaged, or has another digest.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                names = [name for name in arrays.files if not name.endswith(_ORIGIN)]
                packed = {name: torch.from_numpy(arrays[name]) for name in names}
                origins = {name: arrays[name + _ORIGIN].tobytes().hex() for name in names}
        except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
            raise CompileError(f"{path} can't be read: {error}", hint="plan again") from error
        weights = cls(packed, origins)
        if digest not in (None, weights.digest):
            raise CompileError(
                f"{path} isn't what the precision was chosen with", hint="plan again"
            )
        return weights


_ORIGIN = "/origin"


def hash_matrix(weight: Tensor) -> str:
    """Tells float32 matrices of unlike values or shapes apart."""
    parts = hashlib.sha256(f"{tuple(weight.shape)}\n".encode())
    parts.update(_bytes_of(weight))
    return parts.hexdigest()


def _bytes_of(tensor: Tensor) -> Any:
    """The bytes of a tensor, which aren't copied: they may be gigabytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


@dataclass(frozen=True)
class Grid:
    """The numbers that a weight may be rounded to.

    Attributes:
        bits: bits of a value.
        block: inputs of a column that share a scale.
        minimum: whether they share a least value, too: values count from that, and are never negative.
        scale_type: the data type that scales and least values are stored in.
    """

    bits: int = 8
    block: int = ops.BLOCK
    minimum: bool = False
    scale_type: torch.dtype = torch.float32

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest value: of 8 bits -127, of fewer all that the bits can say."""
        half = 1 << (self.bits - 1)
        if self.minimum:
            return 0, 2 * half - 1
        return (1 - half if self.bits == 8 else -half), half - 1


@dataclass(frozen=True)
class Rounding:
    """A matrix on a grid: ``values * scales + minimums``, each of the latter two for a block of a row.

    Attributes:
        values: int8 ``[N, K]``; those of a grid of 8 bits with a minimum are 128 too low.
        scales: ``[N, ceil(K / block)]``, never negative.
        minimums: least values of the same shape; None for a grid without.
    """

    values: Tensor
    scales: Tensor
    minimums: Tensor | None = None


def round_to_grid(weight: Tensor, moments: Tensor, grid: Grid) -> Rounding:
    """The numbers of a grid whose products differ little from those of ``weight``.

    Args:
        weight: float32 ``[N, K]``, finite.
        moments: float64 ``[K, K]``, a sum of ``xᵀ·x`` over rows that it is multiplied with.
        grid: the grid.

    Raises:
        torch.linalg.LinAlgError: the moments aren't those of any rows.
    """
    k = weight.shape[1]
    mean = float(moments.diagonal().mean()) or 1.0
    damped = moments.clone()  # of ten thousand inputs each such matrix has 800 MB
    damped.diagonal().add_(_DAMPING * mean)
    factor = torch.linalg.cholesky(damped)
    del damped
    inverse = torch.cholesky_inverse(factor)
    del factor
    # Row j: how the columns from j on answer, at best, to a unit error of column j, by the paper's
    # third step; its diagonal is what the error is divided by.
    answer = torch.linalg.cholesky(inverse, upper=True)
    del inverse
    rows = max(1, _AT_ONCE // max(k, 1))
    parts = [_round_rows(part, answer, grid) for part in torch.split(weight, rows)]
    if len(parts) == 1:
        return parts[0]
    minimums = [part.minimums for part in parts if part.minimums is not None]
    return Rounding(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minimums) if minimums else None,
    )


def _round_rows(weight: Tensor, answer: Tensor, grid: Grid) -> Rounding:
    """Rounds some rows, which don't depend on others."""
    n, k = weight.shape
    rest = weight.to(torch.float64)
    lowest, highest = grid.limits
    below = 128 if grid.bits == 8 and grid.minimum else 0
    values = torch.zeros(n, k, dtype=torch.int8)
    scales = torch.zeros(n, -(-k // grid.block), dtype=grid.scale_type)
    minimums = torch.zeros_like(scales)
    for begin in range(0, k, grid.block):
        end = min(begin + grid.block, k)
        block = rest[:, begin:end].clone()
        errors = torch.zeros_like(block)
        weights = answer.diagonal()[begin:end].square().reciprocal()
        scale, least = _scales(block, weights, grid)
        step = torch.where(scale > 0, scale, 1.0).to(torch.float64)
        base = least.to(torch.float64)
        for j in range(end - begin):
            at = begin + j
            whole = ((block[:, j] - base) / step).round().clamp(lowest, highest)
            values[:, at] = (whole - below).to(torch.int8)
            errors[:, j] = (block[:, j] - whole * step - base) / answer[at, at]
            block[:, j:] -= errors[:, j, None] * answer[at, at:end]
        rest[:, end:] -= errors @ answer[begin:end, end:]
        scales[:, begin // grid.block] = scale
        minimums[:, begin // grid.block] = least
    return Rounding(values, scales, minimums if grid.minimum else None)


#: Of the scale with which a row's largest value is on the grid: of few bits a smaller one may be better, which cuts
#: that value off and has finer steps for the others.
_NARROWER = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)


def _scales(block: Tensor, weights: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The scale and the least value of each row of a block, of the grid's type.

    Args:
        block: float64 ``[N, block]``.
        weights: float64 ``[block]``, what the square of a column's error counts.
        grid: the grid.
    """
    lowest, highest = grid.limits
    if grid.minimum:
        least = block.amin(1)
        scale = (block.amax(1) - least) / highest
    else:
        least = torch.zeros(len(block), dtype=torch.float64)
        scale = torch.maximum(block.amax(1) / highest, block.amin(1) / lowest)
    scale = scale.to(grid.scale_type)
    if grid.bits < 8 and not grid.minimum:
        widest, least_error = scale, _rounding_error(block, weights, scale, grid)
        for share in _NARROWER:
            trial = (share * widest.to(torch.float64)).to(grid.scale_type)
            error = _rounding_error(block, weights, trial, grid)
            scale = torch.where(error < least_error, trial, scale)
            least_error = torch.minimum(error, least_error)
    return scale, least.to(grid.scale_type)


def _rounding_error(block: Tensor, weights: Tensor, scale: Tensor, grid: Grid) -> Tensor:
    """The weighted squares of what rounding each row to multiples of its scale changes."""
    step = torch.where(scale > 0, scale, 1.0).to(torch.float64)[:, None]
    rounded = (block / step).round().clamp(*grid.limits) * step
    return (rounded - block).square() @ weights


@dataclass(frozen=True)
class _Form:
    """The grid of a precision's products, and how these read it."""

    grid: Grid
    dtype: torch.dtype
    pack: Callable[[Tensor, Tensor], Tensor]


_FORMS: Mapping[str, _Form] = {
    INT8: _Form(Grid(), torch.int8, ops.pack_int8),
    INT4: _Form(Grid(4, ops.HALF_BLOCK, False, torch.float16), torch.uint8, ops.pack_int4),
}


def round_matrix(weight: Tensor, moments: Tensor, precision: str = INT8) -> Tensor:
    """As :func:`round_to_grid` of a precision's grid, packed.

    Raises:
        torch.linalg.LinAlgError: the moments aren't those of any rows.
        OverflowError: a scale is beyond its type.
    """
    form = _FORMS[precision]
    rounding = round_to_grid(weight, moments, form.grid)
    if not bool(rounding.scales.isfinite().all()):
        raise OverflowError(f"a scale is beyond {form.grid.scale_type}")
    return form.pack(rounding.values, rounding.scales)


def round_products(
    weights: Mapping[str, Tensor],
    moments: Callable[[list[str]], Mapping[str, Tensor]],
    tell: Callable[[int], None] = lambda done: None,
    *,
    precisions: Sequence[Mapping[str, str]] | None = None,
) -> list[RoundedWeights]:
    """Rounds products' weights, as many at a time as their moments leave room for.

    The moments of a weight serve all of its precisions, and one that several results share is rounded once.

    Args:
        weights: float32 ``[N, K]``, by the attribute of the packed weight.
        moments: a function that gives the moments of some of them, by the same names.
        tell: a function that gets the number of products that are done.
        precisions: for each result the precision of each weight, by the same names: int8 or int4, anything
            else is left out. None: one result of int8.

    Returns:
        A result for each of ``precisions``, without the weights that aren't finite, or whose scales or
        moments aren't, or whose moments can't be inverted: these are packed as ever.
    """
    asked = [dict.fromkeys(weights, INT8)] if precisions is None else precisions
    forms = {name: {of[name] for of in asked} & _FORMS.keys() for name in weights}
    packed: list[dict[str, Tensor]] = [{} for _ in asked]
    origins: dict[str, str] = {}
    done = 0
    for names in _batches({name: int(weights[name].shape[1]) for name in weights if forms[name]}):
        sums = moments(names)
        for name in names:
            weight = weights[name]
            if bool(weight.isfinite().all()) and bool(sums[name].isfinite().all()):
                origins[name] = hash_matrix(weight)
                for form in sorted(forms[name]):
                    with contextlib.suppress(torch.linalg.LinAlgError, OverflowError):
                        made = round_matrix(weight, sums[name], form)
                        for of, kept in zip(asked, packed, strict=True):
                            if of[name] == form:
                                kept[name] = made
            done += 1
            tell(done)
    return [RoundedWeights(kept, {name: origins[name] for name in kept}) for kept in packed]


def mix_rounded(
    precisions: Mapping[str, str], parts: Sequence[RoundedWeights]
) -> RoundedWeights | None:
    """The weights of a mixture, each from a part that has it in its precision; None without any part.

    Args:
        precisions: the precision of each weight, by the attribute of the packed weight.
        parts: weights that were rounded for the same inputs.
    """
    packed, origins = {}, {}
    for part in parts:
        for name, tensor in part.packed.items():
            form = _FORMS.get(precisions[name])
            if form is not None and tensor.dtype == form.dtype:
                packed[name], origins[name] = tensor, part.origins[name]
    return RoundedWeights(packed, origins, parts[0].inputs) if parts else None


_MOMENTS_BYTES = 1 << 30


def _batches(widths: Mapping[str, int]) -> Iterator[list[str]]:
    """The names of matrices by their numbers of inputs, in parts whose moments take a gigabyte together, or one of them more."""
    batch: list[str] = []
    total = 0
    for name, width in widths.items():
        need = 8 * width**2
        if batch and total + need > _MOMENTS_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += need
    if batch:
        yield batch
