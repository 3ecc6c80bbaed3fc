"""Compiles an exported program to libraries that a device can load."""

from __future__ import annotations

from edgecompile.runtime.format.manifest.schema import TENSORRT, TORCH, TRITON

#: Programs for a CPU that call the library in the bundle.
CPU = "cpu"
#: The usual backend of a target: ``cpu``, or ``tensorrt`` where the target has a GPU.
AUTO = "auto"
#: TensorRT's recipe and, beside it, Triton's programs.
BOTH = "both"
CPU_BACKENDS = (CPU, TORCH)
GPU_BACKENDS = (TENSORRT, TRITON, BOTH)
BACKENDS = (AUTO, *CPU_BACKENDS, *GPU_BACKENDS)
#: The backends that leave Triton's programs in the bundle, and those that leave a recipe for TensorRT.
WITH_TRITON = (TRITON, BOTH)
WITH_TENSORRT = (TENSORRT, BOTH)

#: Where programs are compiled: on this machine, or on those of a Ray cluster.
LOCAL, RAY = "local", "ray"
PLACES = (LOCAL, RAY)

#: The only library that a program needs beside the system's where torch is the runtime.
LIBTORCH = "libtorch_cpu.so"
