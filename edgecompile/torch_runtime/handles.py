"""Tensors of torch from the handles of its C interface, and back.

The only file of this package that uses what torch doesn't document. A variant is for one version of
torch, which the loader compares, so what was tried with it is what runs.
"""

from __future__ import annotations

import ctypes

import torch
from torch._C import _aoti

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def take_tensor(handle: int) -> torch.Tensor:
    """The tensor of a handle, which it takes over."""
    tensor: torch.Tensor = _aoti.alloc_tensor_by_stealing_from_void_ptr(
        _new_capsule(handle, None, None)
    )
    return tensor


def new_handle(tensor: torch.Tensor) -> int:
    """A new handle of a tensor; the caller frees it."""
    return int(_get_pointer(_aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None))
