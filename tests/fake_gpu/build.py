"""Compiles the fake of libcudart and asks it what a test wants to know."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_cudart.c")
MODULES = Path(__file__).with_name("modules")


def build_fake_cudart(folder: Path) -> Path:
    """The library, compiled into ``folder``."""
    return build_fake(SOURCE, folder / "libfake_cudart.so")


def build_fake(source: Path, path: Path) -> Path:
    """A fake library of one C file, compiled to ``path``."""
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-shared", "-fPIC", "-pthread"]
    # A torch for CUDA brings the real library, whose functions would take the place of the fake's own.
    subprocess.run(
        [need_compiler(), *flags, "-Wl,-Bsymbolic", "-o", str(path), str(source)], check=True
    )
    return path


def need_compiler() -> str:
    """A C compiler; without one the test is skipped."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    return compiler


class FakeCudart:
    """The fake in this process; ``edgecompile.runtime.gpu.cuda`` uses the same one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        for name in ("fake_cudart_live", "fake_cudart_calls"):
            getattr(self.library, name).restype = ctypes.c_long
        self.library.fake_cudart_live_bytes.restype = ctypes.c_size_t
        self.library.fake_cudart_calls.argtypes = [ctypes.c_char_p]

    @property
    def live(self) -> int:
        """Memory blocks, streams and graphs that nobody gave back."""
        return int(self.library.fake_cudart_live())

    @property
    def live_bytes(self) -> int:
        """Bytes of memory that nobody gave back, of the GPU's and of pinned memory."""
        return int(self.library.fake_cudart_live_bytes())

    @property
    def misuses(self) -> int:
        """Errors that the caller made; those that FAKE_CUDART_FAIL asks for don't count."""
        return int(self.library.fake_cudart_misuses())

    def calls(self, name: str) -> int:
        """Calls of a function since the last reset."""
        return int(self.library.fake_cudart_calls(name.encode()))

    def reset(self) -> None:
        """As in a new process."""
        self.library.fake_cudart_reset()
