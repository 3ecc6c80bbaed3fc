"""The functions of the native runtime library: native/base/edgecompile_abi.h for ctypes."""

import ctypes
from typing import Any, Tuple

from .tensors import NativeTensor

ABI_VERSION = 1


class ProfileRow(ctypes.Structure):
    """ec_profile_row: what the kernels of one kind did."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("ns", ctypes.c_int64),
        ("flops", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("regions", ctypes.c_int64),
        ("alone_ns", ctypes.c_int64),
        ("busy_ns", ctypes.c_int64),
    )


TENSORS = ctypes.POINTER(NativeTensor)
HANDLE = ctypes.c_void_p
# Name, result, arguments.
FUNCTIONS: Tuple[Tuple[str, Any, Tuple[Any, ...]], ...] = (
    ("ec_abi_version", ctypes.c_int32, ()),
    ("ec_last_error", ctypes.c_char_p, ()),
    ("ec_set_num_threads", ctypes.c_int32, (ctypes.c_int32,)),
    ("ec_get_num_threads", ctypes.c_int32, ()),
    (
        "ec_program_open",
        ctypes.c_int32,
        (ctypes.c_char_p, TENSORS, ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(HANDLE)),
    ),
    (
        "ec_program_run",
        ctypes.c_int32,
        (HANDLE, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(HANDLE)),
    ),
    ("ec_program_input_count", ctypes.c_int64, (HANDLE,)),
    ("ec_program_output_count", ctypes.c_int64, (HANDLE,)),
    ("ec_program_close", None, (HANDLE,)),
    ("ec_outputs_count", ctypes.c_int64, (HANDLE,)),
    ("ec_outputs_get", ctypes.c_int32, (HANDLE, ctypes.c_int64, TENSORS)),
    ("ec_outputs_free", None, (HANDLE,)),
    ("ec_trim", None, ()),
    ("ec_live_tensors", ctypes.c_int64, ()),
    ("ec_live_bytes", ctypes.c_int64, ()),
    ("ec_cached_bytes", ctypes.c_int64, ()),
)

# Of later additions: a bundle that was built before them carries a library without.
OPTIONAL: Tuple[Tuple[str, Any, Tuple[Any, ...]], ...] = (
    ("ec_profile_begin", None, ()),
    ("ec_profile_end", ctypes.c_int64, (ctypes.POINTER(ProfileRow), ctypes.c_int64)),
    (
        "ec_program_run_into",
        ctypes.c_int32,
        (HANDLE, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
    ),
    (
        "ec_program_run_masked",
        ctypes.c_int32,
        (
            *(HANDLE, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
            *(ctypes.c_void_p, ctypes.c_int64),
        ),
    ),
    (
        "ec_measure_ceilings",
        ctypes.c_int32,
        (ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)),
    ),
    ("ec_set_run_threads", ctypes.c_int32, (ctypes.c_int32,)),
)
