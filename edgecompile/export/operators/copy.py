"""A copy in row-major order, which generated code can't merge with what is computed from it.

Sums along rows take the order in which generated code reads them, and that follows the order in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompile.export.operators.library import define


def copy(x: Tensor) -> Tensor:
    """Computes the operator with torch's own ones; see :data:`COPY`."""
    return x.clone(memory_format=torch.contiguous_format)


#: ``x`` of any shape and strides, contiguous.
COPY = define("ec_copy(Tensor x) -> Tensor", copy, lambda x: x.new_empty(x.shape))
