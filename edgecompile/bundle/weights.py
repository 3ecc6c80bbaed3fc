"""Writing a bundle's weights: a safetensors file whose tensors are 64-byte aligned.

:mod:`edgecompile.bundle.layout` says how. The device maps the file and reads tensors in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgecompile.backends.artifact import StoredTensor, TensorStore
from edgecompile.bundle.layout import ALIGNMENT, PADDING_PREFIX, lay_out

__all__ = ["ALIGNMENT", "PADDING_PREFIX", "write_weights"]


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
        CompileError: a tensor isn't what was stored.
    """
    layout = lay_out({name: (t.dtype, t.shape) for name, t in tensors.items()})
    with path.open("xb") as file:
        file.write(layout.header)
        for name in layout.order:
            store.copy(tensors[name], file)
            file.write(b"\0" * layout.gap(name))
    return layout.size
