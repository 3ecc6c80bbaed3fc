"""Errors of the build side: one tree, each class with an exit code of its own.

Exit code 2 belongs to Click (wrong usage) and 130 to an interrupt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgecompile.runtime.base.errors import *  # noqa: F403  the device's errors are part of the tree
from edgecompile.runtime.base.errors import EdgecompileError


class LengthsError(EdgecompileError):
    """A lengths file or a text file can't be read as sequence lengths."""

    exit_code = 30


class TargetError(EdgecompileError):
    """A target is unknown, or its profile is malformed."""

    exit_code = 31


class ModelError(EdgecompileError):
    """A model specification can't be resolved, or loading the model failed."""

    exit_code = 32


class ExportError(EdgecompileError):
    """torch.export refused the model, or its result differs from eager.

    ``details`` keeps what torch said, word for word, one part per attempt; the message has the
    readable form. ``served`` has the smallest and largest size per axis for which an export was
    right, if it was for any. ``parts`` are ranges of the length axis that an
    export may hold for, the widest first. ``period`` is the number of lengths after which conditions
    on remainders repeat, 1 if there are none; ``near`` has ranges like ``parts`` in which these hold, too.
    """

    exit_code = 33

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        details: str = "",
        served: Mapping[str, tuple[int, int]] | None = None,
        parts: Sequence[tuple[int, int]] = (),
        period: int = 1,
        near: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__(message, hint)
        self.details = details
        self.served = served
        self.parts = parts
        self.period = period
        self.near = near


class PlanError(EdgecompileError):
    """No plan satisfies the lengths, the model's limits and the constraints."""

    exit_code = 34


class ToolchainError(EdgecompileError):
    """A compiler or another tool is missing or can't do what is needed."""

    exit_code = 35


class CompileError(EdgecompileError):
    """Code generation or the C++ compiler failed."""

    exit_code = 36


class MissingKernelError(CompileError):
    """The model calls kernels that the native runtime doesn't have; all are listed."""

    exit_code = 37


class AuditError(EdgecompileError):
    """A built library isn't fit for its target."""

    exit_code = 38


class VerificationError(EdgecompileError):
    """The bundle's outputs differ from eager by more than the tolerance.

    ``differs`` is whether cases were run and are too far off: another precision may cure it.
    """

    exit_code = 39

    def __init__(self, message: str, hint: str | None = None, *, differs: bool = False) -> None:
        super().__init__(message, hint)
        self.differs = differs


class BundleWriteError(EdgecompileError):
    """The bundle could not be written.

    ``destination`` is the path that could not, where it is that: what was made before is whole then.
    """

    exit_code = 40

    def __init__(
        self, message: str, hint: str | None = None, destination: Path | None = None
    ) -> None:
        super().__init__(message, hint)
        self.destination = destination


class DiskFullError(BundleWriteError):
    """The disk, or a quota on it, is full."""

    exit_code = 41


class MissingDependencyError(EdgecompileError):
    """The request needs an optional Python package."""

    exit_code = 42


class ElfError(EdgecompileError):
    """A file isn't an ELF file that can be read to its end."""

    exit_code = 43


class CostError(EdgecompileError):
    """Cost points or a calibration can't be used: malformed, or of another model or machine."""

    exit_code = 44


class BenchError(EdgecompileError):
    """A benchmark can't be run: its arguments make no sense, or a process fails."""

    exit_code = 45


class DriftError(EdgecompileError):
    """A bundle's traffic has drifted so far from its plan that a new plan pays."""

    exit_code = 46


class UnsupportedOperatorError(EdgecompileError):
    """The model has operators that the target's TensorRT doesn't take; all are listed."""

    exit_code = 47


class OpsetError(EdgecompileError):
    """An ONNX graph's version of operators is one that the target's TensorRT doesn't take."""

    exit_code = 48


class UsageError(EdgecompileError, ValueError):
    """Options have a wrong type, contradict each other, don't fit the target, or are missing.

    A command ends with 2, as it does where Click finds the wrong usage.
    """

    exit_code = 49


class ImageError(EdgecompileError):
    """A container image can't be made of a bundle."""

    exit_code = 51


class RegistryError(ImageError):
    """A registry of images can't be reached, or refuses."""

    exit_code = 52


class ClusterError(EdgecompileError):
    """A Ray cluster can't be reached, loses tasks, or a machine of it has other versions."""

    exit_code = 53
