"""Calls one function of the C ABI in our library and in libtorch with the same torch tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.native.programs.aoti import Handle, Shim, int64s, load_shim, load_torch_shim

CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
DTYPES = {code: dtype for dtype, code in CODES.items()}


class Optional:
    """An argument that the C ABI takes as a pointer: a tensor, a dtype's code or a number."""

    def __init__(self, value: Any) -> None:
        self.value = value


def handle_of(shim: Shim, tensor: Tensor) -> Handle:
    """A handle to the tensor's memory, which must outlive it."""
    return shim.make(
        "create_tensor_from_blob",
        ctypes.c_void_p(tensor.data_ptr()),
        ctypes.c_int64(tensor.dim()),
        int64s(tensor.shape),
        int64s(tensor.stride()),
        ctypes.c_int64(0),
        CODES[tensor.dtype],
        0,
        0,
    )


def tensor_of(shim: Shim, handle: Handle) -> Tensor:
    """A copy with the same strides."""
    sizes, strides = shim.sizes(handle), shim.strides(handle)
    dtype = DTYPES[shim.value("get_dtype", ctypes.c_int32, handle)]
    if 0 in sizes:
        return torch.empty(0, dtype=dtype).as_strided(sizes, strides)
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    raw = ctypes.string_at(shim.data(handle), span * dtype.itemsize)
    return torch.frombuffer(bytearray(raw), dtype=dtype).as_strided(sizes, strides)


def call(shim: Shim, name: str, *arguments: Any, results: int) -> list[Tensor]:
    """Calls ``aoti_torch_<name>``; checks that ours leaves no handle behind."""
    before = shim.live() if shim.prefix else None
    handles: list[Handle] = []

    def handle(tensor: Tensor) -> Handle:
        handles.append(handle_of(shim, tensor))
        return handles[-1]

    def native(value: Any) -> tuple[Any, ...]:
        if isinstance(value, Tensor):
            return (handle(value),)
        if isinstance(value, Optional):
            if value.value is None:
                return (None,)
            if isinstance(value.value, torch.dtype):
                return (ctypes.byref(ctypes.c_int32(CODES[value.value])),)
            return (ctypes.byref(*native(value.value)),)
        if isinstance(value, bool):
            return (ctypes.c_int32(value),)
        if isinstance(value, int):
            return (ctypes.c_int64(value),)
        if isinstance(value, float):
            return (ctypes.c_double(value),)
        if isinstance(value, str):
            return (ctypes.c_char_p(value.encode()),)
        assert isinstance(value, Sequence)
        return int64s(value), ctypes.c_int64(len(value))

    made = [Handle() for _ in range(results)]
    try:
        flat = [x for value in arguments for x in native(value)]
        shim.call(name, *flat, *[ctypes.byref(item) for item in made])
        return [tensor_of(shim, item) for item in made]
    finally:
        shim.delete(*handles, *[item for item in made if item])
        assert before is None or shim.live() == before, "the call leaked"


def ours(name: str, *arguments: Any, results: int = 1) -> list[Tensor]:
    """The result of our library."""
    return call(load_shim(), name, *arguments, results=results)


def both(name: str, *arguments: Any, results: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Our result beside torch's, for each result; sizes, strides and dtypes are compared here."""
    got = ours(name, *arguments, results=results)
    expected = call(load_torch_shim(), name, *arguments, results=results)
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (
            theirs.shape,
            theirs.stride(),
            theirs.dtype,
        )
    return list(zip(got, expected, strict=True))


def random_tensor(seed: int, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Tensor:
    """Few different values, NaN and infinities among the floats, in memory of any order."""
    generator = torch.Generator().manual_seed(seed)

    def number(lo: int, hi: int) -> int:
        return int(torch.randint(lo, hi, (), generator=generator))

    if shape is None:
        shape = [number(1, 7) for _ in range(number(1, 5))]
    values = torch.randint(-9, 10, tuple(shape), generator=generator).to(torch.float32) / 2
    if dtype.is_floating_point:
        odd = torch.rand(tuple(shape), generator=generator)
        values[odd < 0.08] = torch.nan
        values[(odd > 0.08) & (odd < 0.12)] = torch.inf
        values[(odd > 0.12) & (odd < 0.16)] = -torch.inf
        values[(odd > 0.16) & (odd < 0.2)] = -0.0
    elif dtype in (torch.bool, torch.uint8):
        values = values.abs()
    order = torch.randperm(len(shape), generator=generator).tolist()
    steps = [number(1, 3) for _ in shape]
    memory = torch.zeros([shape[d] * steps[d] for d in order], dtype=dtype)
    view = memory.permute([order.index(d) for d in range(len(shape))])
    view = view[tuple(slice(None, None, s) for s in steps)]
    view.copy_(values)
    return view
