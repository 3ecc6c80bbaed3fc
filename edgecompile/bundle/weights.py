"""A bundle's weights: a safetensors file whose tensors are 64-byte aligned and read in place.

safetensors (format specification in its README) asks for a JSON header behind an 8-byte length and
for tensors without holes between them; it aligns nothing but the header. Alignment therefore comes
from entries of bytes named ``__pad.N`` and from spaces at the header's end, both of which any
safetensors reader accepts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from edgecompile.backends.artifact import StoredTensor, TensorStore
from edgecompile.runtime.format.dtypes import BY_NAME

ALIGNMENT = 64
PADDING_PREFIX = "__pad."


@dataclass(frozen=True)
class Layout:
    """A container's header, and the tensors behind it.

    Attributes:
        header: the file's first bytes: length, JSON and spaces.
        order: names in the order of the file.
        offsets: the offset of each from the start of the file.
        sizes: bytes of each.
        size: the size of the whole file.
    """

    header: bytes
    order: tuple[str, ...]
    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    size: int

    def gap(self, name: str) -> int:
        """Zero bytes that follow a tensor."""
        return -self.sizes[name] % ALIGNMENT


def lay_out(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Layout:
    """The container of ``tensors`` (dtype and shape by name), in the order of their names.

    Raises:
        KeyError: a dtype can't be stored.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "edgecompile"}}
    begins: dict[str, int] = {}
    sizes: dict[str, int] = {}
    offset = 0
    pads = 0
    for name in sorted(tensors):
        dtype, shape = tensors[name]
        element = BY_NAME[dtype]
        size = element.size * prod(shape)
        entries[name] = {
            "dtype": element.container,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        begins[name], sizes[name] = offset, size
        offset += size
        gap = -offset % ALIGNMENT
        if gap:
            entries[f"{PADDING_PREFIX}{pads}"] = {
                "dtype": "U8",
                "shape": [gap],
                "data_offsets": [offset, offset + gap],
            }
            offset += gap
            pads += 1
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return Layout(
        header,
        tuple(begins),
        {name: len(header) + begin for name, begin in begins.items()},
        sizes,
        len(header) + offset,
    )


def write_weights(path: Path, tensors: Mapping[str, StoredTensor], store: TensorStore) -> int:
    """Writes ``tensors`` to ``path``, in the order of their names.

    Args:
        path: a new file.
        tensors: the tensors by the names that the device looks up.
        store: the store of their bytes.

    Returns:
        The file's size in bytes.

    Raises:
        OSError: the file can't be written.
        CompileError: a tensor isn't what was stored.
    """
    layout = lay_out({name: (t.dtype, t.shape) for name, t in tensors.items()})
    with path.open("xb") as file:
        file.write(layout.header)
        for name in layout.order:
            store.copy(tensors[name], file)
            file.write(b"\0" * layout.gap(name))
    return layout.size
