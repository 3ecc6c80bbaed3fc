"""Which layers can be int8, and with which scales: found by running the float32 graph on inputs.

TensorRT multiplies int8 by int8 where both operands come from a DequantizeLinear: activations with
one fixed scale for the whole tensor, weights with one for each output column, zero points zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.onnx_graph import OnnxGraph, attribute
from edgecompile.onnx_runs import Arrays
from edgecompile.onnx_scan import ValueVisitor

__all__ = ["ActivationScale", "Layer", "find_layers", "find_scales", "quantize_weight"]

Floats = npt.NDArray[np.floating[Any]]

_LEVELS = 127
#: Shares of the seen magnitudes that a scale may cover; what lies above is clipped.
_SHARES = (1.0, 0.99999, 0.9999, 0.999)
_ROWS = 256
_VALUES = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A product with a constant matrix.

    Attributes:
        node: its name.
        value: the activation that it takes.
        weight: the matrix.
        axis: the dimension of the matrix that is the output's.
    """

    node: str
    value: str
    weight: str
    axis: int


@dataclass(frozen=True)
class ActivationScale:
    """How an activation is rounded.

    Attributes:
        scale: a value is a whole number from -127 to 127 times this.
        largest: the largest magnitude seen.
        error: of the products of it, root mean square as a share of theirs, for the rows tried.
    """

    scale: float
    largest: float
    error: float


def find_layers(graph: OnnxGraph) -> list[Layer]:
    """Products of an activation and a constant matrix, in the graph's order."""
    layers = []
    for node in graph.nodes:
        if node.op_type not in ("MatMul", "Gemm") or node.input[0] in graph.tensors:
            continue
        weight = graph.tensors.get(node.input[1])
        if (
            weight is None
            or weight.ndim != 2
            or weight.dtype != np.float32
            or min(weight.shape) < 2
        ):
            continue
        if node.op_type == "Gemm" and attribute(node, "transA", 0):
            continue
        turned = node.op_type == "Gemm" and attribute(node, "transB", 0)
        layers.append(Layer(node.name, node.input[0], node.input[1], 0 if turned else 1))
    return layers


def find_scales(
    graph: OnnxGraph, layers: Sequence[Layer], inputs: Sequence[Arrays], scratch: Path
) -> dict[str, ActivationScale]:
    """The scale of every activation that a layer takes, by its name.

    Of several shares of the seen magnitudes that one is taken whose products differ least from
    those of unrounded activations, on up to 256 rows of all inputs: an outlier is clipped where that
    gains more for the others than it costs.

    Args:
        graph: in float32.
        layers: from :func:`find_layers`.
        inputs: to run it on.
        scratch: a folder for files.

    Raises:
        VerificationError: the graph can't be run.
    """
    seen: dict[str, _Seen] = {}
    share = max(1, _ROWS // max(1, len(inputs)))
    values = max(1024, _VALUES // max(1, len(inputs)))

    def look(name: str, array: npt.NDArray[Any]) -> None:
        seen.setdefault(name, _Seen([], [])).add(array, share, values)

    names = list(dict.fromkeys(layer.value for layer in layers))
    given = [name for name in names if name in graph.inputs]
    ValueVisitor(graph, scratch).visit([n for n in names if n not in given], inputs, look)
    for name in given:
        for arrays in inputs:
            look(name, arrays[name])
    weights: dict[str, list[Floats]] = {}
    for layer in layers:
        weight = graph.tensors[layer.weight]
        weights.setdefault(layer.value, []).append(weight if layer.axis == 1 else weight.T)
    return {name: _best_scale(found, weights[name]) for name, found in seen.items()}


def quantize_weight(
    weight: Floats, axis: int, dtype: npt.DTypeLike
) -> tuple[npt.NDArray[np.int8], Floats]:
    """A matrix as whole numbers and a scale for each slice along ``axis``.

    Scales are rounded up to ``dtype`` before they are used, so that nothing is clipped and the
    numbers are what the scales in the file make of them.
    """
    over = tuple(index for index in range(weight.ndim) if index != axis)
    scales = round_up(np.abs(weight).max(axis=over).astype(np.float64) / _LEVELS, dtype)
    shape = [1] * weight.ndim
    shape[axis] = -1
    wide = scales.astype(np.float64).reshape(shape)
    whole = np.clip(np.rint(weight / wide), -_LEVELS, _LEVELS)
    return whole.astype(np.int8), scales


def round_up(scales: npt.NDArray[np.float64], dtype: npt.DTypeLike) -> Floats:
    """Positive scales, none less than asked for; zeros become one."""
    wanted = np.where(scales > 0, scales, 1.0)
    rounded = wanted.astype(dtype)
    short = rounded.astype(np.float64) < wanted
    higher = np.nextafter(rounded, np.array(np.inf, dtype), dtype=dtype)
    return np.asarray(np.where(short, higher, rounded), dtype)


@dataclass
class _Seen:
    """What was seen of an activation: some whole rows, and many single magnitudes."""

    rows: list[Floats]
    values: list[Floats]
    largest: float = 0.0

    def add(self, array: Floats, rows: int, values: int) -> None:
        flat = array.reshape(-1, array.shape[-1])
        if not flat.size:
            return
        self.largest = max(self.largest, float(np.abs(flat).max()))
        chosen = np.unique(np.linspace(0, len(flat) - 1, min(rows, len(flat))).astype(int))
        self.rows.append(flat[chosen].astype(np.float32))
        every = max(1, flat.size // values)
        self.values.append(np.abs(flat.reshape(-1)[::every]).astype(np.float32))


def _best_scale(seen: _Seen, weights: Sequence[Floats]) -> ActivationScale:
    rows = np.concatenate(seen.rows)[: 2 * _ROWS]
    values = np.concatenate(seen.values)
    wanted = [rows @ weight for weight in weights]
    power = sum(float(np.square(w, dtype=np.float64).sum()) for w in wanted) or 1.0
    best: ActivationScale | None = None
    for share in _SHARES:
        clip = seen.largest if share == 1.0 else float(np.quantile(values, share))
        scale = clip / _LEVELS
        if not scale:
            continue
        rounded = np.clip(np.rint(rows / scale), -_LEVELS, _LEVELS) * np.float32(scale)
        wrong = sum(
            float(np.square(rounded @ weight - want, dtype=np.float64).sum())
            for weight, want in zip(weights, wanted, strict=True)
        )
        error = float(np.sqrt(wrong / power))
        if best is None or error < best.error:
            best = ActivationScale(scale, seen.largest, error)
    return best or ActivationScale(1.0, 0.0, 0.0)
