"""CUDA's driver: which GPU there is, asked of libcuda. Native code runs programs on it (c_runtime/gpu/driver.h).

Nothing but NVIDIA's driver is needed, no CUDA toolkit. One GPU is used, the process' first, with the
context that CUDA's runtime library uses as well, so that other libraries get on with this one.
"""

import contextlib
import ctypes
import os
import threading
from typing import Any, Dict, Tuple

from ..base.errors import EdgecompileError, GpuError, GpuUnavailableError
from ..gpu.cuda import Cuda, CudaDevice, load_once

LIBRARY_VARIABLE = "EDGECOMPILE_CUDA_DRIVER"
_NAME = "libcuda.so.1"

_POINTER = ctypes.c_void_p
_OUT_POINTER = ctypes.POINTER(ctypes.c_void_p)
_OUT_INT = ctypes.POINTER(ctypes.c_int)
_OUT_SIZE = ctypes.POINTER(ctypes.c_size_t)
# By the function of libcudart whose part it has, with the same arguments.
_SAME: Dict[str, Tuple[str, Tuple[Any, ...]]] = {
    "cudaDriverGetVersion": ("cuDriverGetVersion", (_OUT_INT,)),
    "cudaMemGetInfo": ("cuMemGetInfo_v2", (_OUT_SIZE, _OUT_SIZE)),
}
_OWN: Tuple[Tuple[str, Tuple[Any, ...]], ...] = (
    ("cuInit", (ctypes.c_uint,)),
    ("cuDeviceGet", (_OUT_INT, ctypes.c_int)),
    ("cuDeviceGetCount", (_OUT_INT,)),
    ("cuDeviceGetName", (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)),
    ("cuDeviceGetAttribute", (_OUT_INT, ctypes.c_int, ctypes.c_int)),
    ("cuDevicePrimaryCtxRetain", (_OUT_POINTER, ctypes.c_int)),
    ("cuCtxSetCurrent", (_POINTER,)),
    ("cuGetErrorName", (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))),
    ("cuGetErrorString", (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))),
)
_SM_COUNT, _INTEGRATED, _CAN_MAP_HOST, _MAJOR, _MINOR = 16, 18, 19, 75, 76  # CUdevice_attribute
_NAME_BYTES = 256
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Driver(Cuda):
    """libcuda; ``Driver.load()`` gives it. Every method may be called from any thread.

    Each raises GpuError with CUDA's name and number of the error; after a fork all do.
    """

    def __init__(self, path: str) -> None:
        """Binds the library at ``path``; see ``load``."""
        self._bind(path, (*_SAME.values(), *_OWN))
        self._threads = threading.local()
        self._context = 0

    @staticmethod
    def load() -> "Driver":
        """The library, loaded once per process, and at least one GPU, made ready.

        It is the file that the environment variable EDGECOMPILE_CUDA_DRIVER names, else libcuda.so.1.
        The first call takes some tenths of a second on a machine with a GPU.

        Raises:
            GpuUnavailableError: there is no driver, or no GPU that it lets this process use.
            GpuError: another failure, or a fork.
        """
        return load_once(LIBRARY_VARIABLE, _open)

    def check_device(self) -> None:
        """Makes the GPU ready: GpuUnavailableError unless there is one that can be used."""
        try:
            super()._call("cuInit", 0)
            if self._integer("cuDeviceGetCount") < 1:
                raise GpuUnavailableError("{}: finds no GPU".format(self.path), _why_none())
            self._device = self._integer("cuDeviceGet", 0)
            self._context = self._pointer("cuDevicePrimaryCtxRetain", self._device)
        except GpuUnavailableError:
            raise
        except GpuError as error:
            hint = error.hint or _why_none()
            raise GpuUnavailableError(
                error.message, hint, error.name, error.number, error.sticky
            ) from None

    def make_current(self) -> None:
        """Lets the calling thread use the GPU; native code that calls the driver itself needs it."""
        if not getattr(self._threads, "ready", False) and self._context:
            super()._call("cuCtxSetCurrent", self._context)
            self._threads.ready = True

    def _call(self, name: str, *arguments: Any) -> None:
        self.make_current()
        super()._call(_SAME[name][0] if name in _SAME else name, *arguments)

    def _words(self, number: int) -> Tuple[str, str]:
        words = []
        for function in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            text = ctypes.c_char_p()
            function(number, ctypes.byref(text))
            words.append((text.value or b"").decode("ascii", "replace"))
        return words[0], words[1]

    def error(self, number: int, message: str) -> GpuError:
        """The error of CUDA's ``number`` that native code has described in ``message``."""
        cuda_error = self._error(number, "a run")
        return GpuError(message, cuda_error.hint, cuda_error.name, number, cuda_error.sticky)

    def device(self) -> CudaDevice:
        """The GPU; ``runtime_version`` is "", as there is no runtime library."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", name, _NAME_BYTES, self._device)

        def attribute(which: int) -> int:
            return self._integer("cuDeviceGetAttribute", which, self._device)

        version = self.driver_number()
        return CudaDevice(
            name=name.value.decode("utf-8", "replace"),
            compute_capability="{}.{}".format(attribute(_MAJOR), attribute(_MINOR)),
            sm_count=attribute(_SM_COUNT),
            integrated=bool(attribute(_INTEGRATED) and attribute(_CAN_MAP_HOST)),
            memory_bytes=self.memory()[1],
            driver_version="{}.{}".format(version // 1000, version % 1000 // 10),
            runtime_version="",
        )

    def driver_number(self) -> int:
        """The newest CUDA that the driver knows, such as 12060 for 12.6."""
        return self._integer("cudaDriverGetVersion")


def start_driver() -> None:
    """Begins to make the GPU ready in another thread, as the first call takes that long.

    ``Driver.load`` waits for it, and tells what failed.
    """
    threading.Thread(target=_load_quietly, name="edgecompile-cuda", daemon=True).start()


def _load_quietly() -> None:
    with contextlib.suppress(EdgecompileError):
        Driver.load()


def _why_none() -> str:
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        return "{} is {!r}: it says which GPUs this process may use".format(_VISIBLE, visible)
    return "nvidia-smi tells whether the driver finds a GPU; in a container it has to be passed on"


def _open(path: str) -> Driver:
    try:
        return Driver(path or _NAME)
    except OSError as error:
        if path:
            text = "{}, which {} names, can't be loaded: {}".format(path, LIBRARY_VARIABLE, error)
            raise GpuUnavailableError(text) from None
        text = "there is no NVIDIA driver: {} can't be loaded: {}".format(_NAME, error)
        raise GpuUnavailableError(
            text, "install NVIDIA's driver, or name its library with " + LIBRARY_VARIABLE
        ) from None
