"""Reads golden vectors: .npz files of inputs and of eager's outputs.

``numpy.load`` would do for files that are trusted; here the size of every array is known before
memory is allocated for it, and nothing that needs pickle is looked at.
"""

import io
import os
import re
import zipfile
from typing import IO, TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from ...base.errors import BundleError
from ..document import Problems, shorten
from ..dtypes import array_type
from ..manifest.schema import NOTHING, Manifest, TensorSpec
from .ties import SPECS, Ties, ties_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BYTES = 1 << 30
#: Of the list of members. Of 128 with the longest names it is a twentieth.
MAX_DIRECTORY_BYTES = 1 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHUNK = 1 << 20
#: As numpy has written it since its first version: descr, order, shape.
_HEADER = re.compile(
    rb"\{'descr': '([<|][0-9a-z]{2,3})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, ?){0,8}(?:[0-9]{1,18})?)\), \} *\n?"
)
_HINT = "the golden vectors were written wrongly or changed; build the bundle again"


class Case(NamedTuple):
    """One golden case in memory.

    ``margins`` has, by output, the difference that is allowed beyond the tolerance, ``ties`` the alternatives for
    nearly equal values; see FORMAT.md.
    """

    inputs: "Dict[str, NDArray[Any]]"
    outputs: "Dict[str, NDArray[Any]]"
    margins: Mapping[str, float] = NOTHING
    ties: Optional[Ties] = None


def read_case(fd: int, source: str, manifest: Manifest) -> Case:
    """Reads one .npz file; ``fd`` stays open.

    It must hold exactly one array ``in.NAME`` for every input and ``out.NAME`` for every output,
    of the manifest's dtype and rank, together at most 1 GiB. It may hold ``margin.NAME`` for outputs, and ties.

    Raises:
        BundleError: rules golden-archive, golden-keys and golden-array; lists every problem.
    """
    problems = Problems(source)
    room = MAX_BYTES
    specs = {"in." + item.name: item for item in manifest.inputs}
    specs.update({"out." + item.name: item for item in manifest.outputs})
    margins = {
        "margin." + item.name: TensorSpec(item.name, "float64", ()) for item in manifest.outputs
    }
    optional = dict(margins)
    optional.update(
        {"ties." + name: TensorSpec(name, kind, (None,) * n) for name, (kind, n) in SPECS.items()}
    )
    for item in manifest.outputs:
        optional["slots." + item.name] = TensorSpec(item.name, "int64", item.shape)
        optional["others." + item.name] = TensorSpec(item.name, item.dtype, (None, *item.shape))
    arrays: Dict[str, NDArray[Any]] = {}
    try:
        with _Stream(io.FileIO(os.dup(fd))) as stream, zipfile.ZipFile(stream) as archive:
            stream.most = None
            members = archive.infolist()
            names = [item.filename for item in members]
            expected = [key + ".npy" for key in specs]
            more = [key + ".npy" for key in optional]
            if sorted(name for name in names if name not in more) != sorted(expected):
                text = "holds {}, must hold {}"
                shown = ", ".join(shorten(name) for name in sorted(names)[:64])
                problems.add("golden-keys", "archive", text.format(shown, ", ".join(expected)))
                members = []
            for member in members:
                key = member.filename[: -len(".npy")]
                if member.compress_type not in _METHODS:  # others may ask for gigabytes to unpack
                    text = "is packed with the method {}, must be stored or deflated"
                    problems.add("golden-array", key, text.format(member.compress_type))
                    continue
                try:
                    with archive.open(member) as array_stream:
                        spec = specs[key] if key in specs else optional[key]
                        array = _read_array(array_stream, spec, min(room, member.file_size))
                    if key in margins and not 0 <= float(array) < float("inf"):
                        raise ValueError("is {}, must be finite and not negative".format(array))
                except (ValueError, MemoryError) as error:
                    problems.add("golden-array", key, shorten(error, 200) or "out of memory")
                    continue
                arrays[key] = array
                room -= array.nbytes
    except Exception as error:  # zipfile raises many kinds for archives that are damaged
        problems.add("golden-archive", "archive", shorten(error, 200) or type(error).__name__)
    problems.raise_if_any(hint=_HINT)
    outputs = {item.name: arrays["out." + item.name] for item in manifest.outputs}
    ties = None
    try:
        ties = ties_of(arrays, outputs)
    except ValueError as error:
        problems.add("golden-array", "ties", str(error))
        problems.raise_if_any(hint=_HINT)
    return Case(
        {item.name: arrays["in." + item.name] for item in manifest.inputs},
        outputs,
        {spec.name: float(arrays[key]) for key, spec in margins.items() if key in arrays},
        ties,
    )


class _Stream(io.BufferedReader):
    """A file of which at most ``most`` bytes can be read at once.

    zipfile reads the whole list of members, and what it makes of it is twenty times as large: the
    file of an archive that is nothing but members mustn't decide how much memory that takes.
    """

    most: Optional[int] = MAX_DIRECTORY_BYTES

    def read(self, size: Optional[int] = -1) -> bytes:
        """Raises ValueError where there is more."""
        if self.most is None or (size is not None and 0 <= size <= self.most):
            return super().read(size)
        data = super().read(self.most + 1)
        if len(data) > self.most:
            raise ValueError("the list of members has more than {} bytes".format(self.most))
        return data


def _read_array(stream: "IO[bytes]", spec: TensorSpec, most: int) -> "NDArray[Any]":
    """One .npy member of format version 1.0 with the type and rank of ``spec``.

    The header, a Python expression, is matched with what numpy writes and not evaluated.
    """
    start = stream.read(10)
    if len(start) != 10 or start[:6] != b"\x93NUMPY":
        raise ValueError("isn't a .npy file")
    if start[6:8] != b"\x01\x00":
        raise ValueError("is of .npy version {}.{}, must be 1.0".format(start[6], start[7]))
    text = stream.read(start[8] | start[9] << 8)
    match = _HEADER.fullmatch(text)
    if match is None:
        raise ValueError("has the header {!r}".format(shorten(text, 100)))
    descr, order, sizes = (item.decode("ascii") for item in match.groups())
    dtype = np.dtype(array_type(spec.dtype)).newbyteorder("<")
    shape = tuple(int(size) for size in sizes.replace(",", " ").split())
    if descr != dtype.str or len(shape) != len(spec.shape):
        message = "is {} with {} dimensions, must be {} with {}"
        raise ValueError(message.format(descr, len(shape), dtype.str, len(spec.shape)))
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
    if nbytes > most:
        message = "has shape {} and {} bytes, at most {} can be here"
        raise ValueError(message.format(list(shape), nbytes, most))
    # A chunk at a time: memory that isn't written to costs nothing, so a size that lies doesn't.
    data = np.empty(nbytes, dtype=np.uint8)
    position = 0
    while position < nbytes:
        chunk = stream.read(min(_CHUNK, nbytes - position))
        if not chunk:
            raise ValueError("{} bytes of data, must have {}".format(position, nbytes))
        data[position : position + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
        position += len(chunk)
    if stream.read(1):
        raise ValueError("more than {} bytes of data".format(nbytes))
    array = data.view(dtype)
    return array.reshape(shape, order="F" if order == "True" else "C")


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
