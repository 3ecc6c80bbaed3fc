"""Tensors whose elements carry a code of the expression that computed them.

Two elements of equal codes are the same function of the same elements of the model's inputs, up to
rounding (value numbering, Alpern, Wegman and Zadeck 1988, with random codes of 64 bits in place of
classes). An element that is the same whatever the inputs hold is *known*: its value is its code.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

# Multipliers of splitmix64, as signed numbers.
_FIRST, _SECOND, _STEP = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15, -0x61C8864680B583EB
#: Known values this close, relative to the largest of their tensor (or to 1), are one: kernels round
#: by the place in a vector.
_CLOSE = 1e-6
#: Larger tables would close the gaps between their values.
_MOST_CLOSE = 1_000_000


class Coded(torch.Tensor):
    """A tensor with a code for each element.

    Attributes:
        value: the value that the run computed.
        unknown: a mask of the same shape: whether the element depends on the inputs' values.
        code: an int64 tensor of the same shape; only valid where ``unknown``.
        source: number of the operator that made it, -1 for an input.
    """

    value: torch.Tensor
    unknown: torch.Tensor
    code: torch.Tensor
    source: int

    @staticmethod
    def __new__(cls, value: torch.Tensor, unknown: torch.Tensor, code: torch.Tensor) -> Coded:
        result: Coded = torch.Tensor._make_wrapper_subclass(
            cls,
            value.size(),
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
        )
        result.value, result.unknown, result.code, result.source = value, unknown, code, -1
        return result

    @classmethod
    def of(
        cls, value: torch.Tensor, unknown: torch.Tensor | None = None, code: Any = None
    ) -> Coded:
        """A tensor of its own memory, known where it has no code, and all unknown where nothing else
        is said. What is NaN has another code than what isn't."""
        value = value.contiguous()
        if code is None:
            none = torch.zeros(value.shape, dtype=torch.bool)
            return cls(value, none, torch.zeros(value.shape, dtype=torch.int64))
        unknown = torch.ones((), dtype=torch.bool) if unknown is None else unknown
        unknown = unknown.expand(value.shape).clone(memory_format=torch.contiguous_format)
        code = code.expand(value.shape)
        if value.is_floating_point() and bool(value.isnan().any()):
            code = torch.where(value.isnan(), mix(13, code), code)
        return cls(value, unknown, code.clone(memory_format=torch.contiguous_format))

    @property
    def known(self) -> bool:
        """Whether all of it is."""
        return not bool(self.unknown.any())

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Coded({self.dtype}, {list(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise TypeError(f"{func} was called on a coded tensor outside its trace")


def values_of(item: Any) -> Any:
    """The arguments of a call with plain tensors in place of coded ones."""
    if isinstance(item, Coded):
        return item.value
    if isinstance(item, (list, tuple)):
        return type(item)(values_of(part) for part in item)
    return item


def uncode() -> None:
    """Turns all coded tensors that exist into their values, once a trace is over.

    A model may keep some where nothing else finds them: in a table of a module's globals, say.
    """
    tensors = [item for item in gc.get_objects() if type(item) is Coded]
    # A view holds its base, and what is held can't be swapped.
    for item in sorted(tensors, key=lambda item: not item._is_view()):
        with suppress(RuntimeError):  # it has weak references; its next use says what it is
            torch.utils.swap_tensors(item, item.value.detach())  # type: ignore[no-untyped-call]


def label(*parts: Any) -> int:
    """A code of plain values."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def mix(first: int, *codes: Any) -> torch.Tensor:
    """A code for a function of these codes in their order; tensors are broadcast, sums wrap."""
    result: Any = first
    for code in codes:
        part = torch.as_tensor(code, dtype=torch.int64)
        result = _scramble(torch.as_tensor(result, dtype=torch.int64) * 3 + _scramble(part + _STEP))
    return torch.as_tensor(result)


def _scramble(code: torch.Tensor) -> torch.Tensor:
    code = (code ^ (code >> 30)) * _FIRST
    code = (code ^ (code >> 27)) * _SECOND
    return code ^ (code >> 31)


class Codes:
    """Gives known values and weights their codes, the same ones in every run that shares it.

    Args:
        weights: tensors that stay as they are and where they are; told apart by their place.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = {w.untyped_storage().data_ptr() for w in weights}
        self._seen = torch.empty(0, dtype=torch.float64)  # ascending, and what stands for each
        self._firsts = self._seen
        self._doubted = torch.empty(0, dtype=torch.int64)

    def doubt(self, codes: torch.Tensor) -> None:
        """Notes codes of elements that may be masked: what the inputs hold decides it."""
        if codes.numel():
            self._doubted = torch.unique(torch.cat([self._doubted, codes.reshape(-1)]))

    def doubted(self, codes: torch.Tensor) -> torch.Tensor:
        """A mask of the codes that were noted so."""
        if not self._doubted.numel():
            return torch.zeros(codes.shape, dtype=torch.bool)
        return torch.isin(codes, self._doubted)

    def pass_doubt(self, code: torch.Tensor, unknown: torch.Tensor, *sources: torch.Tensor) -> None:
        """Notes codes of the unknown elements that are made of elements noted so."""
        for source in sources if self._doubted.numel() else ():
            perhaps = self.doubted(source) & unknown
            self.doubt(code.expand(perhaps.shape)[perhaps])

    def of(self, item: Any) -> torch.Tensor:
        """The codes of a tensor's elements, or of a number."""
        if isinstance(item, Coded):
            if bool(item.unknown.all()):
                return item.code
            return torch.where(item.unknown, item.code, self._of(item.value, item.unknown))
        return self._of(torch.as_tensor(item), None)

    def _of(self, value: torch.Tensor, unknown: torch.Tensor | None) -> torch.Tensor:
        """The codes of the values that are known; of the others something."""
        if value.is_complex():
            parts = torch.view_as_real(value.resolve_conj())
            real, imaginary = (self._of(parts[..., index], unknown) for index in (0, 1))
            return mix(1, real, imaginary)
        number = value.to(torch.float64)
        exact = value.untyped_storage().data_ptr() in self._weights
        if value.is_floating_point() and value.numel() <= _MOST_CLOSE and not exact:
            number = self._merged(number, unknown)
        code = mix(0, (number + 0.0).contiguous().view(torch.int64))  # -0.0 is 0.0
        return torch.where(number.isnan(), 7, code)

    def whole(self, tensor: torch.Tensor) -> int:
        """One code for all of a plain tensor."""
        place = tensor.untyped_storage().data_ptr()
        shape = (tuple(tensor.shape), str(tensor.dtype))
        if place in self._weights:
            return label(place, tensor.storage_offset(), tensor.stride(), shape)
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return label(hashlib.blake2b(data).hexdigest(), shape)

    def _merged(self, number: torch.Tensor, unknown: torch.Tensor | None) -> torch.Tensor:
        """The known numbers, with those that are close to one seen before replaced by it."""
        flat = number.reshape(-1)
        odd = flat.isfinite() & (flat != flat.round())
        if not bool(odd.any()):
            return number
        largest = min(1.0, flat[odd].abs().max().item())
        if unknown is not None:
            # Numbers that depend on the inputs have codes already, and are many.
            odd &= ~unknown.reshape(-1)
        values, back = torch.unique(flat[odd], return_inverse=True)
        flat = flat.clone()
        flat[odd] = self._stands_for(values, largest)[back]
        return flat.reshape(number.shape)

    def _stands_for(self, values: torch.Tensor, largest: float) -> torch.Tensor:
        """For each of some ascending values the one that stands for it, from now on."""
        close = _CLOSE * (largest + values.abs())
        # Those that nothing seen is close to: a chain of close ones goes by its first.
        first = torch.ones(len(values), dtype=torch.bool)
        first[1:] = values.diff() > close[1:]
        result = values[first][first.cumsum(0) - 1]
        place = torch.searchsorted(self._seen, values)
        fresh = torch.ones(len(values), dtype=torch.bool)
        if len(self._seen):
            above = place.clamp(max=len(self._seen) - 1)
            below = (above - 1).clamp(min=0)
            nearer = (values - self._seen[below]).abs() < (self._seen[above] - values).abs()
            near = torch.where(nearer, below, above)
            close_to_seen = (self._seen[near] - values).abs() <= close
            result = torch.where(close_to_seen, self._firsts[near], result)
            fresh = self._seen[above] != values
        if bool(fresh.any()):
            # Sorting all of them for each operator would take most of the time of a proof.
            into = place[fresh] + torch.arange(int(fresh.sum()))
            old = torch.ones(len(self._seen) + len(into), dtype=torch.bool)
            old[into] = False
            self._seen = _joined(old, self._seen, values[fresh])
            self._firsts = _joined(old, self._firsts, result[fresh])
        return result


def _joined(old: torch.Tensor, some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """A tensor with ``some`` elements where a mask is true, and ``others`` elsewhere, both in order."""
    result = torch.empty(len(old), dtype=some.dtype)
    result[old], result[~old] = some, others
    return result
