"""The matrices of a GGUF file, those of Q4_0, Q4_1, Q8_0 and MXFP4 on their grids.

The layouts are those of ``block_q4_0``, ``block_q4_1``, ``block_q8_0`` and ``block_mxfp4`` in ggml's ``ggml-common.h``:
blocks of 32 numbers, each with a scale before its values, and in Q4_1 the block's least value between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgecompile.loaders.checkpoints.gguf_header import GgufHeader, StoredTensor
from edgecompile.loaders.checkpoints.mxfp4 import MXFP4_FORM, grid_of_codes
from edgecompile.models.stored import GridValues, StoredMatrix, StoredWeights

#: Half precision numbers at the beginning of a block, by the form's name.
_ON_GRIDS: Mapping[str, int] = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}
_FLOATS: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def stored_weights(header: GgufHeader) -> StoredWeights:
    """The matrices of a file, which are read when they are asked for."""
    return StoredWeights(
        "GGUF",
        [
            StoredMatrix(name, _said(tensor.form.name), partial(_read, header.path, tensor))
            for name, tensor in header.tensors.items()
            if len(tensor.shape) > 1
        ],
    )


def _said(form: str) -> str:
    return MXFP4_FORM if form == "MXFP4" else form


def _read(path: Path, tensor: StoredTensor) -> GridValues | Tensor:
    """The rows of a matrix, or of a stack's matrices one after another."""
    form, k = tensor.form, tensor.shape[-1]
    data = np.memmap(path, np.uint8, "r", tensor.begin, (tensor.size // form.size, form.size))
    if form.name in _FLOATS:
        bits = torch.from_numpy(np.array(data)).view(_FLOATS[form.name])
        return bits.view(-1, k).to(torch.float32)
    if form.name == "MXFP4":
        blocks = np.array(data[:, 1:])
        codes = torch.from_numpy(np.concatenate([blocks & 15, blocks >> 4], 1).reshape(-1, k))
        powers = torch.from_numpy(np.array(data[:, 0])).view(len(codes), -1)
        return grid_of_codes(tensor.name, codes, powers)
    if form.name not in _ON_GRIDS:
        from gguf import GGMLQuantizationType, quants

        rows = np.array(data).reshape(-1, k // form.block * form.size)
        return torch.from_numpy(quants.dequantize(rows, GGMLQuantizationType[form.name]))
    heads = 2 * _ON_GRIDS[form.name]
    halves = np.ascontiguousarray(data[:, :heads]).view(np.float16).astype(np.float32)
    body = np.array(data[:, heads:])
    whole = form.name == "Q8_0"
    body = body.view(np.int8) if whole else np.concatenate([body & 15, body >> 4], 1)
    values = torch.from_numpy(body.reshape(-1, k))
    parts = torch.from_numpy(halves).view(len(values), -1, heads // 2)
    least = parts[..., 1].contiguous() if form.name == "Q4_1" else None
    return GridValues(values, parts[..., 0].contiguous(), form.block, minimums=least)
