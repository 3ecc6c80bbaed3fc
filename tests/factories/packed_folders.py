"""Small Llamas whose weights are packed as GPTQ, AWQ and compressed-tensors write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Parts = dict[str, Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def to_words(numbers: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Whole numbers of 4 bits ``[A, B]`` as int32 ``[A, ceil(B / 8)]``, the first of ``order`` in the lowest bits."""
    a, b = numbers.shape
    wide = np.zeros((a, -(-b // 8) * 8), np.uint32)
    wide[:, :b] = numbers.numpy()
    words = np.zeros((a, wide.shape[1] // 8), np.uint32)
    for place, column in enumerate(order):
        words |= wide[:, column::8] << np.uint32(4 * place)
    return torch.from_numpy(words.view(np.int32).copy())


def round_groups(weight: Tensor, group: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers ``[N, K]`` of 0 to 15, half precision scales and zeros ``[N, K / group]``, to the nearest."""
    n, k = weight.shape
    blocks = weight.view(n, k // group, group)
    if symmetric:
        scales, zeros = blocks.abs().amax(2) / 7, torch.full((n, k // group), 8.0)
    else:
        low = blocks.amin(2).clamp(max=0)
        scales = (blocks.amax(2).clamp(min=0) - low) / 15
        zeros = (-low / scales).round()
    scales = scales.half().float()
    values = ((blocks / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
    return values.view(n, k).to(torch.int32), scales, zeros.to(torch.int32)


def pack_gptq(
    weight: Tensor, group: int, *, symmetric: bool = True, order: Tensor | None = None
) -> Parts:
    values, scales, zeros = round_groups(weight, group, symmetric=symmetric)
    k = weight.shape[1]
    return {
        "qweight": to_words(values).t().contiguous(),
        "qzeros": to_words((zeros - 1).t()),
        "scales": scales.t().half().contiguous(),
        "g_idx": (torch.arange(k) // group if order is None else order).to(torch.int32),
    }


def pack_awq(weight: Tensor, group: int) -> Parts:
    values, scales, zeros = round_groups(weight, group, symmetric=False)
    return {
        "qweight": to_words(values.t(), AWQ_ORDER),
        "qzeros": to_words(zeros.t(), AWQ_ORDER),
        "scales": scales.t().half().contiguous(),
    }


def pack_compressed(weight: Tensor, group: int) -> Parts:
    values, scales, _ = round_groups(weight, group, symmetric=True)
    return {
        "weight_packed": to_words(values),
        "weight_scale": scales.half(),
        "weight_shape": torch.tensor(weight.shape),
    }


SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "gptq": lambda group: {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False},
    "awq": lambda group: {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"},
    "compressed-tensors": lambda group: {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"], "input_activations": None, "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group,
            },
        }},
    },
}  # fmt: skip


def pack_folder(
    folder: Path, method: str, pack: Callable[[Tensor], Parts], group: int = 32
) -> dict[str, Tensor]:
    """Packs a folder's linear layers but the head in place.

    Returns:
        The numbers that they stand for, by name.
    """
    tensors, numbers = load_file(folder / "model.safetensors"), {}
    packed: Parts = {}
    for name, weight in tensors.items():
        if "_proj." not in name:
            packed[name] = weight.half() if weight.dim() == 2 else weight
            continue
        parts = pack(weight)
        packed |= {name.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
        values, scales, zeros = round_groups(weight, group, symmetric=method != "awq")
        spread = [part.repeat_interleave(group, 1).double() for part in (scales, zeros)]
        numbers[name] = (spread[0] * (values.double() - spread[1])).float()
    save_file(packed, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = SETTINGS[method](group)
    (folder / "config.json").write_text(json.dumps(config))
    return numbers
