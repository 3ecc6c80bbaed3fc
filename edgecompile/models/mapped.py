"""Weights in files that memory maps: of a large model no more has to be in memory than a step reads.

The system may write such pages out and read them again, where those of other tensors have to stay.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

#: Weights of fewer bytes in float32 stay in memory, all together and each.
_LEAST, _LEAST_OF_ONE = 1 << 30, 1 << 20
#: A folder on a disk by convention, where the one for temporary files may be memory itself.
_ON_DISK = Path("/var/tmp")


def is_large(numbers: int) -> bool:
    """Whether so many weights are held in files rather than in memory."""
    return 4 * numbers >= _LEAST


def mapped_folder() -> Path:
    """The folder of such files: ``TMPDIR``, or one that is on a disk by convention."""
    if "TMPDIR" not in os.environ and os.access(_ON_DISK, os.W_OK):
        return _ON_DISK
    return Path(tempfile.gettempdir())


def to_file(tensor: Tensor) -> Tensor:
    """The tensor in float32 and row-major order, in a file without a name that goes with it.

    It stays in memory where it is small, or the disk has no room.
    """
    size = 4 * tensor.numel()
    if size >= _LEAST_OF_ONE:
        try:
            return _mapped(tensor.numel(), size).view(tensor.shape).copy_(tensor.detach())
        except OSError:
            pass
    return tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _mapped(numbers: int, size: int) -> Tensor:
    """Numbers in a file; raises OSError where it can't be made that large."""
    handle, path = tempfile.mkstemp(prefix="edgecompile-weights-", dir=mapped_folder())
    try:
        os.posix_fallocate(handle, 0, size)  # a disk that is full later would end the process
        return torch.from_file(path, shared=True, size=numbers, dtype=torch.float32)
    finally:
        os.close(handle)
        os.unlink(path)


def widen(module: nn.Module) -> None:
    """Makes a module's floats float32, one tensor after another; those of a large one are held in files."""
    weights = list(module.parameters())
    if is_large(sum(weight.numel() for weight in weights)):
        for weight in weights:
            if weight.is_floating_point():
                weight.data = to_file(weight)
    module.float()
