"""Arrays that end, or begin, exactly at an inaccessible page: a stray access kills the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE = mmap.PAGESIZE


def guarded(values: np.ndarray, *, at_end: bool = True) -> np.ndarray:
    """A copy of `values` (C order) with guard pages before and after its pages.

    With at_end the last byte is the last of its page, else the first byte the first. The memory
    lives as long as the array (and is never unprotected; a test process is short-lived).
    """
    data = np.ascontiguousarray(values)
    pages = max(1, -(-data.nbytes // PAGE))
    region = mmap.mmap(-1, (pages + 2) * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for guard in (base, base + (pages + 1) * PAGE):
        if _libc.mprotect(guard, PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE + (pages * PAGE - data.nbytes if at_end else 0)
    out = np.frombuffer(region, data.dtype, data.size, offset).reshape(data.shape)
    out[...] = data
    return out
