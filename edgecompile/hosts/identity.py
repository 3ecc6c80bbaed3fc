"""The identity of the machine that measures, and the load that other processes put on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Flags of /proc/cpuinfo that decide how fast arithmetic is; the others would bury them.
_TELLING = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "bmi2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "fphp", "asimdhp", "i8mm", "bf16"),
    *("sve", "sve2"),
)


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def load_average() -> tuple[float, float, float]:
    """Runnable processes, averaged over 1, 5 and 15 minutes."""
    return os.getloadavg()


def describe_machine() -> dict[str, Any]:
    """CPU, memory and system as plain values; what can't be read is left out."""
    info = _cpuinfo()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    facts: dict[str, Any] = {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cpu_id": "/".join(
            info[key] for key in ("vendor_id", "cpu family", "model", "stepping") if key in info
        ),
        "flags": [flag for flag in _TELLING if flag in _flags(info)],
        "caches": _caches(),
        "cpus": os.cpu_count(),
        "usable_cpus": usable_cpus(),
        "threads_per_core": _threads_per_core(),
        "virtual": "hypervisor" in _flags(info),
        "governor": governor,
        "memory_gb": round(memory / 1e9, 1),
        "architecture": platform.machine(),
        "system": _distribution(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }
    return {key: value for key, value in facts.items() if value not in (None, "", {}, [])}


def cpu_identity() -> str:
    """Model and instruction sets: machines that agree in it can share compiled code."""
    info = _cpuinfo()
    flags = " ".join(flag for flag in _TELLING if flag in _flags(info))
    return f"{platform.machine()} {info.get('model name', '')} {flags}"


@dataclass(frozen=True)
class CpuClock:
    """CPU seconds spent since the machine's start, and the time of reading.

    Attributes:
        wall: seconds of a monotonic clock.
        busy: the busy time of all CPUs together, by any process, and the time that a hypervisor
            took away.
        stolen: the time that a hypervisor took away.
        own: the CPU time of this process and those that were named.
    """

    wall: float
    busy: float
    stolen: float
    own: float

    def foreign_since(self, earlier: CpuClock) -> float:
        """CPUs that others kept busy on average, at least 0."""
        elapsed = max(self.wall - earlier.wall, 1e-9)
        return max(0.0, ((self.busy - earlier.busy) - (self.own - earlier.own)) / elapsed)

    def stolen_since(self, earlier: CpuClock) -> float:
        """CPUs that a hypervisor took away on average."""
        return (self.stolen - earlier.stolen) / max(self.wall - earlier.wall, 1e-9)


def read_clock(processes: Iterable[int] = ()) -> CpuClock | None:
    """Reads the clock; None where there is no /proc. Resolution: one tick, often 10 ms.

    Args:
        processes: ids of further processes whose time is ours; they must be alive.
    """
    try:
        tick = os.sysconf("SC_CLK_TCK")
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        own = sum(_process_ticks(pid) for pid in (os.getpid(), *processes))
    except (OSError, ValueError, IndexError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, stolen = fields
    return CpuClock(
        wall=time.monotonic(),
        busy=(user + nice + system + irq + softirq + stolen) / tick,
        stolen=stolen / tick,
        own=own / tick,
    )


def _process_ticks(pid: int) -> int:
    # The command's name may hold spaces and parentheses: fields are counted behind the last one.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry."""
    entry: dict[str, str] = {}
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if not line.strip() and entry:
            break
        key, _, value = line.partition(":")
        entry[key.strip()] = value.strip()
    return entry


def _flags(info: dict[str, str]) -> set[str]:
    return set((info.get("flags") or info.get("Features") or "").split())


def _caches() -> dict[str, str]:
    """Size of each cache that the first CPU uses, by level and kind."""
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, size = _read(folder / "level"), _read(folder / "size")
        kind = {"Data": "d", "Instruction": "i"}.get(_read(folder / "type") or "", "")
        if level and size:
            sizes[f"L{level}{kind}"] = size
    return sizes


def _threads_per_core() -> int | None:
    text = _read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    if not text:
        return None
    count = 0
    for part in text.split(","):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return count


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
