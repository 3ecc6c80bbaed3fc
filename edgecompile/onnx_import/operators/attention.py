"""Attention that was put together again, as torch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.onnx_import.graph import Node
from edgecompile.onnx_import.table import OWN, operator


@operator("Attention", domain=OWN)
def attend(
    node: Node,
    q: Tensor,
    turned: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    key: Tensor | None = None,
    flat: Tensor | None = None,
) -> Tensor:
    """``softmax(q @ turned * scale + mask) @ v``.

    Args:
        node: the node. Its ``scale`` is the factor, ``axis`` the softmax's. With ``safe`` a row that is no number
            becomes 0, as torch has it where a mask leaves nothing.
        q: ``[..., L, E]``.
        turned: the transposed key, ``[..., E, S]``.
        v: ``[..., S, F]``.
        mask: numbers to add to ``[..., L, S]``, or whether a place is seen.
        key: perhaps the key of which ``turned`` is the transpose.
        flat: the key with its leading dimensions in one.
    """
    scale = float(node.get("scale"))
    sizes = [list(x.shape[:-2]) for x in (q, turned, v)]
    plain = q.dim() == 4 and sizes[0] == sizes[1] == sizes[2]
    if plain and _fits(mask, [*q.shape[:-1], turned.shape[-1]]):
        if mask is not None and mask.dim() < 2:
            mask = mask.reshape(1, -1)
        if not _is_transpose(turned, key, flat):
            key = turned.transpose(-1, -2)
        return functional.scaled_dot_product_attention(q, key, v, attn_mask=mask, scale=scale)  # type: ignore[arg-type]
    logits = torch.matmul(q, turned) * scale
    if mask is not None and mask.dtype == torch.bool:
        logits = torch.where(mask, logits, -torch.inf)
    elif mask is not None:
        logits = logits + mask
    axis = node.get("axis")
    if node.opset < 13 and axis != -1:  # from the axis on, all is one row
        parts = torch.softmax(logits.flatten(axis), -1).reshape(logits.shape)
    else:
        parts = torch.softmax(logits, axis)
    return torch.matmul(torch.where(parts.isnan(), 0.0, parts) if node.get("safe") else parts, v)


def numbers_for_nan(node: Node) -> bool:
    """Whether the node is attention that gives 0, where its file gives NaN, for rows that a mask hides wholly."""
    own = node.operator == "Attention" and node.domain == OWN
    return own and bool(node.inputs[3]) and not node.get("safe")


def _fits(mask: Tensor | None, logits: list[Any]) -> bool:
    """Whether logits of this shape keep it with the mask added: torch's attention widens none."""
    if mask is None:
        return True
    if mask.dim() > len(logits):
        return False
    last = logits[len(logits) - mask.dim() :]
    # A size that is 1 says nothing of the other, which a trace would else take for no 1.
    return all(
        (isinstance(size, int) and size == 1) or size in (wanted, 1)
        for size, wanted in zip(mask.shape, last, strict=True)
    )


def _is_transpose(turned: Tensor, key: Tensor | None, flat: Tensor | None) -> bool:
    """Whether ``turned`` is ``key`` with its last dimensions exchanged, as their sizes show.

    Between both there are only a view of three dimensions, ``flat``, and its transpose.
    """
    if key is None or flat is None or key.dim() != turned.dim():
        return False
    leading, last = list(key.shape[:-2]), list(key.shape[-2:])
    return list(flat.shape[-2:]) == last and list(turned.shape) == [*leading, *reversed(last)]
