"""A machine's state, as far as times depend on it: board, clock governor, temperature, load."""

import glob
import os
import platform
from typing import Any, Dict, Optional

_BOARD = ("/proc/device-tree/model", "/sys/class/dmi/id/product_name")
_SYSTEM = "/etc/os-release"
_GOVERNORS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
_FREQUENCIES = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq"
_ZONES = "/sys/class/thermal/thermal_zone*"


def describe_board() -> Dict[str, Any]:
    """The machine beyond its CPU.

    Returns:
        Plain JSON values: "board", "system" and "kernel" in words, "governors" and "max_mhz" of the
        CPUs without repeats, and "python". What the system doesn't say is None or empty.
    """
    boards = (_read(path) for path in _BOARD)
    megahertz = {int(text) // 1000 for text in map(_read, glob.glob(_FREQUENCIES)) if text}
    return {
        "board": next((text for text in boards if text), None),
        "system": _system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "governors": sorted({text for text in map(_read, glob.glob(_GOVERNORS)) if text}),
        "max_mhz": sorted(megahertz),
    }


def read_state() -> Dict[str, Any]:
    """The state that changes: "temperature_c", the hottest sensor in degrees Celsius or None, and
    "load", the processes that ran or waited on average over the last minute."""
    degrees = []
    for zone in glob.glob(_ZONES):
        text = _read(zone + "/temp")
        if text and text.lstrip("-").isdigit():
            degrees.append(int(text) / 1000.0)
    return {
        "temperature_c": max(degrees) if degrees else None,
        "load": round(os.getloadavg()[0], 2),
    }


def _system() -> Optional[str]:
    for line in (_read(_SYSTEM) or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'")
    return None


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip("\0 \n") or None
    except OSError:
        return None
