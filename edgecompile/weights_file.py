"""Writing a bundle's weights: a safetensors file whose tensors are 64-byte aligned.

safetensors (format specification in its README) asks for a JSON header behind an 8-byte length and
for tensors without holes between them; it aligns nothing but the header. Alignment therefore comes
from entries of bytes named ``__pad.N`` and from spaces at the header's end, both of which any
safetensors reader accepts. The device maps the file and reads tensors in place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from edgecompile.backends.artifact import StoredTensor, TensorStore

ALIGNMENT = 64
PADDING_PREFIX = "__pad."

_SAFETENSORS_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_weights(path: Path, tensors: Mapping[str, StoredTensor], store: TensorStore) -> int:
    """Writes ``tensors`` to ``path``, in the order of their names.

    Args:
        path: a new file.
        tensors: by the name that the device looks them up with.
        store: where their bytes lie.

    Returns:
        The file's size in bytes.

    Raises:
        OSError: the file can't be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "edgecompile"}}
    pieces: list[Path | int] = []  # a tensor's file, or a number of zero bytes
    offset = 0
    pads = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        size = store.path(tensor).stat().st_size
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        pieces.append(store.path(tensor))
        offset += size
        gap = -offset % ALIGNMENT
        if gap:
            header[f"{PADDING_PREFIX}{pads}"] = {
                "dtype": "U8",
                "shape": [gap],
                "data_offsets": [offset, offset + gap],
            }
            pieces.append(gap)
            offset += gap
            pads += 1
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for piece in pieces:
            if isinstance(piece, int):
                file.write(b"\0" * piece)
            else:
                _copy(piece, file)
    return 8 + len(text) + offset


def _copy(source: Path, target: BinaryIO) -> None:
    with source.open("rb") as file:
        while block := file.read(1 << 20):
            target.write(block)
