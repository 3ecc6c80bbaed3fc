"""Writes a graph as a file beside one file of weights, and reads an exporter's files.

The weights are ONNX's external data: the graph names a file beside it, an offset and a length for
each tensor. The file is a safetensors container with tensors aligned to 64 bytes, so whoever checks
the bundle's weights can check it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgecompile.bundle.weights import lay_out
from edgecompile.errors import ExportError
from edgecompile.files import replacing
from edgecompile.onnx_files.graph import Array, OnnxGraph, content_key

if TYPE_CHECKING:
    import onnx


def write_onnx(
    graph: OnnxGraph, model: Path, weights: Path, others: Mapping[Path, OnnxGraph] | None = None
) -> None:
    """Writes ``model`` and ``weights``, which must be in one folder; the same graph gives the same
    bytes. Files of these names are replaced, the weights first.

    Args:
        graph: the graph.
        model, weights: the files.
        others: further graphs by their files in the same folder. Their large tensors lie in ``weights``, too, each
            content once.

    Raises:
        OSError: a file can't be written; none is left half-written under its name.
    """
    tensors = dict(graph.large)
    if not others:  # the usual case needs no hashes
        offsets = write_tensors(tensors, weights)
        write_graph(graph, model, {name: (weights.name, at) for name, at in offsets.items()})
        return
    stored = {content_key(array): name for name, array in tensors.items()}
    places = {model: {name: name for name in tensors}}
    for path, other in others.items():
        places[path] = {}
        for name, array in other.large.items():
            key = content_key(array)
            if key not in stored:
                stored[key] = f"{name}/{path.stem}" if name in tensors else name
                tensors[stored[key]] = array
            places[path][name] = stored[key]
    offsets = write_tensors(tensors, weights)
    for path, item in {model: graph, **others}.items():
        external = {n: (weights.name, offsets[place]) for n, place in places[path].items()}
        write_graph(item, path, external)


def write_tensors(tensors: Mapping[str, Array], path: Path) -> Mapping[str, int]:
    """Writes a container and tells where each tensor begins, from the start of the file."""
    layout = lay_out({name: (a.dtype.name, a.shape) for name, a in tensors.items()})
    with replacing(path, sync=True) as file:
        file.write(layout.header)
        for name in layout.order:
            if layout.sizes[name]:
                array = np.ascontiguousarray(tensors[name])
                file.write(array.reshape(-1).view(np.uint8).data)
            file.write(b"\0" * layout.gap(name))
    return layout.offsets


def write_graph(graph: OnnxGraph, path: Path, external: Mapping[str, tuple[str, int]]) -> None:
    """Writes the graph; ``external`` as for :meth:`OnnxGraph.model`."""
    with replacing(path, sync=True) as file:
        file.write(graph.model(external).SerializeToString(deterministic=True))


def load_graph(path: Path) -> OnnxGraph:
    """Reads a model; files beside it are mapped, so they have to stay.

    Raises:
        ExportError: it can't be read.
    """
    import onnx

    try:
        proto = onnx.load(str(path), load_external_data=False)
        return OnnxGraph(proto, open_tensors(proto, path.parent))
    except Exception as error:  # protobuf's errors have no class of their own in every version
        raise ExportError(f"'{path}' is no ONNX model that can be read: {error}") from error


def open_tensors(proto: onnx.ModelProto, folder: Path) -> dict[str, Array]:
    """Takes the initializers out of a model."""
    import onnx

    tensors: dict[str, Array] = {}
    maps: dict[str, Array] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            tensors[tensor.name] = onnx.numpy_helper.to_array(tensor)
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries["location"]
        if location not in maps:
            maps[location] = np.memmap(folder / location, np.uint8, "r")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        begin = int(entries.get("offset", 0))
        size = int(entries["length"]) if "length" in entries else _bytes(tensor, dtype)
        # The mapping goes along with the view, not only the class numpy.memmap.
        raw = np.asarray(maps[location])[begin : begin + size]
        tensors[tensor.name] = raw.view(dtype).reshape(tuple(tensor.dims))
    del proto.graph.initializer[:]
    return tensors


def _bytes(tensor: Any, dtype: Any) -> int:
    return int(np.prod(tuple(tensor.dims), dtype=np.int64)) * int(dtype.itemsize)
