"""Tensors as numpy's arrays, and back. bfloat16 is uint16 there, as the runtime has it: no input is of that type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_numpy(tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[np.generic]]:
    """Tensors as arrays."""
    return {name: _array(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    """Arrays as tensors over the same memory."""
    return {name: _tensor(torch.from_numpy(array)) for name, array in arrays.items()}


def _array(tensor: Tensor) -> npt.NDArray[np.generic]:
    array: npt.NDArray[np.generic]
    array = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _tensor(tensor: Tensor) -> Tensor:
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
