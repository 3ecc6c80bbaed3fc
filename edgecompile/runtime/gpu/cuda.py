"""The few calls of libcudart that a run on a GPU takes, through ctypes.

Memory is passed as addresses (integers) and sizes in bytes; streams, graphs and executable graphs
are opaque integers. Names, arguments and numbers are those of CUDA's runtime API, of which nothing
is used that changed between CUDA 11.4 and 13. One GPU is used, the process' first: the environment
variable CUDA_VISIBLE_DEVICES says which that is.
"""

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Tuple, TypeVar

from ..base.errors import GpuError, GpuUnavailableError

LIBRARY_VARIABLE = "EDGECOMPILE_CUDART"
_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_FOLDERS = ("/usr/local/cuda/lib64",)

_POINTER = ctypes.c_void_p
_OUT_POINTER = ctypes.POINTER(ctypes.c_void_p)
_OUT_INT = ctypes.POINTER(ctypes.c_int)
_OUT_SIZE = ctypes.POINTER(ctypes.c_size_t)
# name, arguments; each returns a cudaError_t
_FUNCTIONS: Tuple[Tuple[str, Tuple[Any, ...]], ...] = (
    ("cudaGetLastError", ()),
    ("cudaDriverGetVersion", (_OUT_INT,)),
    ("cudaRuntimeGetVersion", (_OUT_INT,)),
    ("cudaGetDeviceCount", (_OUT_INT,)),
    ("cudaGetDevice", (_OUT_INT,)),
    ("cudaGetDeviceProperties", (_POINTER, ctypes.c_int)),
    ("cudaDeviceGetAttribute", (_OUT_INT, ctypes.c_int, ctypes.c_int)),
    ("cudaMemGetInfo", (_OUT_SIZE, _OUT_SIZE)),
    ("cudaMalloc", (_OUT_POINTER, ctypes.c_size_t)),
    ("cudaFree", (_POINTER,)),
    ("cudaHostAlloc", (_OUT_POINTER, ctypes.c_size_t, ctypes.c_uint)),
    ("cudaHostGetDevicePointer", (_OUT_POINTER, _POINTER, ctypes.c_uint)),
    ("cudaFreeHost", (_POINTER,)),
    ("cudaMemcpyAsync", (_POINTER, _POINTER, ctypes.c_size_t, ctypes.c_int, _POINTER)),
    ("cudaStreamCreateWithFlags", (_OUT_POINTER, ctypes.c_uint)),
    ("cudaStreamDestroy", (_POINTER,)),
    ("cudaStreamSynchronize", (_POINTER,)),
    ("cudaStreamBeginCapture", (_POINTER, ctypes.c_int)),
    ("cudaStreamEndCapture", (_POINTER, _OUT_POINTER)),
    # cudaGraphInstantiate itself took other arguments before CUDA 12.
    ("cudaGraphInstantiateWithFlags", (_OUT_POINTER, _POINTER, ctypes.c_ulonglong)),
    ("cudaGraphLaunch", (_POINTER, _POINTER)),
    ("cudaGraphExecDestroy", (_POINTER,)),
    ("cudaGraphDestroy", (_POINTER,)),
)
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
_HOST_PORTABLE, _HOST_MAPPED = 1, 2  # cudaHostAlloc's flags
_NON_BLOCKING = 1  # cudaStreamNonBlocking: doesn't wait for what other libraries put on stream 0
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal: other threads may allocate meanwhile
_SM_COUNT, _INTEGRATED, _CAN_MAP_HOST, _MAJOR, _MINOR = 16, 18, 19, 75, 76  # cudaDeviceAttr
# cudaDeviceProp begins with the name. Its size differs by version, 1008 bytes in CUDA 13.
_PROPERTIES_BYTES, _NAME_BYTES = 16384, 256

# After one of these, every further call of this process fails the same way: memory errors found by
# the hardware, faults and traps of kernels. Of 999, cudaErrorUnknown, nothing better is known.
STICKY = frozenset((214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911, 999))
_NO_MEMORY, _NOT_INITIALIZED, _OLD_DRIVER, _NO_DEVICE, _NEWER_PTX = 2, 3, 35, 100, 222


@dataclass(frozen=True)
class CudaDevice:
    """A GPU as CUDA describes it; versions such as "12.6".

    ``integrated``: it shares the memory of the CPU, as the GPU of a Jetson does. ``memory_bytes``
    is all that it has, of which ``Cuda.memory`` tells what is free.
    """

    name: str
    compute_capability: str
    sm_count: int
    integrated: bool
    memory_bytes: int
    driver_version: str
    runtime_version: str

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values."""
        return dict(self.__dict__)


_lock = threading.Lock()
# By the variable that may name a library, and what it says.
_loaded: "Dict[Tuple[str, str], Cuda]" = {}
_forked = False
_Library = TypeVar("_Library", bound="Cuda")


def _after_fork() -> None:
    global _forked, _lock
    _forked = bool(_loaded)
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def check_not_forked(forked: bool = False) -> None:
    """Raises GpuError in a process that was forked after CUDA had been loaded: it can't be used.

    Args:
        forked: whether that is known; else it is so if this module had loaded CUDA.
    """
    if forked or _forked:
        raise GpuError(
            "process {} was forked after CUDA had been loaded in its parent, and CUDA doesn't "
            "survive a fork".format(os.getpid()),
            "fork first and open the bundle in the child, or start processes afresh "
            '(multiprocessing\'s "spawn")',
        )


def load_once(variable: str, find: "Callable[[str], _Library]") -> "_Library":
    """Calls ``find`` with the variable's value, "" where it isn't set, once per process."""
    check_not_forked()
    with _lock:
        key = (variable, os.environ.get(variable, ""))
        if key not in _loaded:
            library = find(key[1])
            library.check_device()
            _loaded[key] = library
        return _loaded[key]  # type: ignore[return-value]


class Cuda:
    """libcudart; ``Cuda.load()`` gives it. Every method may be called from any thread.

    Each raises GpuError with CUDA's name and number of the error; after a fork all do.
    """

    def __init__(self, path: str) -> None:
        """Binds the library at ``path``; see ``load``."""
        self._bind(path, _FUNCTIONS)
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            function = getattr(self._library, name)
            function.restype = ctypes.c_char_p
            function.argtypes = [ctypes.c_int]

    def _bind(self, path: str, functions: Iterable[Tuple[str, Tuple[Any, ...]]]) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        absent = []
        for name, arguments in functions:
            function = getattr(self._library, name, None)
            if function is None:
                absent.append(name)
                continue
            function.restype = ctypes.c_int
            function.argtypes = list(arguments)
        if absent:
            text = "{}: has no {}".format(path, ", ".join(absent))
            raise GpuUnavailableError(text, "CUDA 11.4 or newer is needed")

    @staticmethod
    def load() -> "Cuda":
        """The library, loaded once per process, and at least one GPU.

        It is the file that the environment variable EDGECOMPILE_CUDART names; else the one that is
        in the process already; else the first that the dynamic loader, or /usr/local/cuda, has.

        Raises:
            GpuUnavailableError: there is no library, or no GPU, or the driver is too old for it.
            GpuError: another failure, or a fork.
        """
        return load_once(LIBRARY_VARIABLE, _open)

    def check_device(self) -> None:
        """Raises GpuUnavailableError unless there is a GPU, GpuError at other failures."""
        count = ctypes.c_int()
        number = self._library.cudaGetDeviceCount(ctypes.byref(count))
        if number != 0:
            error = self._error(number, "cudaGetDeviceCount")
            if number in (_OLD_DRIVER, _NO_DEVICE):
                raise GpuUnavailableError(
                    error.message, error.hint, error.name, number, error.sticky
                )
            raise error
        if count.value < 1:
            raise GpuUnavailableError("{}: finds no GPU".format(self.path))

    def _call(self, name: str, *arguments: Any) -> None:
        if _forked:
            check_not_forked()
        number = getattr(self._library, name)(*arguments)
        if number != 0:
            raise self._error(number, name)

    def _error(self, number: int, doing: str) -> GpuError:
        name, text = self._words(number)
        message = "{} failed: {} ({}): {}".format(doing, name or "no name", number, text)
        hint = None
        if number == _NO_MEMORY:
            hint = "end other users of the GPU's memory, or build the bundle for smaller buckets"
        elif number == _NOT_INITIALIZED:
            hint = "CUDA can't be used in a process that was forked after its parent had used it"
        elif number == _OLD_DRIVER:
            hint = "there is no NVIDIA driver here, or it is older than {}".format(self.path)
        elif number == _NEWER_PTX:
            hint = "update NVIDIA's driver, or build the bundle for a target that includes this GPU"
        return GpuError(message, hint, name, number, number in STICKY)

    def _words(self, number: int) -> Tuple[str, str]:
        """The name of an error and its text."""
        name = (self._library.cudaGetErrorName(number) or b"").decode("ascii", "replace")
        text = (self._library.cudaGetErrorString(number) or b"").decode("ascii", "replace")
        # Else a later call would report this error once more; of a sticky one it takes nothing.
        self._library.cudaGetLastError()
        return name, text

    def _integer(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _pointer(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_void_p()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value or 0

    def device(self) -> CudaDevice:
        """The GPU that this thread uses."""
        number = self._integer("cudaGetDevice")
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        self._call("cudaGetDeviceProperties", properties, number)

        def attribute(which: int) -> int:
            return self._integer("cudaDeviceGetAttribute", which, number)

        return CudaDevice(
            name=properties.raw[:_NAME_BYTES].split(b"\0")[0].decode("utf-8", "replace"),
            compute_capability="{}.{}".format(attribute(_MAJOR), attribute(_MINOR)),
            sm_count=attribute(_SM_COUNT),
            integrated=bool(attribute(_INTEGRATED) and attribute(_CAN_MAP_HOST)),
            memory_bytes=self.memory()[1],
            driver_version=_version(self._integer("cudaDriverGetVersion")),
            runtime_version=_version(self._integer("cudaRuntimeGetVersion")),
        )

    def memory(self) -> Tuple[int, int]:
        """Bytes of the GPU's memory that are free, and all; on a Jetson it is the system's."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def malloc(self, size: int) -> int:
        """The address of new memory of the GPU, aligned to 256 bytes; not initialised."""
        return self._pointer("cudaMalloc", size)

    def free(self, address: int) -> None:
        """Gives memory of ``malloc`` back, after all that was queued is done."""
        self._call("cudaFree", address)

    def host_alloc(self, size: int) -> int:
        """The address of new memory of the CPU that stays in place and that the GPU can reach."""
        return self._pointer("cudaHostAlloc", size, _HOST_PORTABLE | _HOST_MAPPED)

    def device_pointer(self, address: int) -> int:
        """The address by which the GPU reaches memory of ``host_alloc``, from its start."""
        return self._pointer("cudaHostGetDevicePointer", address, 0)

    def host_free(self, address: int) -> None:
        """Gives memory of ``host_alloc`` back."""
        self._call("cudaFreeHost", address)

    def copy_to_device(self, target: int, source: int, size: int, stream: int) -> None:
        """Queues a copy from ``host_alloc``'s memory to ``malloc``'s; both are used until it is done."""
        self._call("cudaMemcpyAsync", target, source, size, _TO_DEVICE, stream)

    def copy_to_host(self, target: int, source: int, size: int, stream: int) -> None:
        """Queues a copy from ``malloc``'s memory to ``host_alloc``'s."""
        self._call("cudaMemcpyAsync", target, source, size, _TO_HOST, stream)

    def stream(self) -> int:
        """A new stream, which doesn't wait for the default one."""
        return self._pointer("cudaStreamCreateWithFlags", _NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        """Ends a stream; what is queued is still done."""
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        """Waits until all that was queued is done; errors of that are raised here."""
        self._call("cudaStreamSynchronize", stream)

    def begin_capture(self, stream: int) -> None:
        """From now on, what this thread queues on ``stream`` is recorded, not done.

        Until ``end_capture`` this thread may neither allocate nor free nor wait.
        """
        self._call("cudaStreamBeginCapture", stream, _THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        """The graph of what was recorded. Whatever it raises, the stream records no longer."""
        graph = ctypes.c_void_p()
        self._call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        return graph.value or 0

    def instantiate(self, graph: int) -> int:
        """An executable graph; ``graph`` may be destroyed afterwards."""
        return self._pointer("cudaGraphInstantiateWithFlags", graph, 0)

    def launch(self, executable: int, stream: int) -> None:
        """Queues all that the graph recorded, with the very addresses that were recorded."""
        self._call("cudaGraphLaunch", executable, stream)

    def destroy_executable(self, executable: int) -> None:
        """Gives an executable graph back; it may not be under way."""
        self._call("cudaGraphExecDestroy", executable)

    def destroy_graph(self, graph: int) -> None:
        """Gives a graph back."""
        self._call("cudaGraphDestroy", graph)


def _version(number: int) -> str:
    return "{}.{}".format(number // 1000, number % 1000 // 10)


def _open(path: str) -> Cuda:
    if path:
        try:
            return Cuda(path)
        except OSError as error:
            text = "{}, which {} names, can't be loaded: {}"
            raise GpuUnavailableError(text.format(path, LIBRARY_VARIABLE, error)) from None
    for name in _NAMES:
        try:
            # Only finds what is in the process: another library may use CUDA already.
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        return Cuda(name)
    places = [*_NAMES, *(os.path.join(folder, "libcudart.so") for folder in _FOLDERS)]
    for name in places:
        try:
            return Cuda(name)
        except OSError:
            continue
    raise GpuUnavailableError(
        "no libcudart can be loaded, CUDA's runtime library: tried {}".format(", ".join(places)),
        "install CUDA's runtime (on a Jetson: nvidia-jetpack), or name the library with "
        + LIBRARY_VARIABLE,
    )
