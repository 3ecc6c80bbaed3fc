"""Reads golden vectors: .npz files of inputs and of what eager made of them.

``numpy.load`` would do for files that are trusted; here the size of every array is known before
memory is allocated for it, and nothing that needs pickle is looked at.
"""

import io
import os
import stat
import zipfile
from typing import IO, TYPE_CHECKING, Any, Dict, List, NamedTuple, Tuple

import numpy as np

from .document import Problems, shorten
from .errors import BundleError
from .manifest import Manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ARRAY_BYTES = 1 << 30
_HINT = "the golden vectors were written wrongly or changed; build the bundle again"


class Case(NamedTuple):
    """One golden case in memory."""

    inputs: "Dict[str, NDArray[Any]]"
    outputs: "Dict[str, NDArray[Any]]"


def read_case(fd: int, source: str, manifest: Manifest) -> Case:
    """Reads one .npz file; ``fd`` stays open.

    It must hold exactly one array ``in.NAME`` for every input and ``out.NAME`` for every output,
    of the manifest's dtype and rank.

    Raises:
        BundleError: rules golden-archive, golden-keys and golden-array; lists every problem.
    """
    problems = Problems(source)
    specs = {"in." + item.name: item for item in manifest.inputs}
    specs.update({"out." + item.name: item for item in manifest.outputs})
    arrays: Dict[str, NDArray[Any]] = {}
    try:
        with os.fdopen(os.dup(fd), "rb") as stream, zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            names = [item.filename for item in members]
            wanted = [key + ".npy" for key in specs]
            if sorted(names) != sorted(wanted):
                text = "holds {}, must hold {}"
                shown = ", ".join(shorten(name) for name in sorted(names)[:64])
                problems.add("golden-keys", "archive", text.format(shown, ", ".join(wanted)))
                members = []
            for member in members:
                key = member.filename[: -len(".npy")]
                try:
                    with archive.open(member) as array_stream:
                        arrays[key] = _read_array(array_stream, member.file_size)
                except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
                    problems.add("golden-array", key, shorten(error, 200))
                    continue
                spec, array = specs[key], arrays[key]
                if array.dtype.name != spec.dtype or array.ndim != len(spec.shape):
                    text = "is {} with {} dimensions, must be {} with {}"
                    text = text.format(array.dtype, array.ndim, spec.dtype, len(spec.shape))
                    problems.add("golden-array", key, text)
    except Exception as error:  # zipfile raises many kinds for archives that are damaged
        problems.add("golden-archive", "archive", shorten(error, 200) or type(error).__name__)
    problems.raise_if_any(hint=_HINT)
    return Case(
        {item.name: arrays["in." + item.name] for item in manifest.inputs},
        {item.name: arrays["out." + item.name] for item in manifest.outputs},
    )


def _read_array(stream: "IO[bytes]", member_bytes: int) -> "NDArray[Any]":
    """One .npy member of format version 1.0, whose header is at most 64 KiB."""
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError("is of .npy version {}.{}, must be 1.0".format(*version))
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject or dtype.kind not in "biuf":
        raise ValueError("holds {}, must hold numbers".format(dtype))
    nbytes = dtype.itemsize
    for dim in shape:
        nbytes *= dim
    if not 0 <= nbytes <= min(MAX_ARRAY_BYTES, member_bytes):
        text = "has shape {} and {} bytes, the archive has {} and at most {} are read"
        raise ValueError(text.format(list(shape), nbytes, member_bytes, MAX_ARRAY_BYTES))
    data = stream.read(nbytes)
    if len(data) != nbytes or stream.read(1):
        raise ValueError("{} bytes of data, must have {}".format(len(data), nbytes))
    array = np.frombuffer(bytearray(data), dtype=dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def list_cases(folder: str) -> List[Tuple[int, str, str]]:
    """(bucket, case, path) of every ``<bucket>-<case>.npz`` of a folder, in that order.

    Raises:
        BundleError: the folder can't be read, or holds an .npz of another name, or none.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".npz"))
    except OSError as error:
        raise BundleError("{}: can't be listed: {}".format(folder, error.strerror)) from None
    result = []
    for name in names:
        bucket, dash, case = name[: -len(".npz")].partition("-")
        if not (bucket.isdigit() and bucket.isascii() and len(bucket) < 10 and dash and case):
            text = "{}: the file {!r} isn't named <bucket>-<case>.npz"
            raise BundleError(text.format(folder, shorten(name)))
        result.append((int(bucket), case, os.path.join(folder, name)))
    if not result:
        raise BundleError("{}: holds no .npz file".format(folder))
    return sorted(result)


def write_case(inputs: "Dict[str, NDArray[Any]]", outputs: "Dict[str, NDArray[Any]]") -> bytes:
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
