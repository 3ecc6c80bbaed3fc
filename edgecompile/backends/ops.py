"""The operators that graph lowering emits and the native runtime implements.

They live in the ``edgecompile`` torch library. Inductor sees opaque calls with a C shim
(:data:`C_SHIMS`); the CPU implementations here exist so that a lowered graph can be run by torch
and compared with the original before anything is compiled.

Packed weights: a matrix ``W`` of shape ``[N, K]`` is stored as panels of :data:`PANEL` output
columns, ``[ceil(N/32), K, 32]``, zero padded. One layout serves every vector width, so a bundle
stores each weight once for all its variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

PANEL = 32

#: Activation codes of ``ec_linear``; ``ec::Activation`` in the native runtime has the same values.
ACTIVATIONS: Mapping[str, int] = {
    "none": 0,
    "relu": 1,
    "gelu_erf": 2,
    "gelu_tanh": 3,
    "silu": 4,
    "tanh": 5,
    "sigmoid": 6,
}

# torch.library's functions carry no annotations.
_LIBRARY: Any = torch.library.Library("edgecompile", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "ec_linear(Tensor x, Tensor w_packed, Tensor? bias, Tensor? residual, int n, int act) -> Tensor"
)
_LIBRARY.define(
    "ec_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale) -> Tensor"
)


def pack_weight(weight: Tensor) -> Tensor:
    """Packs ``weight`` ``[N, K]`` (any strides) into float32 panels ``[ceil(N/32), K, 32]``."""
    n, k = weight.shape
    panels = -(-n // PANEL)
    padded = torch.zeros(panels * PANEL, k, dtype=torch.float32)
    padded[:n] = weight.detach().to(torch.float32)
    return padded.view(panels, PANEL, k).transpose(1, 2).contiguous()


def unpack_weight(packed: Tensor, n: int) -> Tensor:
    """The inverse of :func:`pack_weight`: ``[n, K]``."""
    panels, k, width = packed.shape
    return packed.transpose(1, 2).reshape(panels * width, k)[:n].contiguous()


def _activate(x: Tensor, act: int) -> Tensor:
    functions: dict[int, Callable[[Tensor], Tensor]] = {
        0: lambda t: t,
        1: torch.relu,
        2: torch.nn.functional.gelu,
        3: lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        4: torch.nn.functional.silu,
        5: torch.tanh,
        6: torch.sigmoid,
    }
    return functions[act](x)


def _linear_cpu(
    x: Tensor, w_packed: Tensor, bias: Tensor | None, residual: Tensor | None, n: int, act: int
) -> Tensor:
    y = _activate(torch.nn.functional.linear(x, unpack_weight(w_packed, n), bias), act)
    return y if residual is None else y + residual


def _linear_fake(
    x: Tensor, w_packed: Tensor, bias: Tensor | None, residual: Tensor | None, n: int, act: int
) -> Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _attention_cpu(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    # The native kernel writes [B, L, H, D]; the strides are part of the operator's contract.
    return y.transpose(1, 2).contiguous().transpose(1, 2)


def _attention_fake(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)


_LIBRARY.impl("ec_linear", _linear_cpu, "CPU")
_LIBRARY.impl("ec_attention", _attention_cpu, "CPU")
torch.library.register_fake("edgecompile::ec_linear", _linear_fake, lib=_LIBRARY)
torch.library.register_fake("edgecompile::ec_attention", _attention_fake, lib=_LIBRARY)

LINEAR = torch.ops.edgecompile.ec_linear.default
ATTENTION = torch.ops.edgecompile.ec_attention.default

#: Declarations that Inductor copies into the generated C++ for direct calls.
C_SHIMS = {
    LINEAR: [
        "AOTITorchError aoti_torch_cpu_ec_linear(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle*, AtenTensorHandle*, int64_t, int64_t, AtenTensorHandle*)"
    ],
    ATTENTION: [
        "AOTITorchError aoti_torch_cpu_ec_attention(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle, AtenTensorHandle*, int32_t, double, AtenTensorHandle*)"
    ],
}


def default_scale(head_dim: int) -> float:
    """The scale that scaled_dot_product_attention uses when none is given: ``1/sqrt(D)``."""
    return 1.0 / math.sqrt(head_dim)
