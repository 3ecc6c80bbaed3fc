"""Drives the runtime library through ctypes: tensor handles, programs, and torch's own C ABI."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np

from edgecompile.files import file_sha256
from edgecompile.runtime.cpu.tensors import NativeTensor
from edgecompile.targets.profile import VariantSpec, load_target
from edgecompile.toolchain.compilers import (
    find_toolchain,
    link_shared,
    run_tool,
)
from edgecompile.toolchain.native import (
    NativeRuntime,
    build_probe,
    compile_native,
    native_sources,
    runtime_sources,
)
from tests.conftest import one_at_a_time
from tests.native.conftest import sanitizer_flags, unsanitized_tools

BUILD = Path(__file__).resolve().parents[3] / "build" / "tests-native" / "runtime"
NATIVE = native_sources()
FLOAT32 = 6
DTYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "bool": 11,
    "bfloat16": 15,
}
NAMES = {code: name for name, code in DTYPES.items()}

Handle = ctypes.c_void_p


class ShimError(Exception):
    """A function of the C ABI returned a failure; the message is the library's."""


def own_variant() -> VariantSpec:
    """The variant that :func:`own_runtime` is of: x86-64-v3."""
    return load_target("cpu-x86-64").variants[0]


@lru_cache(maxsize=1)
@unsanitized_tools()
def own_runtime() -> NativeRuntime:
    """The runtime library of x86-64-v3 as it ships, but with a SONAME of its own.

    Bundles that other tests open in this process bring the runtime too. Two copies of one SONAME
    would be mixed up: a model library is linked to the one that was loaded first.
    """
    variant = own_variant()
    toolchain, sanitizers = find_toolchain(variant.arch), sanitizer_flags()
    flags = [f"-march={variant.march}", *variant.extra_flags, *sanitizers]
    objects = [x.path for x in compile_native(toolchain, runtime_sources().values(), flags)]
    path = BUILD / ("sanitized" if sanitizers else "") / "libeckernels-tests.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(path.with_suffix(".lock")):
        if sanitizers:
            command = [toolchain.cxx, "-shared", "-pthread", *sanitizers, *map(str, objects)]
            run_tool([*command, f"-Wl,-soname,{path.name}", "-o", str(path)], "linking the runtime")
        else:
            link_shared(toolchain, objects, path, exports=["ec_*"], soname=path.name)
    return NativeRuntime(variant.name, path, file_sha256(path))


@lru_cache(maxsize=1)
def probe_path() -> Path:
    return build_probe("x86-64", BUILD)


def int64s(values) -> ctypes.Array:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def describe(name: str, array: np.ndarray) -> NativeTensor:
    """ec_tensor of an array, strides as they are."""
    tensor = NativeTensor(
        name.encode(), array.ctypes.data, array.nbytes, DTYPES[array.dtype.name], array.ndim
    )
    span = 1 + sum(
        (n - 1) * s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True)
    )
    tensor.nbytes = 0 if array.size == 0 else span * array.itemsize
    for i in range(array.ndim):
        tensor.sizes[i] = array.shape[i]
        tensor.strides[i] = array.strides[i] // array.itemsize
    return tensor


class Shim:
    """AOTInductor's C ABI in one library: ours (prefix ``ec_``) or torch's (no prefix)."""

    def __init__(self, library: ctypes.CDLL, prefix: str = "ec_") -> None:
        self.library = library
        self.prefix = prefix
        if prefix:
            library.ec_last_error.restype = ctypes.c_char_p
            for name in ("ec_live_tensors", "ec_live_bytes", "ec_cached_bytes"):
                getattr(library, name).restype = ctypes.c_int64

    def function(self, name: str):
        return getattr(self.library, self.prefix + name)

    def call(self, name: str, *arguments) -> None:
        """Calls ``aoti_torch_<name>`` and raises ShimError for a failure."""
        if self.function("aoti_torch_" + name)(*arguments) != 0:
            text = self.library.ec_last_error().decode() if self.prefix else "torch failed"
            raise ShimError(text)

    def make(self, name: str, *arguments) -> Handle:
        """Calls a function whose last argument receives a new handle."""
        handle = Handle()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def value(self, name: str, kind, handle: Handle, *arguments):
        result = kind()
        self.call(name, handle, *arguments, ctypes.byref(result))
        return result.value

    def delete(self, *handles: Handle) -> None:
        for handle in handles:
            self.call("delete_tensor_object", handle)

    def dims(self, handle: Handle) -> int:
        return self.value("get_dim", ctypes.c_int64, handle)

    def sizes(self, handle: Handle) -> tuple[int, ...]:
        pointer = ctypes.POINTER(ctypes.c_int64)()
        self.call("get_sizes", handle, ctypes.byref(pointer))
        return tuple(pointer[: self.dims(handle)])

    def strides(self, handle: Handle) -> tuple[int, ...]:
        pointer = ctypes.POINTER(ctypes.c_int64)()
        self.call("get_strides", handle, ctypes.byref(pointer))
        return tuple(pointer[: self.dims(handle)])

    def offset(self, handle: Handle) -> int:
        return self.value("get_storage_offset", ctypes.c_int64, handle)

    def storage_size(self, handle: Handle) -> int:
        return self.value("get_storage_size", ctypes.c_int64, handle)

    def data(self, handle: Handle) -> int | None:
        return self.value("get_data_ptr", ctypes.c_void_p, handle)

    def empty(self, sizes, strides=None, dtype: int = FLOAT32) -> Handle:
        if strides is None:
            strides = [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]
        return self.make("empty_strided", len(sizes), int64s(sizes), int64s(strides), dtype, 0, 0)

    def view(self, handle: Handle, sizes, strides, offset: int = 0) -> Handle:
        sizes, strides = int64s(sizes), int64s(strides)
        return self.make(
            "_reinterpret_tensor", handle, len(sizes), sizes, strides, ctypes.c_int64(offset)
        )

    def borrow(self, array: np.ndarray, dtype: str | None = None) -> Handle:
        """A handle to the array's memory, which must outlive it; `dtype` for those numpy lacks."""
        strides = [s // array.itemsize for s in array.strides]
        return self.make(
            "create_tensor_from_blob",
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_int64(array.ndim),
            int64s(array.shape),
            int64s(strides),
            ctypes.c_int64(0),
            DTYPES[dtype or array.dtype.name],
            0,
            0,
        )

    def array(self, handle: Handle) -> np.ndarray:
        """A copy of the elements."""
        dtype = np.dtype(NAMES[self.value("get_dtype", ctypes.c_int32, handle)])
        sizes, strides = self.sizes(handle), self.strides(handle)
        if 0 in sizes:
            return np.empty(sizes, dtype)
        span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        buffer = (ctypes.c_char * (span * dtype.itemsize)).from_address(self.data(handle))
        flat = np.frombuffer(buffer, dtype)
        steps = tuple(s * dtype.itemsize for s in strides)
        return np.lib.stride_tricks.as_strided(flat, sizes, steps).copy()

    def live(self) -> tuple[int, int]:
        """Handles and bytes in use."""
        return self.library.ec_live_tensors(), self.library.ec_live_bytes()


@lru_cache(maxsize=1)
def load_shim() -> Shim:
    return Shim(ctypes.CDLL(str(own_runtime().path)))


@lru_cache(maxsize=1)
def load_torch_shim() -> Shim:
    """The same functions in libtorch, to compare with."""
    import torch

    return Shim(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")), "")
