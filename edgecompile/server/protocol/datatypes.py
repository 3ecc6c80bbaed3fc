"""The datatypes of the Open Inference Protocol and numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

#: By the protocol's name; little-endian, as its binary tensors are. BYTES has none.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
NAMES: dict[str, str] = {dtype.name: name for name, dtype in DTYPES.items()}
# A language model's caches are given as the runtime has them.
NAMES["bfloat16"] = NAMES["uint16"]
#: By numpy's dtype, for arrays: its name is put together each time.
DATATYPES: dict[np.dtype[Any], str] = {
    dtype.newbyteorder("="): name for name, dtype in DTYPES.items()
}
BYTES = "BYTES"
