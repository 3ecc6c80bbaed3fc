"""The generated code of one program: host code and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Kernel:
    """A kernel of a program.

    Attributes:
        name: the name by which the wrapper loads it; the code stands behind ``__<name>_start``.
        entry: the function in the code.
        ptx: the code.
        num_warps: warps of a block.
        shared_memory: bytes of a block.
        source: Triton's.
    """

    name: str
    entry: str
    ptx: str
    num_warps: int
    shared_memory: int
    source: str


@dataclass(frozen=True)
class RawSource:
    """The output of Inductor for one program.

    Attributes:
        wrapper: C++ of the model class.
        constants: tensors that the program reads, real ones, by the name in the wrapper.
        kernels: the kernels in the order of their first use.
        products: the number of matmuls that cuBLASLt may compute.
    """

    wrapper: str
    constants: Mapping[str, Tensor]
    kernels: tuple[Kernel, ...]
    products: int
