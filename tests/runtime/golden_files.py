"""Golden vectors as files, for bundles that tests make."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]


def write_case(inputs: Arrays, outputs: Arrays) -> bytes:
    """The bytes of a golden .npz: uncompressed, and the same for the same arrays."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for prefix, arrays in (("in.", inputs), ("out.", outputs)):
            for name, array in arrays.items():
                # A fixed date, so that equal arrays give equal bytes.
                member = zipfile.ZipInfo(prefix + name + ".npy", (1980, 1, 1, 0, 0, 0))
                member.external_attr = (stat.S_IFREG | 0o644) << 16
                data = io.BytesIO()
                np.lib.format.write_array(
                    data, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False
                )
                archive.writestr(member, data.getvalue())
    return stream.getvalue()
