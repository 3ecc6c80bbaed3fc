"""Compiles an exported program to what a device can load."""

from __future__ import annotations

from edgecompile.runtime.format.schema import TORCH

#: What runs the programs: the library that comes with them, or torch where the host has it.
NATIVE = "native"
RUNTIMES = (NATIVE, TORCH)

#: Where programs are compiled: on this machine, or on those of a Ray cluster.
LOCAL, RAY = "local", "ray"
PLACES = (LOCAL, RAY)

#: The only library that a program needs beside the system's where torch is the runtime.
LIBTORCH = "libtorch_cpu.so"
