"""A mistake of Inductor's code for Triton that is mended while it generates code for a GPU.

What stands outside a tensor is read as a load with a mask, such as a pool's zeros around an image. Where the
tensor was made by the same kernel, Inductor takes the value at hand and forgets the mask; in an image of one
pixel all nine places of a window then count as that pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._inductor.codegen.triton import TritonKernelOverrides
from torch._inductor.virtualized import V
from torch._inductor.virtualized import _ops as ops

_masked: Callable[..., Any] = TritonKernelOverrides.masked


def _keep_mask(mask: Any, body: Any, other: Any) -> Any:
    result = _masked(mask, body, other)
    at_hand = V.kernel.cse.store_cache
    outputs = [arg for node in body.graph.find_nodes(op="output") for arg in node.args]
    if not any(arg.target == "load" and arg.args[1] in at_hand for arg in outputs):
        return result
    return ops.where(mask, result, ops.constant(other, result.dtype))


#: What to put in the place of which attribute.
MENDED = ((TritonKernelOverrides, "masked", staticmethod(_keep_mask)),)
