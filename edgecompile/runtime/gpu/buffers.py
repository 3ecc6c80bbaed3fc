"""The fixed memory of one bucket on a GPU: where each input and output lies, on both sides.

Everything that a bucket needs is in one block, inputs first. On a GPU with memory of its own there
is a block here and one there, laid out alike, and copies go between them; where both share their
memory (a Jetson), there is one block with two addresses and nothing is copied.
"""

import ctypes
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from ..base.errors import GpuError
from .cuda import Cuda
from .engines import Sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT = 256
#: Copying so many unused bytes between two tensors is cheaper than a second copy.
_GAP = 32768

Span = Tuple[int, int]


class Buffers:
    """Inputs and outputs of one bucket, by name.

    Attributes:
        addresses: the GPU's address of each of them; they never change.
        nbytes: the size of the block in bytes.
    """

    def __init__(
        self,
        cuda: Cuda,
        inputs: Mapping[str, Tuple["np.dtype[Any]", Sizes]],
        outputs: Mapping[str, Tuple["np.dtype[Any]", Sizes]],
        zero_copy: bool,
    ) -> None:
        """Allocates for shapes that are the largest of each.

        Raises:
            GpuError: there isn't enough memory; all of it was given back.
        """
        self._cuda = cuda
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._zero_copy = zero_copy
        self._dtypes: Dict[str, np.dtype[Any]] = {}
        self._offsets: Dict[str, int] = {}
        self._room: Dict[str, int] = {}
        end = 0
        for name, (dtype, shape) in [*inputs.items(), *outputs.items()]:
            self._dtypes[name] = dtype
            self._offsets[name] = end
            self._room[name] = _count(shape) * dtype.itemsize
            end += -(-max(self._room[name], 1) // ALIGNMENT) * ALIGNMENT
        self.nbytes = end
        self._host = cuda.host_alloc(end)
        self._device = 0
        try:
            if zero_copy:
                base = cuda.device_pointer(self._host)
            else:
                base = self._device = cuda.malloc(end)
        except BaseException:
            cuda.host_free(self._host)
            raise
        self._base = base
        self.addresses = {name: base + offset for name, offset in self._offsets.items()}
        memory = (ctypes.c_uint8 * end).from_address(self._host)
        self._bytes: NDArray[Any] = np.ctypeslib.as_array(memory)

    def view(self, name: str, shape: Sizes) -> "NDArray[Any]":
        """A tensor of this shape in the memory of the CPU: what is copied there, or came from there.

        Raises:
            GpuError: it has no room.
        """
        dtype = self._dtypes[name]
        nbytes = _count(shape) * dtype.itemsize
        if nbytes > self._room[name]:
            text = "{} of shape {} has {} bytes, more than the {} of its bucket's largest shape"
            raise GpuError(text.format(name, list(shape), nbytes, self._room[name]))
        start = self._offsets[name]
        return self._bytes[start : start + nbytes].view(dtype).reshape(shape)

    def spans(self, shapes: Mapping[str, Sizes]) -> Tuple[List[Span], List[Span]]:
        """(offset, bytes) of the copies that inputs and outputs of these shapes take."""
        if self._zero_copy:
            return [], []
        return self._merge(self._inputs, shapes), self._merge(self._outputs, shapes)

    def _merge(self, names: Sequence[str], shapes: Mapping[str, Sizes]) -> List[Span]:
        result: List[Span] = []
        for name in names:
            start = self._offsets[name]
            size = _count(shapes[name]) * self._dtypes[name].itemsize
            if size == 0:
                continue
            if result and start - sum(result[-1]) <= _GAP:
                first = result.pop()[0]
                result.append((first, start + size - first))
            else:
                result.append((start, size))
        return result

    def send(self, spans: Sequence[Span], stream: int) -> None:
        """Queues copies to the GPU."""
        for start, size in spans:
            self._cuda.copy_to_device(self._device + start, self._host + start, size, stream)

    def fetch(self, spans: Sequence[Span], stream: int) -> None:
        """Queues copies from the GPU."""
        for start, size in spans:
            self._cuda.copy_to_host(self._host + start, self._device + start, size, stream)

    def close(self) -> None:
        """Gives the memory back; no view of it may be used any more."""
        host, self._host = self._host, 0
        device, self._device = self._device, 0
        try:
            if device:
                self._cuda.free(device)
        finally:
            if host:
                self._cuda.host_free(host)


def copy_leading(label: str, source: "NDArray[Any]", target: "NDArray[Any]") -> None:
    """Copies the leading part of an output that fits into ``target``.

    Raises:
        GpuError: ``target`` is larger, where values decide about the output's shape.
    """
    part = source[tuple([slice(n) for n in target.shape])]
    if part.shape != target.shape:
        text = "{}: an output has shape {}, memory for {} was given"
        raise GpuError(text.format(label, list(source.shape), list(target.shape)))
    target[...] = part


def _count(shape: Sizes) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
