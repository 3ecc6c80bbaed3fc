"""The C interfaces of a program: AOTInductor's container of models, and torch's tensors.

Declared in torch/csrc/inductor/aoti_runtime/interface.h and torch/csrc/inductor/aoti_torch/c/shim.h
of torch's own headers. Every function returns 0, or leaves a text with the calling thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.cpu.tensors import row_major

_POINTER = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_INT64 = ctypes.c_int64
_INT32 = ctypes.c_int32
_P = ctypes.POINTER

#: Signature of what the program calls for operators of torch without a C interface; see support.cpp.
OperatorCall = ctypes.CFUNCTYPE(_INT32, _INT32, _INT32, _P(_INT64), _INT32, _P(_POINTER))

_CONTAINER: Mapping[str, tuple[Any, ...]] = {
    "CreateWithDevice": (_P(_POINTER), _SIZE, ctypes.c_char_p, ctypes.c_char_p),
    "Delete": (_POINTER,),
    "Run": (_POINTER, _P(_POINTER), _SIZE, _P(_POINTER), _SIZE, _POINTER, _POINTER),
    "GetNumInputs": (_POINTER, _P(_SIZE)),
    "GetNumOutputs": (_POINTER, _P(_SIZE)),
    "GetNumConstants": (_POINTER, _P(_SIZE)),
    "GetConstantName": (_POINTER, _SIZE, _P(ctypes.c_char_p)),
    "GetConstantOriginalFQN": (_POINTER, _SIZE, _P(ctypes.c_char_p)),
    "GetConstantFromFolded": (_POINTER, _SIZE, _P(ctypes.c_bool)),
    "GetConstantDtype": (_POINTER, _SIZE, _P(_INT32)),
    "GetConstantDataSize": (_POINTER, _SIZE, _P(_SIZE)),
    "UpdateUserManagedConstantBufferPairs": (
        *(_POINTER, _POINTER, _SIZE, ctypes.c_bool, ctypes.c_bool),
    ),
}
_TORCH: Mapping[str, tuple[Any, ...]] = {
    "create_tensor_from_blob": (
        *(_POINTER, _INT64, _P(_INT64), _P(_INT64), _INT64, _INT32, _INT32, _INT32, _P(_POINTER)),
    ),
    "delete_tensor_object": (_POINTER,),
    "new_tensor_handle": (_POINTER, _P(_POINTER)),
    "assign_tensors": (_POINTER, _POINTER),
}
_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    **{f"AOTInductorModelContainer{name}": types for name, types in _CONTAINER.items()},
    **{f"aoti_torch_{name}": types for name, types in _TORCH.items()},
    "AOTInductorGetLastError": (_P(ctypes.c_char_p),),
}


class _Pair(ctypes.Structure):
    """AOTInductorConstantMapEntry."""

    _fields_ = (("name", ctypes.c_char_p), ("handle", _POINTER))


class WantedConstant(NamedTuple):
    """A constant that has to be supplied; ``key`` is its name in the weights file."""

    name: bytes
    key: str
    dtype: int
    nbytes: int


class Container:
    """A loaded program's container; ``close`` frees it. Handles are plain integers here.

    Args:
        library: the program.
        label: its name in errors.
        models: the number of runs that may go on at once.

    Raises:
        NativeError: it isn't such a program, or the container can't be made.
    """

    def __init__(self, library: ctypes.CDLL, label: str, models: int) -> None:
        self.label = label
        self._library = library
        absent = []
        for name, arguments in _FUNCTIONS.items():
            # Those of torch are found through the program, which is linked against it.
            function = getattr(library, name, None)
            if function is None:
                absent.append(name)
                continue
            function.restype = _INT32
            function.argtypes = list(arguments)
        if absent:
            raise NativeError(f"{label}: has no {', '.join(absent)} [native-functions]")
        explain = getattr(library, "torch_exception_get_what_without_backtrace", None)
        if explain is not None:
            explain.restype, explain.argtypes = ctypes.c_char_p, []
        self._explain = explain
        self._container = _POINTER()
        created = library.AOTInductorModelContainerCreateWithDevice(
            ctypes.byref(self._container), models, b"cpu", None
        )
        self.check(created, "creating the model")
        self.n_inputs = self._count("AOTInductorModelContainerGetNumInputs")
        self.n_outputs = self._count("AOTInductorModelContainerGetNumOutputs")

    def check(self, status: int, doing: str) -> None:
        """Raises NativeError with the messages of the program and torch, if ``status`` isn't 0."""
        if status == 0:
            return
        text = ctypes.c_char_p()
        self._library.AOTInductorGetLastError(ctypes.byref(text))
        said = (text.value or b"").decode("utf-8", "replace")
        if self._explain is not None and "aoti_torch" in said:
            cause = (self._explain() or b"").decode("utf-8", "replace").strip()
            said = f"{cause.splitlines()[0]}; in {said}" if cause else said
        raise NativeError(f"{self.label}: {doing} failed: {said or 'no reason'}")

    def call(self, name: str, *arguments: Any) -> None:
        """Calls one of the functions above.

        Raises:
            NativeError: it failed.
        """
        self.check(getattr(self._library, name)(*arguments), name)

    def _count(self, name: str) -> int:
        count = _SIZE()
        self.call(name, self._container, ctypes.byref(count))
        return int(count.value)

    def constants(self) -> list[WantedConstant]:
        """The constants that have to be supplied, without those that constant folding computes."""
        result = []
        for i in range(self._count("AOTInductorModelContainerGetNumConstants")):
            facts: list[Any] = []
            for what, value in (
                ("FromFolded", ctypes.c_bool()),
                ("Name", ctypes.c_char_p()),
                ("OriginalFQN", ctypes.c_char_p()),
                ("Dtype", _INT32()),
                ("DataSize", _SIZE()),
            ):
                name = "AOTInductorModelContainerGetConstant" + what
                self.call(name, self._container, i, ctypes.byref(value))
                facts.append(value.value)
            folded, own, key, dtype, nbytes = facts
            if not folded:
                name = (key or own).decode("utf-8")
                result.append(WantedConstant(own, name, dtype, nbytes))
        return result

    def bind(self, pairs: Sequence[tuple[bytes, int]]) -> None:
        """Gives the model its constants; the handles' memory stays borrowed."""
        table = (_Pair * max(len(pairs), 1))(*[_Pair(name, handle) for name, handle in pairs])
        name = "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs"
        self.call(name, self._container, table, len(pairs), False, True)

    def run(self, inputs: Any, outputs: Any, operators: Any) -> None:
        """Runs once.

        Args:
            inputs: array of handles, which are taken over: null afterwards.
            outputs: array that gets new handles.
            operators: an ``OperatorCall``.

        Raises:
            NativeError: the run failed.
        """
        status = self._library.AOTInductorModelContainerRun(
            self._container,
            inputs,
            self.n_inputs,
            outputs,
            self.n_outputs,
            None,
            ctypes.cast(operators, _POINTER),
        )
        self.check(status, "running it")

    def borrow(self, data: int, dtype: int, sizes: Sequence[int]) -> int:
        """A new handle over memory of somebody else's, row-major."""
        n = len(sizes)
        handle = _POINTER()
        self.call(
            "aoti_torch_create_tensor_from_blob",
            data,
            n,
            (_INT64 * max(n, 1))(*sizes),
            (_INT64 * max(n, 1))(*row_major(sizes)),
            0,
            dtype,
            0,  # the CPU
            0,
            ctypes.byref(handle),
        )
        return int(handle.value or 0)

    def free(self, handles: Sequence[int | None]) -> None:
        """Deletes handles; None and 0 are left out."""
        for handle in handles:
            if handle:
                self._library.aoti_torch_delete_tensor_object(handle)

    def close(self) -> None:
        """Frees the container; runs must be over."""
        if self._container:
            self._library.AOTInductorModelContainerDelete(self._container)
            self._container = _POINTER()
