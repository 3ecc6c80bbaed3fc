"""The weights of a folder that packs them: floats for transformers, and their own numbers for the bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgecompile.errors import ModelError
from edgecompile.loaders.checkpoints.mxfp4 import MXFP4_FORM
from edgecompile.loaders.checkpoints.packed import packed_weights, unpack
from edgecompile.loaders.checkpoints.packing import MXFP4, Packing, read_packing
from edgecompile.loaders.folders.files import find_weights
from edgecompile.models.mapped import is_large, to_file
from edgecompile.models.stored import GridValues, StoredMatrix, StoredWeights


@dataclass(frozen=True)
class PackedFolder:
    """A folder whose weights are packed.

    Attributes:
        packing: form in which they are packed.
        places: file of each tensor.
        weights: names of the parts of each packed weight.
    """

    packing: Packing
    places: Mapping[str, Path]
    weights: Mapping[str, Mapping[str, str]]

    def state(self) -> dict[str, Tensor]:
        """All tensors in float32 by the names that the plain folder would have; many are held in files.

        Raises:
            ModelError: a packed weight is damaged.
        """
        parts = {name for names in self.weights.values() for name in names.values()}
        state = {name: _read(self.places[name], name) for name in self.places if name not in parts}
        state = {name: t.float() if t.is_floating_point() else t for name, t in state.items()}
        count = sum(tensor.numel() for tensor in state.values())
        for name in self.weights:
            rows = self._rows(name)
            numbers = self._in_shape(name, rows if isinstance(rows, Tensor) else rows.numbers())
            count += numbers.numel()
            state[name] = to_file(numbers) if is_large(count) else numbers
        return state

    def _in_shape(self, name: str, rows: Tensor) -> Tensor:
        """Rows as the model holds them: a stack of experts is ``[E, K, N]`` there."""
        if self.packing.method != MXFP4:
            return rows
        full = self.weights[name]["blocks"]
        count = _read(self.places[full], full).shape[0]
        return rows.view(count, -1, rows.shape[1]).transpose(1, 2).contiguous()

    def stored(self) -> StoredWeights:
        """The packed weights, which are read when they are asked for, and the others by their type."""
        matrices = []
        for name in self.weights:
            form = f"{self.packing.bits} bits"
            if self.packing.floats:
                of_experts = self.packing.method == MXFP4
                form = "MXFP4 of experts (held as float32)" if of_experts else MXFP4_FORM
            if isinstance(self._rows(name), Tensor):
                form += " without a grid of its own"
            matrices.append(StoredMatrix(name, form, partial(self._rows, name)))
        packed = {part for names in self.weights.values() for part in names.values()}
        for name, file in self.places.items():
            if name not in packed:
                tensor = _read(file, name)
                form = _FLOATS.get(tensor.dtype, "")
                if tensor.dim() == 2 and form:
                    matrices.append(StoredMatrix(name, form, partial(_read_floats, file, name)))
        return StoredWeights(self.packing.name, matrices)

    def _rows(self, name: str) -> GridValues | Tensor:
        parts = {part: _read(self.places[full], full) for part, full in self.weights[name].items()}
        return unpack(self.packing, name, parts)


_FLOATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def find_packed(folder: Path, config: Mapping[str, Any]) -> PackedFolder | None:
    """The packed weights of a folder; None: they are floats.

    Args:
        folder: holds config.json and the weights.
        config: the parsed config.json.

    Raises:
        ModelError: they are packed in another way, or parts are missing.
    """
    packing = read_packing(folder, config)
    if packing is None:
        return None
    places = _find_places(find_weights(folder))
    weights = packed_weights(packing, set(places))
    if not weights:
        raise ModelError(
            f"'{folder}': config.json says that weights are quantized by {packing.method}, but none is",
            hint="remove quantization_config from config.json if they are plain floats",
        )
    return PackedFolder(packing, places, weights)


def _find_places(files: Iterable[Path]) -> dict[str, Path]:
    from safetensors import safe_open

    places = {}
    for file in files:
        with safe_open(file, framework="pt") as weights:
            places.update(dict.fromkeys(weights.keys(), file))
    return places


def _read(file: Path, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as weights:
        tensor: Tensor = weights.get_tensor(name)
    return tensor


def _read_floats(file: Path, name: str) -> Tensor:
    return _read(file, name).float()
