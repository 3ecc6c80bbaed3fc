"""Packed weights of Hugging Face folders: GPTQ, AWQ, MXFP4, and compressed-tensors' "pack-quantized".

The layouts are those of AutoGPTQ's ``QuantLinear`` (``qlinear_cuda_old.py``; "gptq_v2" of GPTQModel), AutoAWQ's
``WQLinear_GEMM`` (``gemm.py``) and compressed-tensors' ``pack_to_int32`` (``pack_quantized.py``). These store a
whole number, a scale and a zero for each group of inputs: ``scale * (value - zero)``. Blocks of MXFP4 are told in
:mod:`edgecompile.loaders.checkpoints.mxfp4`; gpt-oss stores its experts' in stacks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from edgecompile.errors import ModelError
from edgecompile.loaders.checkpoints.mxfp4 import unpack_mxfp4
from edgecompile.loaders.checkpoints.packing import AWQ, GPTQ, MXFP4, PACKED, Packing
from edgecompile.models.stored import GridValues

#: Parts of a packed weight by method: the one that names it, then the others it has to have, then those it may have.
_PARTS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    GPTQ: ("qweight", ("scales", "qzeros"), ("g_idx",)),
    AWQ: ("qweight", ("scales", "qzeros"), ()),
    PACKED: ("weight_packed", ("weight_scale", "weight_shape"), ("weight_zero_point", "weight_g_idx")),
    MXFP4: ("blocks", ("scales",), ()),
}  # fmt: skip
_PACKED_FLOATS = ("weight_packed", ("weight_scale",), ())
#: The column of each number of an int32 of AWQ.
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def packed_weights(packing: Packing, names: set[str]) -> dict[str, dict[str, str]]:
    """The packed weights among names of tensors: for each the names of its parts.

    Raises:
        ModelError: a part is missing.
    """
    own, of_experts = _PARTS[packing.method], packing.method == MXFP4
    first, needed, optional = _PACKED_FLOATS if packing.floats and not of_experts else own
    found = {}
    for name in sorted(names):
        # gpt-oss stores a stack named a.b as a.b_blocks.
        prefix, mark, part = name.rpartition("_" if of_experts else ".")
        if part != first:
            continue
        lacking = [other for other in needed if f"{prefix}{mark}{other}" not in names]
        if lacking:
            raise ModelError(f"{name}: the weights lack {', '.join(lacking)} beside it")
        parts = (first, *needed, *optional)
        found[prefix if of_experts else f"{prefix}{mark}weight"] = {
            part: full for part in parts if (full := f"{prefix}{mark}{part}") in names
        }
    return found


def unpack(packing: Packing, name: str, parts: Mapping[str, Tensor]) -> GridValues | Tensor:
    """A packed weight on its grid; as float32 numbers where inputs of a group lie apart.

    Matrices ``[N, K]`` of a stack of experts stand below each other.

    Args:
        packing: the folder's.
        name: name of the weight, for errors.
        parts: its tensors, by the ends of their names.

    Raises:
        ModelError: its parts contradict each other, or have values that no weight has.
    """
    if packing.method == MXFP4:
        blocks, scales = parts["blocks"], parts["scales"]
        wide = blocks.dim() == 4 and scales.shape == blocks.shape[:3]
        _require(wide, name, f"it has scales of {list(scales.shape)} for {list(blocks.shape)}")
        return unpack_mxfp4(name, blocks.flatten(2).flatten(0, 1), scales.flatten(0, 1))
    if packing.floats:
        return unpack_mxfp4(name, parts["weight_packed"], parts["weight_scale"])
    if packing.method == PACKED:
        values, scales, zeros = _unpack_compressed(packing, name, parts)
    else:
        values, scales, zeros = _unpack_columns(packing, name, parts)
    n, k = values.shape
    groups = scales.shape[1]
    group = k if packing.group == -1 else packing.group
    _require(k % group == 0, name, f"{k} inputs are no multiple of the group of {group}")
    _require(scales.shape == (n, k // group), name, f"it has {groups} groups for {k} inputs")
    good = scales.isfinite().all() and (scales != 0).all()
    _require(bool(good), name, "a scale is 0 or no finite number")
    middle = 1 << (packing.bits - 1)
    if zeros is not None:
        _require(zeros.shape == scales.shape, name, f"it has zeros of {list(zeros.shape)}")
    order = parts.get("g_idx", parts.get("weight_g_idx"))
    plain = torch.arange(k) // group
    if order is None:
        order = plain
    order = order.to(torch.int64)
    _require(order.shape == (k,), name, f"g_idx has {list(order.shape)} for {k} inputs")
    inside = bool(((order >= 0) & (order < groups)).all())
    _require(inside, name, f"g_idx has a group beyond the {groups} that there are")
    if not torch.equal(order, plain):
        base = torch.full_like(scales, middle) if zeros is None else zeros.to(torch.float32)
        return (values.to(torch.float32) - base[:, order]) * scales[:, order]
    if zeros is not None and bool((zeros == middle).all()):
        zeros = None
    if packing.bits == 4:
        own = None if zeros is None else zeros.to(torch.uint8)
        return GridValues(values.to(torch.uint8), scales, group, own)
    if zeros is not None:
        return (values - zeros.repeat_interleave(group, 1)).to(torch.float32) * (
            scales.repeat_interleave(group, 1)
        )
    return GridValues((values - middle).to(torch.int8), scales, group)


def _unpack_columns(
    packing: Packing, name: str, parts: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Numbers, scales and zeros of GPTQ and AWQ, whose matrices are [K, N]."""
    words, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
    for part, tensor in (("qweight", words), ("qzeros", zeros), ("scales", scales)):
        _require(tensor.dim() == 2, name, f"{part} has the shape {list(tensor.shape)}")
    per, n = 32 // packing.bits, scales.shape[1]
    _require(n % per == 0, name, f"{n} outputs are no multiple of {per}")
    if packing.method == GPTQ:
        values = _numbers(words.t(), packing.bits, name)
    else:
        values = _in_awq_order(_numbers(words, packing.bits, name)).t()
    _require(values.shape[0] == n, name, f"qweight has {values.shape[0]} outputs, scales have {n}")
    whole = _numbers(zeros, packing.bits, name)
    if packing.method == AWQ:
        whole = _in_awq_order(whole)
    return values, scales.t().to(torch.float32), (whole + packing.less_one).t()


def _unpack_compressed(
    packing: Packing, name: str, parts: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same of compressed-tensors, whose matrices are [N, K]."""
    words, scales = parts["weight_packed"], parts["weight_scale"]
    shape = [int(size) for size in parts["weight_shape"].flatten()[:3]]
    _require(words.dim() == 2 and len(shape) == 2, name, f"its shape is {shape}")
    n, k = shape
    values = _numbers(words, packing.bits, name)
    fits = words.shape[0] == n and 0 < k <= values.shape[1] < k + 32 // packing.bits
    _require(fits, name, f"weight_packed has {list(values.shape)} numbers for {shape}")
    _require(scales.dim() == 2, name, f"weight_scale has the shape {list(scales.shape)}")
    zeros = parts.get("weight_zero_point")
    if zeros is not None:
        _require(zeros.dim() == 2, name, f"zeros have the shape {list(zeros.shape)}")
        zeros = _numbers(zeros.t(), packing.bits, name).t()[:n]
    return values[:, :k], scales.to(torch.float32), zeros


def _numbers(words: Tensor, bits: int, name: str) -> Tensor:
    """The whole numbers ``[A, B * 32 / bits]`` in int32 ``[A, B]``, the lowest bits first."""
    _require(words.dtype == torch.int32, name, f"packed numbers are {words.dtype}, not int32")
    data = np.ascontiguousarray(words.numpy()).view(np.uint8)
    if bits == 4:
        data = np.stack([data & 15, data >> 4], -1).reshape(len(data), -1)
    return torch.from_numpy(data.astype(np.int16))


def _in_awq_order(values: Tensor) -> Tensor:
    places = values.view(len(values), -1, len(_AWQ_ORDER))
    ordered = torch.empty_like(places)
    ordered[..., _AWQ_ORDER] = places
    return ordered.view(len(values), -1)


def _require(condition: bool, name: str, problem: str) -> None:
    if not condition:
        raise ModelError(f"{name}: {problem}", hint="fetch or write the weights again")
