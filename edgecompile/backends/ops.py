"""The operators that graph lowering emits and the native runtime implements.

They live in the ``edgecompile`` torch library. Inductor sees opaque calls with a C shim
(:data:`C_SHIMS`); the CPU implementations here exist so that a lowered graph can be run by torch
and compared with the original before anything is compiled.

Packed weights: a matrix ``W`` of shape ``[N, K]`` is stored as panels of :data:`PANEL` output
columns, zero padded. The packed tensor's dtype says how:

* float32: ``[ceil(N/32), K, 32]``.
* bfloat16: ``[ceil(N/32), ceil(K/2), 32, 2]``; element ``(p, j, c, i)`` is ``W[32p+c, 2j+i]``,
  rounded to nearest, ties to even.
* int8: ``[ceil(N/32), ceil(K/4)*128 + ceil(K/64)*128]``; each panel holds for every
  :data:`BLOCK` of inputs ``q [16, 32, 4]`` in [-127, 127] (the last block ``[ceil(K%64/4), 32, 4]``),
  then 32 float32 scales: ``W[n, k]`` is about ``scale[k // 64, n]*q[n, k]``; little endian.

One layout serves every vector width, so a bundle stores each weight once for all its variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from edgecompile.export.operators import recurrence
from edgecompile.export.operators.cached_attention import CACHED_ATTENTION, cached_attention

PANEL = 32

#: Inputs of an int8 product that share a scale.
BLOCK = 64

#: A block of activations whose largest value is over so many times its row's root mean square is
#: rounded more finely: a few channels of a transformer are that large in every row, and the others'
#: values would drown in a step of theirs (Dettmers et al., "LLM.int8()", 2022).
OUTLIER = 12.0

#: Values of one column that stand side by side in a panel.
_GROUPS: Mapping[str, int] = {"fp32": 1, "bf16": 2, "int8": 4}

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
    "ec_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, bool narrow) "
    "-> Tensor"
)
_LIBRARY.define("ec_layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor")
_LIBRARY.define("ec_copy(Tensor x) -> Tensor")
_LIBRARY.define("ec_grouped_linear(Tensor x, Tensor w_packed, Tensor offs, int n) -> Tensor")
_LIBRARY.define("ec_grouped_mm(Tensor x, Tensor w, Tensor offs) -> Tensor")
_LIBRARY.define(
    "ec_recurrence(Tensor gates, Tensor w_packed, Tensor? bias, Tensor h0, Tensor? c0, int kind, "
    "bool reverse) -> (Tensor, Tensor, Tensor)"
)


def pack_weight(weight: Tensor, precision: str = "fp32") -> Tensor:
    """Packs ``weight`` ``[N, K]`` (any strides) for ``precision``: see the module.

    A block with a NaN or an infinity has no int8 form that isn't silently wrong: its scale is NaN
    then, and so is every result of its column.
    """
    n, k = weight.shape
    panels = -(-n // PANEL)
    group = _GROUPS[precision]
    groups = -(-k // group)
    padded = torch.zeros(panels * PANEL, groups * group, dtype=torch.float32)
    padded[:n, :k] = weight.detach().to(torch.float32)
    if precision == "fp32":
        return padded.view(panels, PANEL, k).transpose(1, 2).contiguous()
    if precision == "bf16":
        pairs = padded.to(torch.bfloat16).view(panels, PANEL, groups, group)
        return pairs.permute(0, 2, 1, 3).contiguous()
    return _pack_int8(*_quantise(_in_blocks(padded, -(-k // BLOCK))), k)


def pack_int8(values: Tensor, scales: Tensor) -> Tensor:
    """Packs weights that are rounded already.

    Args:
        values: int8 ``[N, K]`` in [-127, 127].
        scales: float32 ``[N, ceil(K/64)]``, what each block's values are multiples of.
    """
    n, k = values.shape
    more = (0, 0, 0, -n % PANEL)
    padded = torch.nn.functional.pad(values, more)
    return _pack_int8(_in_blocks(padded, -(-k // BLOCK)), torch.nn.functional.pad(scales, more), k)


def _pack_int8(values: Tensor, scales: Tensor, k: int) -> Tensor:
    """Panels of ``[N, blocks, BLOCK]`` and ``[N, blocks]``; N is a multiple of :data:`PANEL`."""
    rows, blocks = scales.shape
    panels, groups = rows // PANEL, -(-k // 4)
    body = values.view(panels, PANEL, blocks, BLOCK // 4, 4).permute(0, 2, 3, 1, 4)
    tail = scales.view(panels, PANEL, blocks).transpose(1, 2).contiguous().view(torch.int8)
    whole = torch.cat([body.reshape(panels, blocks, BLOCK * PANEL), tail], 2).flatten(1)
    # What the last block's groups beyond K would take is left out.
    left_out = (blocks * BLOCK // 4 - groups) * 4 * PANEL
    end = whole.shape[1] - 4 * PANEL
    return torch.cat([whole[:, : end - left_out], whole[:, end:]], 1) if left_out else whole


def _in_blocks(rows: Tensor, blocks: int) -> Tensor:
    """``[..., K]`` as ``[..., blocks, BLOCK]``, zeros beyond K."""
    padded = torch.nn.functional.pad(rows, (0, blocks * BLOCK - rows.shape[-1]))
    return padded.reshape(*rows.shape[:-1], blocks, BLOCK) if blocks else padded.unsqueeze(-1)


def _quantise(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values in [-127, 127] of ``[N, blocks, BLOCK]``, and float32 scales ``[N, blocks]``."""
    if blocks.numel() == 0:
        return blocks.to(torch.int8), blocks.new_zeros(blocks.shape[0], 0)
    scales = (blocks.abs().amax(2).to(torch.float64) / 127).to(torch.float32)
    good = scales.isfinite() & (scales > 0)
    ratio = blocks.to(torch.float64) / torch.where(good, scales, 1)[..., None]
    values = torch.where(good[..., None], ratio.round().clamp(-127, 127), 0).to(torch.int8)
    return values, torch.where(scales.isfinite(), scales, torch.nan)


def _unpack_int8(packed: Tensor, n: int, k: int) -> Tensor:
    """The float32 values ``[n, k]`` that a packed weight stands for."""
    panels, blocks = packed.shape[0], -(-k // BLOCK)
    if k == 0:
        return packed.new_zeros((n, 0), dtype=torch.float32)
    missing = blocks * 4 * PANEL * (BLOCK // 4 + 1) - packed.shape[1]
    end = packed.shape[1] - 4 * PANEL
    parts = [packed[:, :end], packed.new_zeros(panels, missing), packed[:, end:]]
    whole = torch.cat(parts, 1).view(panels, blocks, -1)
    values = whole[..., : BLOCK * PANEL].reshape(panels, blocks, BLOCK // 4, PANEL, 4)
    scales = whole[..., BLOCK * PANEL :].contiguous().view(torch.float32)
    product = values.to(torch.float32) * scales[:, :, None, :, None]
    return product.permute(0, 3, 1, 2, 4).reshape(panels * PANEL, -1)[:n, :k].contiguous()


def unpack_weight(packed: Tensor, n: int, k: int) -> Tensor:
    """What :func:`pack_weight` packed, as far as the precision kept it: float32 ``[n, k]``."""
    if packed.dtype == torch.int8:
        return _unpack_int8(packed, n, k)
    if packed.dtype == torch.bfloat16:
        packed = packed.permute(0, 2, 1, 3).flatten(2).transpose(1, 2).to(torch.float32)
    panels, depth, width = packed.shape
    return packed.transpose(1, 2).reshape(panels * width, depth)[:n, :k].contiguous()


def round_activations(x: Tensor) -> Tensor:
    """What int8 products take rows of ``x [..., K]`` for, at the coarsest of any variant.

    Each block of :data:`BLOCK` values is rounded to multiples of a 127th of its largest magnitude;
    where that is over :data:`OUTLIER` times the row's root mean square, of a 128th of that. A row
    with an infinity gives NaN, as its other values would be lost.

    Returns:
        float64, of the same shape.
    """
    k = x.shape[-1]
    if x.numel() == 0:
        return x.to(torch.float64)
    wide = _in_blocks(x.to(torch.float64), -(-k // BLOCK))
    largest = wide.abs().amax(-1, keepdim=True)
    mean_square = (wide.square().sum((-2, -1), keepdim=True) / k).expand_as(largest)
    fine = largest.square() > OUTLIER**2 * mean_square
    step = torch.where(largest > 0, largest, 1) / torch.where(fine, 127 * 128, 127)
    rounded = ((wide / step).round() * step).flatten(-2)[..., :k]
    return torch.where(x.isfinite().all(-1, keepdim=True), rounded, torch.nan)


def _linear_int8(x: Tensor, packed: Tensor, n: int) -> Tensor:
    """As the native kernels do it: both factors are rounded, blocks' products add up exactly."""
    weight = _unpack_int8(packed, n, x.shape[-1]).to(torch.float64)
    return torch.nn.functional.linear(round_activations(x), weight).to(torch.float32)


def activate(x: Tensor, act: int) -> Tensor:
    """Applies an activation by its code."""
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
    if w_packed.dtype == torch.int8:
        y = _linear_int8(x, w_packed, n)
        y = activate(y if bias is None else y + bias, act)
    else:
        weight = unpack_weight(w_packed, n, x.shape[-1])
        y = activate(torch.nn.functional.linear(x, weight, bias), act)
    return y if residual is None else y + residual


def _linear_fake(
    x: Tensor, w_packed: Tensor, bias: Tensor | None, residual: Tensor | None, n: int, act: int
) -> Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _attention_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    narrow: bool,
) -> Tensor:
    # Operands that may be narrowed are so on few CPUs, and hardly count beside the weights.
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    # The native kernel writes [B, L, H, D]; the strides are part of the operator's contract.
    return y.transpose(1, 2).contiguous().transpose(1, 2)


def _attention_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    narrow: bool,
) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)


def _layer_norm_cpu(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps).contiguous()


def _layer_norm_fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape)


def _copy_cpu(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _copy_fake(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _grouped_mm_cpu(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    """Rows ``offs[e-1]..offs[e]`` of ``x [S, K]`` times ``w[e]`` of ``[E, K, N]``; then zeros."""
    y, start = x.new_zeros(x.shape[0], w.shape[2]), 0
    for matrix, end in zip(w, offs.tolist(), strict=True):
        y[start:end] = x[start:end] @ matrix
        start = end
    return y


def _grouped_mm_fake(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[2]))


def _grouped_linear_cpu(x: Tensor, w_packed: Tensor, offs: Tensor, n: int) -> Tensor:
    y, start = x.new_zeros(x.shape[0], n), 0
    for packed, end in zip(w_packed, offs.tolist(), strict=True):
        y[start:end] = _linear_cpu(x[start:end], packed, None, None, n, 0)
        start = end
    return y


def _grouped_linear_fake(x: Tensor, w_packed: Tensor, offs: Tensor, n: int) -> Tensor:
    return x.new_empty((x.shape[0], n))


def _recurrence_cpu(
    gates: Tensor,
    w_packed: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    n = gates.shape[2]
    return recurrence.run_steps(
        gates, lambda h: _linear_cpu(h, w_packed, bias, None, n, 0), h0, c0, kind, reverse
    )


def _recurrence_fake(
    gates: Tensor,
    w_packed: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return recurrence.empty_results(gates, h0, kind)


#: What each operator computes, as a function of torch's own operators, by its name.
IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {"ec_cached_attention": cached_attention}

for _name, _cpu, _fake in (
    ("ec_linear", _linear_cpu, _linear_fake),
    ("ec_attention", _attention_cpu, _attention_fake),
    ("ec_layer_norm", _layer_norm_cpu, _layer_norm_fake),
    ("ec_copy", _copy_cpu, _copy_fake),
    ("ec_grouped_linear", _grouped_linear_cpu, _grouped_linear_fake),
    ("ec_grouped_mm", _grouped_mm_cpu, _grouped_mm_fake),
    ("ec_recurrence", _recurrence_cpu, _recurrence_fake),
):
    _LIBRARY.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"edgecompile::{_name}", _fake, lib=_LIBRARY)
    IMPLEMENTATIONS[_name] = _cpu

LINEAR = torch.ops.edgecompile.ec_linear.default
ATTENTION = torch.ops.edgecompile.ec_attention.default
COPY = torch.ops.edgecompile.ec_copy.default
LAYER_NORM = torch.ops.edgecompile.ec_layer_norm.default
GROUPED_LINEAR = torch.ops.edgecompile.ec_grouped_linear.default
GROUPED_MM = torch.ops.edgecompile.ec_grouped_mm.default
RECURRENCE = torch.ops.edgecompile.ec_recurrence.default

#: Declarations that Inductor copies into the generated C++ for direct calls.
C_SHIMS = {
    LINEAR: [
        "AOTITorchError aoti_torch_cpu_ec_linear(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle*, AtenTensorHandle*, int64_t, int64_t, AtenTensorHandle*)"
    ],
    ATTENTION: [
        "AOTITorchError aoti_torch_cpu_ec_attention(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle, AtenTensorHandle*, int32_t, double, int32_t, AtenTensorHandle*)"
    ],
    CACHED_ATTENTION: [
        "AOTITorchError aoti_torch_cpu_ec_cached_attention(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle, AtenTensorHandle, int64_t, double, double, AtenTensorHandle*)"
    ],
    COPY: ["AOTITorchError aoti_torch_cpu_ec_copy(AtenTensorHandle, AtenTensorHandle*)"],
    LAYER_NORM: [
        "AOTITorchError aoti_torch_cpu_ec_layer_norm(AtenTensorHandle, AtenTensorHandle*, "
        "AtenTensorHandle*, double, AtenTensorHandle*)"
    ],
    GROUPED_LINEAR: [
        "AOTITorchError aoti_torch_cpu_ec_grouped_linear(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle, int64_t, AtenTensorHandle*)"
    ],
    GROUPED_MM: [
        "AOTITorchError aoti_torch_cpu_ec_grouped_mm(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle, AtenTensorHandle*)"
    ],
    RECURRENCE: [
        "AOTITorchError aoti_torch_cpu_ec_recurrence(AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle*, AtenTensorHandle, AtenTensorHandle*, int64_t, int32_t, "
        "AtenTensorHandle*, AtenTensorHandle*, AtenTensorHandle*)"
    ],
}


def define(schema: str, cpu: Any, fake: Any, shim: str) -> Any:
    """Adds an operator with its CPU and fake implementations and the C shim behind it."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, cpu, "CPU")
    torch.library.register_fake(f"edgecompile::{name}", fake, lib=_LIBRARY)
    operator = getattr(torch.ops.edgecompile, name).default
    C_SHIMS[operator] = [shim]
    IMPLEMENTATIONS[name] = cpu
    return operator


def default_scale(head_dim: int) -> float:
    """The scale that scaled_dot_product_attention uses when none is given: ``1/sqrt(D)``."""
    return 1.0 / math.sqrt(head_dim)
