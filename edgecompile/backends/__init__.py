"""Compiles an exported program to what a device can load."""

from __future__ import annotations

#: The only library that a program needs beside the system's where torch is the runtime.
LIBTORCH = "libtorch_cpu.so"
