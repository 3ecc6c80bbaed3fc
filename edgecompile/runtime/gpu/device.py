"""The identity of the device that an engine is built on: module, system and versions.

An engine runs only where all of it is the same. The name that CUDA gives doesn't tell modules
apart (every Orin is called "Orin"); the device tree does.
"""

import ctypes
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional

from ..base.errors import GpuUnavailableError
from .cuda import Cuda

#: Prefixes the paths below /proc and /etc, for tests and for containers that mount them elsewhere.
ROOT_VARIABLE = "EDGECOMPILE_DEVICE_ROOT"
_MODEL_FILE = "/proc/device-tree/model"
_RELEASE_FILE = "/etc/nv_tegra_release"
_MEMORY_FILE = "/proc/meminfo"
# Of a container.
_LIMIT_FILE = "/sys/fs/cgroup/memory.max"
_USED_FILE = "/sys/fs/cgroup/memory.current"
_KINDS_FILE = "/sys/fs/cgroup/memory.stat"
_RELEASE = re.compile(r"# R([0-9]{1,4}) \(release\), REVISION: ([0-9]{1,4}(?:\.[0-9]{1,4}){0,3})")
_AVAILABLE = re.compile(r"^MemAvailable: +([0-9]{1,15}) kB$", re.MULTILINE)
_NUMBER = re.compile(r"[0-9]{1,19}")
# The part of the page cache that the kernel gives back first: files that were read once.
_SPARE = re.compile(r"^inactive_file ([0-9]{1,19})$", re.MULTILINE)
_MOST = 1 << 16
#: JetPack by the major version of L4T. Of later ones only TensorRT's version is compared.
_JETPACKS = {35: "5", 36: "6", 38: "7"}
_TENSORRT_HINT = (
    "on a Jetson it comes with JetPack: sudo apt install python3-libnvinfer; a virtual environment "
    "sees it only if it was made with --system-site-packages"
)


@dataclass(frozen=True)
class DeviceIdentity:
    """A device as far as an engine depends on it; strings are "" where the system doesn't say.

    ``model`` is the device tree's, ``name`` CUDA's, ``l4t`` NVIDIA's release of Linux such as
    "36.4.3", ``driver`` and ``runtime`` CUDA versions. Two aren't part of the key: ``memory_bytes``, as
    the kernel reserves another share of it at every update, and ``runtime``, which is that of the
    libcudart that this process has loaded. TensorRT doesn't use that one, and an application may have
    brought one of its own, which ``finish`` doesn't see.
    """

    model: str
    l4t: str
    name: str
    compute_capability: str
    sm_count: int
    integrated: bool
    driver: str
    runtime: str
    tensorrt: str
    memory_bytes: int

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values, in a fixed order."""
        return dict(self.__dict__)

    def key_json(self) -> Dict[str, Any]:
        """The facts that an engine depends on."""
        result = self.to_json()
        del result["memory_bytes"], result["runtime"]
        return result

    @property
    def jetpack(self) -> str:
        """JetPack's major version, "6"; "" where L4T isn't installed or isn't known here."""
        major = self.l4t.partition(".")[0]
        return _JETPACKS.get(int(major), "") if major else ""

    def __str__(self) -> str:
        system = ", L4T " + self.l4t if self.l4t else ""
        text = "{} (compute capability {}, {} SMs{}, CUDA driver {}, runtime {}, TensorRT {})"
        return text.format(
            self.model or self.name,
            self.compute_capability,
            self.sm_count,
            system,
            self.driver,
            self.runtime,
            self.tensorrt,
        )


def describe_device(cuda: Cuda, tensorrt: Optional[str] = None) -> DeviceIdentity:
    """The device that this process runs on.

    Args:
        cuda: the loaded libcudart.
        tensorrt: TensorRT's full version; None asks the module ``tensorrt``.

    Raises:
        GpuUnavailableError: there is no ``tensorrt``.
        GpuError: CUDA doesn't answer.
    """
    gpu = cuda.device()
    release = _RELEASE.match(_read(_RELEASE_FILE))
    return DeviceIdentity(
        model=_printable(_read(_MODEL_FILE)),
        l4t="{}.{}".format(*release.groups()) if release else "",
        name=_printable(gpu.name),
        compute_capability=gpu.compute_capability,
        sm_count=gpu.sm_count,
        integrated=gpu.integrated,
        driver=gpu.driver_version,
        runtime=gpu.runtime_version,
        tensorrt=tensorrt_version() if tensorrt is None else tensorrt,
        memory_bytes=gpu.memory_bytes,
    )


def tensorrt_version() -> str:
    """The version of the module ``tensorrt``, which is loaded, and the build of its library.

    Raises:
        GpuUnavailableError: Python finds none, or it can't be loaded.
    """
    try:
        import tensorrt
    except ImportError as error:
        text = "Python's module tensorrt can't be used: {}".format(error)
        raise GpuUnavailableError(text, _TENSORRT_HINT) from None
    version = str(tensorrt.__version__)
    if version.count(".") == 2:
        # Engines are bound to the build as well, which the module leaves out.
        version += _library_build(version.partition(".")[0])
    return version


def _library_build(major: str) -> str:
    """The libnvinfer that the module has loaded, as ".30"; "" if there is none or it doesn't say."""
    try:
        library = ctypes.CDLL("libnvinfer.so." + major, mode=os.RTLD_NOLOAD)
        return ".{}".format(int(library.getInferLibBuildVersion()))
    except (AttributeError, OSError):
        return ""


def free_memory(cuda: Cuda, integrated: bool) -> int:
    """Bytes that a build can have.

    Where CPU and GPU share the memory, CUDA counts what the page cache holds as taken; the kernel
    gives that back when it is asked to, so the larger of both answers is right there.
    """
    free = cuda.memory()[0]
    if integrated:
        free = max(free, main_memory() or 0)
    return free


def main_memory() -> Optional[int]:
    """Bytes of main memory that a process can have, at most what its container's limit leaves; None: not
    known."""
    match = _AVAILABLE.search(_read(_MEMORY_FILE))
    if not match:
        return None
    available = int(match.group(1)) * 1024
    limit = _read(_LIMIT_FILE).strip()
    if not _NUMBER.fullmatch(limit):
        return available
    used = _read(_USED_FILE).strip()
    spare = _SPARE.search(_read(_KINDS_FILE))
    occupied = int(used) if _NUMBER.fullmatch(used) else 0
    occupied = max(0, occupied - (int(spare.group(1)) if spare else 0))
    return min(available, max(0, int(limit) - occupied))


def _read(path: str) -> str:
    try:
        with open(os.environ.get(ROOT_VARIABLE, "") + path, "rb") as stream:
            return stream.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""


def _printable(text: str) -> str:
    # The device tree ends its strings with a NUL. ASCII alone, as the C runtime makes the same key.
    return "".join(char for char in text if " " <= char <= "~").strip()[:200]
