"""Backends: what turns an exported program into something a device can load.

A backend is a module with a class that satisfies :class:`Backend`; :func:`get_backend` imports it
only when it is asked for, since each pulls in its own heavy libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from edgecompile.errors import TargetError
from edgecompile.precision import FP32, Precision
from edgecompile.progress import NULL_STEP, StepHandle

if TYPE_CHECKING:
    from pathlib import Path

    from edgecompile.backends.artifact import Artifact, TensorStore
    from edgecompile.buckets.plan import Bucket
    from edgecompile.export.export import ExportedModel
    from edgecompile.targets.profile import VariantSpec
    from edgecompile.toolchain.native import NativeRuntime


#: The only library that a program needs beside the system's where torch is the runtime.
LIBTORCH = "libtorch_cpu.so"


class Backend(Protocol):
    """Compiles one program for one variant."""

    name: str

    def compile_program(
        self,
        exported: ExportedModel,
        bucket: Bucket,
        variant: VariantSpec,
        native: NativeRuntime | None,
        output: Path,
        *,
        scratch: Path,
        store: TensorStore,
        index: int = 0,
        export_key: str | None = None,
        precision: Precision = FP32,
        step: StepHandle = NULL_STEP,
    ) -> Artifact:
        """Builds the library of ``bucket`` for ``variant`` at ``output``."""


_BACKENDS: Mapping[str, tuple[str, str]] = {
    "aoti-cpu": ("edgecompile.backends.inductor_cpu", "InductorCpuBackend"),
    "torch": ("edgecompile.backends.inductor_torch", "InductorTorchBackend"),
}


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        TargetError: there is none; lists those that exist.
    """
    if name not in _BACKENDS:
        raise TargetError(
            f"there is no backend '{name}'", hint="backends: " + ", ".join(sorted(_BACKENDS))
        )
    module, attribute = _BACKENDS[name]
    backend: Backend = getattr(importlib.import_module(module), attribute)()
    return backend
