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
* uint8, which is int4: ``[ceil(N/32), ceil(K/64)*1152]``; each panel holds for every :data:`BLOCK` of
  inputs bytes ``[8, 32, 4]``, then float16 scales ``[2, 32]``. The low four bits of a byte are of the first
  32 inputs, the high four of the others: ``W[n, k]`` is about ``scale[k // 32, n]*(q[n, k] - 8)``.

Weights that were rounded elsewhere have further forms, told by their size, whose last block is whole:
int8 with float32 scales ``[2, 32]``; int4 with scales ``[32]`` for 64 inputs; and int4 with an offset behind
the scales and of their shape: zeros in uint8, ``scale*(q - zero)``, or, not with 64 inputs, minimums in
float16, ``scale*q + minimum``.

One layout serves every vector width, so a bundle stores each weight once for all its variants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from edgecompile.export.operators import boxes, library, recurrence
from edgecompile.export.operators.cache_rows import DEQUANTIZE_ROWS, QUANTIZE_ROWS
from edgecompile.export.operators.cached_attention import (
    CACHED_ATTENTION,
    cached_attention,
    per_token,
)
from edgecompile.export.operators.copy import COPY, copy
from edgecompile.export.operators.linear_scan import LINEAR_SCAN, linear_scan
from edgecompile.export.operators.texts_attention import TEXTS_ATTENTION, texts_attention
from edgecompile.export.operators.texts_states import (
    TEXTS_SCAN,
    TEXTS_WINDOW,
    texts_scan,
    texts_window,
)
from edgecompile.models.cache_rows import dequantize_rows, quantize_rows

PANEL = 32

#: Inputs of an int8 product that share a scale; of an int4 product those of activations do.
BLOCK = 64
#: Inputs whose int4 weights share a scale.
HALF_BLOCK = 32
_NIBBLES = BLOCK * PANEL // 2
#: Numbers that are packed at once: a table of tokens can have hundreds of millions.
_AT_ONCE = 1 << 25

#: A block of activations whose largest value is over this many times its row's root mean square is
#: rounded more finely: a few channels of a transformer are that large in every row, and the others'
#: values would be lost in their coarse steps (Dettmers et al., "LLM.int8()", 2022).
OUTLIER = 12.0

#: Values of one column that stand side by side in a panel.
_GROUPS: Mapping[str, int] = {"fp32": 1, "bf16": 2, "int8": 4}

#: Codes of activations; ``ec::Activation`` in the native runtime has the same values.
ACTIVATIONS: Mapping[str, int] = {
    "none": 0,
    "relu": 1,
    "gelu_erf": 2,
    "gelu_tanh": 3,
    "silu": 4,
    "tanh": 5,
    "sigmoid": 6,
    "relu6": 7,
    "hardswish": 8,
    "hardsigmoid": 9,
}
#: Added to the code of an activation that follows the residual's sum; other codes mean: before the sum.
ACT_LAST = 32


def pack_weight(weight: Tensor, precision: str = "fp32") -> Tensor:
    """Packs ``weight`` ``[N, K]`` (any strides) for ``precision``: see the module.

    A block with a NaN or an infinity has no int8 or int4 form that isn't silently wrong: its scale is
    NaN then, and so is every result of its column. The same holds for int4 weights whose scale is beyond
    float16.
    """
    n, k = weight.shape
    rows = max(1, _AT_ONCE // max(k, 1) // PANEL) * PANEL
    if n > rows:  # narrowing takes several copies in float64
        return torch.cat([pack_weight(part, precision) for part in torch.split(weight, rows)])
    if precision == "int4":
        return pack_int4(*_quantise_int4(weight.detach().to(torch.float32)))
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


def _quantise_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values in [-8, 7] of ``[N, K]``, and float16 scales ``[N, ceil(K/32)]``."""
    n, k = weight.shape
    wide = torch.nn.functional.pad(weight, (0, -k % HALF_BLOCK)).to(torch.float64)
    blocks = wide.view(n, -1, HALF_BLOCK) if k else wide.new_zeros(n, 0, HALF_BLOCK)
    scales = torch.maximum(blocks.amax(2) / 7, blocks.amin(2) / -8).to(torch.float16)
    good = scales.isfinite() & (scales > 0)
    steps = torch.where(good, scales, 1).to(torch.float64)
    values = torch.where(good[..., None], (blocks / steps[..., None]).round().clamp(-8, 7), 0)
    return values.view(n, -1)[:, :k].to(torch.int8), torch.where(
        scales.isfinite(), scales, torch.nan
    )


def pack_int4(
    values: Tensor, scales: Tensor, shifts: Tensor | None = None, *, block: int = HALF_BLOCK
) -> Tensor:
    """Packs weights that are rounded already.

    Args:
        values: int8 ``[N, K]`` in [-8, 7].
        scales: float16 ``[N, ceil(K/block)]``, what each block's values are multiples of.
        shifts: numbers of the same shape that values of 0 to 15, 8 more than these, get: zeros in uint8,
            or minimums in float16.
        block: inputs that share a scale, 32 or 64; with minimums 32.
    """
    n, k = values.shape
    panels, blocks = -(-n // PANEL), -(-k // BLOCK)
    padded = torch.nn.functional.pad(values, (0, -k % BLOCK, 0, -n % PANEL)) + 8
    halves = padded.to(torch.uint8).view(panels, PANEL, blocks, 2, HALF_BLOCK // 4, 4)
    bytes_ = (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).permute(0, 2, 3, 1, 4)
    parts = [bytes_.reshape(panels, blocks, _NIBBLES)]
    for numbers in (scales,) if shifts is None else (scales, shifts):
        parts.append(_pack_block_numbers(numbers, blocks, BLOCK // block))
    return torch.cat(parts, 2).flatten(1)


def pack_int8_halves(values: Tensor, scales: Tensor) -> Tensor:
    """Packs int8 ``[N, K]`` with float32 scales ``[N, ceil(K/32)]``."""
    n, k = values.shape
    panels, blocks = -(-n // PANEL), -(-k // BLOCK)
    padded = torch.nn.functional.pad(values, (0, -k % BLOCK, 0, -n % PANEL))
    body = padded.view(panels, PANEL, blocks, BLOCK // 4, 4).permute(0, 2, 3, 1, 4)
    parts = [
        body.reshape(panels, blocks, BLOCK * PANEL).view(torch.uint8),
        _pack_block_numbers(scales, blocks, 2),
    ]
    return torch.cat(parts, 2).flatten(1).view(torch.int8)


def _pack_block_numbers(numbers: Tensor, blocks: int, each: int) -> Tensor:
    """The bytes of ``each`` numbers of every block, ``[panels, blocks, bytes]``; zeros where there is none."""
    n, count = numbers.shape
    panels = -(-n // PANEL)
    wide = torch.nn.functional.pad(numbers, (0, each * blocks - count, 0, -n % PANEL))
    columns = wide.view(panels, PANEL, blocks, each).permute(0, 2, 3, 1).contiguous()
    return columns.view(panels, blocks, each * PANEL).view(torch.uint8)


#: Scales of a column in a block, and the type of what is behind them, by the bytes behind the values.
_INT4_FORMS: Mapping[int, tuple[int, torch.dtype | None]] = {
    4 * PANEL: (2, None),
    2 * PANEL: (1, None),
    6 * PANEL: (2, torch.uint8),
    3 * PANEL: (1, torch.uint8),
    8 * PANEL: (2, torch.float16),
}


def _unpack_int4(packed: Tensor, n: int, k: int) -> Tensor:
    """The float32 values ``[n, k]`` that a packed weight stands for."""
    if k == 0:
        return packed.new_zeros((n, 0), dtype=torch.float32)
    panels, blocks = packed.shape[0], -(-k // BLOCK)
    whole = packed.view(panels, blocks, -1)
    each, shift_type = _INT4_FORMS[whole.shape[2] - _NIBBLES]
    behind = _NIBBLES + 2 * each * PANEL

    def numbers(begin: int, end: int | None, dtype: torch.dtype) -> Tensor:
        found = whole[..., begin:end].contiguous().view(dtype).to(torch.float32)
        return found.view(panels, blocks, each, 1, PANEL, 1)

    bytes_ = whole[..., :_NIBBLES].reshape(panels, blocks, 1, HALF_BLOCK // 4, PANEL, 4)
    values = torch.cat([bytes_ & 15, bytes_ >> 4], 2).to(torch.float32)
    scales = numbers(_NIBBLES, behind, torch.float16)
    if shift_type == torch.float16:
        product = values * scales + numbers(behind, None, torch.float16)
    else:
        product = (
            values - (8 if shift_type is None else numbers(behind, None, shift_type))
        ) * scales
    return product.permute(0, 4, 1, 2, 3, 5).reshape(panels * PANEL, -1)[:n, :k].contiguous()


def _unpack_int8(packed: Tensor, n: int, k: int) -> Tensor:
    """The float32 values ``[n, k]`` that a packed weight stands for."""
    panels, blocks = packed.shape[0], -(-k // BLOCK)
    if k == 0:
        return packed.new_zeros((n, 0), dtype=torch.float32)
    if packed.shape[1] == blocks * PANEL * (BLOCK + 8):
        whole = packed.view(panels, blocks, -1)
        scales = whole[..., BLOCK * PANEL :].contiguous().view(torch.float32)
        values = whole[..., : BLOCK * PANEL].reshape(panels, blocks, 2, HALF_BLOCK // 4, PANEL, 4)
        product = values.to(torch.float32) * scales.view(panels, blocks, 2, 1, PANEL, 1)
        return product.permute(0, 4, 1, 2, 3, 5).reshape(panels * PANEL, -1)[:n, :k].contiguous()
    missing = blocks * 4 * PANEL * (BLOCK // 4 + 1) - packed.shape[1]
    end = packed.shape[1] - 4 * PANEL
    parts = [packed[:, :end], packed.new_zeros(panels, missing), packed[:, end:]]
    whole = torch.cat(parts, 1).view(panels, blocks, -1)
    values = whole[..., : BLOCK * PANEL].reshape(panels, blocks, BLOCK // 4, PANEL, 4)
    scales = whole[..., BLOCK * PANEL :].contiguous().view(torch.float32)
    product = values.to(torch.float32) * scales[:, :, None, :, None]
    return product.permute(0, 3, 1, 2, 4).reshape(panels * PANEL, -1)[:n, :k].contiguous()


def unpack_weight(packed: Tensor, n: int, k: int) -> Tensor:
    """The matrix that :func:`pack_weight` packed, as rounded by the precision: float32 ``[n, k]``."""
    if packed.dtype == torch.int8:
        return _unpack_int8(packed, n, k)
    if packed.dtype == torch.uint8:
        return _unpack_int4(packed, n, k)
    if packed.dtype == torch.bfloat16:
        packed = packed.permute(0, 2, 1, 3).flatten(2).transpose(1, 2).to(torch.float32)
    panels, depth, width = packed.shape
    return packed.transpose(1, 2).reshape(panels * width, depth)[:n, :k].contiguous()


def round_activations(x: Tensor, *, by_sums: bool = False) -> Tensor:
    """Rounds rows of ``x [..., K]`` as int8 and int4 products do, at the coarsest of any variant.

    Each block of :data:`BLOCK` values is rounded to multiples of a 127th of its largest magnitude;
    where that is over :data:`OUTLIER` times the row's root mean square, of a 128th of that. A row
    with an infinity gives NaN, as its other values would be lost.

    Args:
        x: the rows.
        by_sums: whether to round as int8 products in pairs do: to multiples of a 124th of the largest
            sum of magnitudes of one sign among four values, and a 64th of that.

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
    if by_sums:
        # A group of four values and the fourth group behind it: two pairs of each meet in a sum.
        fours = wide.reshape(*wide.shape[:-1], 2, 2, BLOCK // 8, 2)
        sums = [signed.clamp(min=0).sum((-3, -1)).flatten(-2) for signed in (fours, -fours)]
        largest = torch.cat(sums, -1).amax(-1, keepdim=True)
    limit, parts = (124, 64) if by_sums else (127, 128)
    step = torch.where(largest > 0, largest, 1) / torch.where(fine, limit * parts, limit)
    rounded = ((wide / step).round() * step).flatten(-2)[..., :k]
    return torch.where(x.isfinite().all(-1, keepdim=True), rounded, torch.nan)


def _linear_rounded(x: Tensor, packed: Tensor, n: int, pairs: bool) -> Tensor:
    """As the native kernels do it: both factors are rounded, blocks' products add up exactly."""
    weight = unpack_weight(packed, n, x.shape[-1]).to(torch.float64)
    rounded = round_activations(x, by_sums=pairs)
    return torch.nn.functional.linear(rounded, weight).to(torch.float32)


_ACTIVATE: Mapping[int, Callable[[Tensor], Tensor]] = {
    0: lambda t: t,
    1: torch.relu,
    2: torch.nn.functional.gelu,
    3: lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    4: torch.nn.functional.silu,
    5: torch.tanh,
    6: torch.sigmoid,
    7: torch.nn.functional.relu6,
    8: torch.nn.functional.hardswish,
    9: torch.nn.functional.hardsigmoid,
}


def finish(x: Tensor, residual: Tensor | None, act: int) -> Tensor:
    """Adds a residual, if there is one, and applies an activation by its code, in the code's order."""
    if act < ACT_LAST:
        x = _ACTIVATE[act](x)
    if residual is not None:
        x = x + residual
    return _ACTIVATE[act - ACT_LAST](x) if act >= ACT_LAST else x


def _linear_cpu(
    x: Tensor,
    w_packed: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    n: int,
    act: int,
    pairs: bool = False,
) -> Tensor:
    if w_packed.dtype in (torch.int8, torch.uint8):
        y = _linear_rounded(x, w_packed, n, pairs)
        y = y if bias is None else y + bias
    else:
        y = torch.nn.functional.linear(x, unpack_weight(w_packed, n, x.shape[-1]), bias)
    return finish(y, residual, act)


def _packed_rows_cpu(w_packed: Tensor, indices: Tensor, n: int, k: int) -> Tensor:
    return torch.nn.functional.embedding(indices, unpack_weight(w_packed, n, k))


def _attention_cpu(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    mask, causal, scale, _ = rest
    # Operands that may be narrowed are so on few CPUs, and hardly count beside the weights.
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    # The strides of the native kernel's result are part of the operator's contract.
    return per_token(q, v).copy_(y)


def _layer_norm_cpu(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps).contiguous()


def _grouped_cpu(
    x: Tensor, offs: Tensor, weights: Tensor, n: int, multiply: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Rows ``offs[e-1]..offs[e]`` of ``x [S, K]`` times the matrix of ``weights[e]``; then zeros."""
    y, start = x.new_zeros(x.shape[0], n), 0
    for weight, end in zip(weights, offs.tolist(), strict=True):
        y[start:end] = multiply(x[start:end], weight)
        start = end
    return y


def _recurrence_cpu(gates: Tensor, w_packed: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    def project(h: Tensor) -> Tensor:
        return _linear_cpu(h, w_packed, bias, None, gates.shape[2], 0)

    return recurrence.run_steps(gates, project, *rest)


#: Computes each operator with torch's own ones, by its name.
IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}
#: Declarations that Inductor copies into the generated C++ for direct calls.
C_SHIMS: dict[Any, list[str]] = {}

#: Parameters of torch's C interface by the type of the argument.
_C_TYPES = {
    "Tensor": "AtenTensorHandle",
    "Optional[Tensor]": "AtenTensorHandle*",
    "List[int]": "const int64_t*, int64_t",
    "int": "int64_t",
    "bool": "int32_t",
    "float": "double",
}


def _register(operator: Any, cpu: Callable[..., Any]) -> Any:
    schema = operator._schema
    name = schema.name.partition("::")[2]
    parameters = [_C_TYPES[str(argument.type)] for argument in schema.arguments]
    parameters += ["AtenTensorHandle*"] * len(schema.returns)
    C_SHIMS[operator] = [f"AOTITorchError aoti_torch_cpu_{name}({', '.join(parameters)})"]
    IMPLEMENTATIONS[name] = cpu
    return operator


def define(schema: str, cpu: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Adds an operator, as :func:`library.define`, that the native runtime has a C function for."""
    return _register(library.define(schema, cpu, fake), cpu)


#: Operators that the programs of language models alone have.
OF_TEXTS = (CACHED_ATTENTION, LINEAR_SCAN, TEXTS_ATTENTION, TEXTS_SCAN, TEXTS_WINDOW)
_register(CACHED_ATTENTION, cached_attention)
_register(COPY, copy)
_register(DEQUANTIZE_ROWS, dequantize_rows)
_register(LINEAR_SCAN, linear_scan)
_register(QUANTIZE_ROWS, quantize_rows)
_register(TEXTS_ATTENTION, texts_attention)
_register(TEXTS_SCAN, texts_scan)
_register(TEXTS_WINDOW, texts_window)
_register(boxes.SUPPRESS, boxes.suppress)
_register(boxes.ROI_ALIGN, boxes.roi_align)
#: With ``pairs`` int8 products may round activations so that four products add up in 16 bits, where the
#: CPU has no instruction for four pairs of int8.
LINEAR = define(
    "ec_linear(Tensor x, Tensor w_packed, Tensor? bias, Tensor? residual, int n, int act, bool pairs) "
    "-> Tensor",
    _linear_cpu,
    lambda x, w, bias, residual, n, act, pairs: x.new_empty((*x.shape[:-1], n)),
)
#: The same without pairs, of which a run may leave out columns whose values nobody reads: a language model's output head.
HEAD = define(
    "ec_head(Tensor x, Tensor w_packed, Tensor? bias, Tensor? residual, int n, int act) -> Tensor",
    _linear_cpu,
    lambda x, w, bias, residual, n, act: x.new_empty((*x.shape[:-1], n)),
)
#: Rows ``[..., k]`` of a packed weight ``[n, k]`` at indices ``[...]``.
PACKED_ROWS = define(
    "ec_packed_rows(Tensor w_packed, Tensor indices, int n, int k) -> Tensor",
    _packed_rows_cpu,
    lambda w, indices, n, k: w.new_empty((*indices.shape, k), dtype=torch.float32),
)
ATTENTION = define(
    "ec_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, bool narrow) "
    "-> Tensor",
    _attention_cpu,
    lambda q, k, v, *_: per_token(q, v),
)
LAYER_NORM = define(
    "ec_layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    _layer_norm_cpu,
    lambda x, *_: x.new_empty(x.shape),
)
GROUPED_LINEAR = define(
    "ec_grouped_linear(Tensor x, Tensor w_packed, Tensor offs, int n) -> Tensor",
    lambda x, w, offs, n: _grouped_cpu(
        x, offs, w, n, lambda rows, packed: _linear_cpu(rows, packed, None, None, n, 0)
    ),
    lambda x, w, offs, n: x.new_empty((x.shape[0], n)),
)
#: With matrices ``[E, K, N]`` that aren't packed.
GROUPED_MM = define(
    "ec_grouped_mm(Tensor x, Tensor w, Tensor offs) -> Tensor",
    lambda x, w, offs: _grouped_cpu(x, offs, w, w.shape[2], torch.matmul),
    lambda x, w, offs: x.new_empty((x.shape[0], w.shape[2])),
)
RECURRENCE = define(
    "ec_recurrence(Tensor gates, Tensor w_packed, Tensor? bias, Tensor h0, Tensor? c0, int kind, "
    "bool reverse) -> (Tensor, Tensor, Tensor)",
    _recurrence_cpu,
    recurrence.empty_results,
)
