"""The enums and small classes of the fake."""

from __future__ import annotations

import enum
from typing import Any


class _Enum(enum.Enum):
    def __int__(self) -> int:
        # Other values than in any real version: whoever stores or hard-codes one finds out.
        return list(type(self)).index(self) + 5


class ILogger:
    """To be derived from; the derived __init__ must call this one."""

    class Severity(_Enum):
        INTERNAL_ERROR = "internal error"
        ERROR = "error"
        WARNING = "warning"
        INFO = "info"
        VERBOSE = "verbose"

    INTERNAL_ERROR = Severity.INTERNAL_ERROR
    ERROR = Severity.ERROR
    WARNING = Severity.WARNING
    INFO = Severity.INFO
    VERBOSE = Severity.VERBOSE

    def __init__(self) -> None:
        self._made = True

    def log(self, severity: ILogger.Severity, msg: str) -> None:
        raise NotImplementedError


class Logger(ILogger):
    """Prints, from ``min_severity`` on."""

    def __init__(self, min_severity: ILogger.Severity = ILogger.WARNING) -> None:
        super().__init__()
        self.min_severity = min_severity

    def log(self, severity: ILogger.Severity, msg: str) -> None:
        if int(severity) <= int(self.min_severity):
            print(f"[fake TensorRT] [{severity.value}] {msg}")


class IProgressMonitor:
    """To be derived from; the derived __init__ must call this one."""

    def __init__(self) -> None:
        self._made = True

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


class NetworkDefinitionCreationFlag(_Enum):
    STRONGLY_TYPED = "strongly typed"


class BuilderFlag(_Enum):
    """Those of precisions are gone in 11; release8.py alone has a use for them."""

    TF32 = "tf32"
    FP16 = "fp16"
    INT8 = "int8"
    OBEY_PRECISION_CONSTRAINTS = "obey"


class MemoryPoolType(_Enum):
    WORKSPACE = "workspace"


class DataType(_Enum):
    FLOAT = "float32"
    HALF = "float16"
    BF16 = "bfloat16"
    INT8 = "int8"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    BOOL = "bool"


class TensorIOMode(_Enum):
    NONE = "none"
    INPUT = "input"
    OUTPUT = "output"


class ExecutionContextAllocationStrategy(_Enum):
    STATIC = "static"
    ON_PROFILE_CHANGE = "on profile change"
    USER_MANAGED = "user managed"


class IHostMemory(bytes):
    """Memory of the host that TensorRT owns."""

    @property
    def nbytes(self) -> int:
        return len(self)


def is_made(item: Any) -> bool:
    """Whether a derived class called its base's __init__, as the real bindings insist on."""
    return getattr(item, "_made", False) is True
