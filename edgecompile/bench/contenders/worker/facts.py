"""What a contender's process says about itself."""

from __future__ import annotations

import sys
from typing import Any

# Frameworks whose presence in a process matters to what is claimed of it.
_NOTABLE = (
    "torch",
    "onnxruntime",
    "openvino",
    "executorch",
    "transformers",
    "torchao",
    "onnx",
    "scipy",
)


def read_memory() -> dict[str, int]:
    """Resident memory in bytes: ``anonymous`` is the process' own, ``file`` mapped files, which
    processes share, ``resident`` and ``peak`` both together. Empty where there is no /proc."""
    wanted = {"VmRSS": "resident", "VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "file"}
    result = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
            for line in stream:
                key, _, value = line.partition(":")
                if key in wanted:
                    result[wanted[key]] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return result


def describe_process() -> dict[str, Any]:
    """Memory, and which frameworks are loaded."""
    return {
        "memory": read_memory(),
        "loaded": [name for name in _NOTABLE if name in sys.modules],
    }
