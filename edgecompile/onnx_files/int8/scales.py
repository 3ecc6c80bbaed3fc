"""Finds the layers that can be int8, and their scales, by running the float32 graph on inputs.

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

from edgecompile.onnx_files.graph import OnnxGraph, attribute
from edgecompile.onnx_files.scan import Arrays, ValueVisitor

Floats = npt.NDArray[np.floating[Any]]

_LEVELS = 127
#: Shares of the seen magnitudes that a scale may cover; what lies above is clipped.
_SHARES = (1.0, 0.99999, 0.9999, 0.999)
#: How far a channel's outliers move from the activation into the matrix: 0 not at all, 1 altogether.
_STRENGTHS = (0.0, 0.35, 0.5, 0.65, 0.8)
_ROWS = 256


@dataclass(frozen=True)
class Layer:
    """A product with a constant matrix.

    Attributes:
        node: its name.
        value: the activation that it takes.
        weight: the matrix.
        axis: the dimension of the matrix that is the output's.
        size: entries of the matrix, which the time that int8 saves goes with.
    """

    node: str
    value: str
    weight: str
    axis: int
    size: int


@dataclass(frozen=True)
class ActivationScale:
    """The scale with which an activation is rounded.

    Attributes:
        scale: a value is a whole number from -127 to 127 times this.
        largest: the largest magnitude seen, behind the factors.
        error: the root mean square error of its products as a share of theirs, for the rows tried.
        factors: the factor that each channel is multiplied by before it is rounded, and the matrix'
            rows are divided by; None: nothing.
    """

    scale: float
    largest: float
    error: float
    factors: npt.NDArray[np.float16] | None = None


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
        axis = 0 if turned else 1
        layers.append(Layer(node.name, node.input[0], node.input[1], axis, int(weight.size)))
    return layers


def find_scales(
    graph: OnnxGraph, layers: Sequence[Layer], inputs: Sequence[Arrays], scratch: Path
) -> dict[str, ActivationScale]:
    """The scale of every activation that a layer takes, by its name.

    Two things are tried, and what is taken is what makes the products differ least from unrounded
    ones, on up to 256 rows of all inputs. An outlier may be clipped, where that gains more for the
    others than it costs. And channels that are always large may be made smaller, their rows of the
    matrix larger (Xiao et al., SmoothQuant, arXiv 2211.10438): one scale for the whole activation
    then fits all of them better.

    Args:
        graph: the graph in float32.
        layers: the layers from :func:`find_layers`.
        inputs: the inputs to run it on.
        scratch: a folder for files.

    Raises:
        VerificationError: the graph can't be run.
    """
    seen: dict[str, _Seen] = {}
    share = max(1, _ROWS // max(1, len(inputs)))

    def look(name: str, array: npt.NDArray[Any]) -> None:
        seen.setdefault(name, _Seen([])).add(array, share)

    names = list(dict.fromkeys(layer.value for layer in layers))
    graph_inputs = [name for name in names if name in graph.inputs]
    ValueVisitor(graph, scratch).visit([n for n in names if n not in graph_inputs], inputs, look)
    for name in graph_inputs:
        for arrays in inputs:
            look(name, arrays[name])
    weights: dict[str, list[Floats]] = {}
    for layer in layers:
        weight = graph.tensors[layer.weight]
        weights.setdefault(layer.value, []).append(weight if layer.axis == 1 else weight.T)
    return {name: _best_scale(record, weights[name]) for name, record in seen.items()}


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
    bounds = np.where(scales > 0, scales, 1.0)
    rounded = bounds.astype(dtype)
    short = rounded.astype(np.float64) < bounds
    higher = np.nextafter(rounded, np.array(np.inf, dtype), dtype=dtype)
    return np.asarray(np.where(short, higher, rounded), dtype)


@dataclass
class _Seen:
    """Observations of an activation: some whole rows, and the largest magnitude of each channel."""

    rows: list[Floats]
    most: Floats | None = None

    def add(self, array: Floats, rows: int) -> None:
        flat = array.reshape(-1, array.shape[-1])
        if not flat.size:
            return
        most = np.abs(flat).max(axis=0).astype(np.float64)
        self.most = most if self.most is None else np.maximum(self.most, most)
        chosen = np.unique(np.linspace(0, len(flat) - 1, min(rows, len(flat))).astype(int))
        # The rows with the largest entries are where clipping shows.
        extreme = np.argsort(np.abs(flat).max(axis=1))[-max(1, rows // 8) :]
        self.rows.append(flat[np.union1d(chosen, extreme)].astype(np.float32))


def _best_scale(seen: _Seen, weights: Sequence[Floats]) -> ActivationScale:
    """The scale and factors of least error over all matrices that take the activation."""
    if seen.most is None:
        return ActivationScale(1.0, 0.0, 0.0)
    rows = np.concatenate(seen.rows)
    products = [rows @ weight for weight in weights]
    power = sum(float(np.square(w, dtype=np.float64).sum()) for w in products) or 1.0
    best: ActivationScale | None = None
    for strength in _STRENGTHS:
        factors = _factors(seen.most, weights, strength)
        wide = np.ones_like(seen.most) if factors is None else factors.astype(np.float64)
        largest = float((seen.most * wide).max()) or 1.0
        moved = rows * wide.astype(np.float32)
        rows_by = np.asarray(wide[:, None], np.float32)
        matrices = [_rounded(np.asarray(weight / rows_by)) for weight in weights]
        magnitudes = np.abs(moved)
        for share in _SHARES:
            clip = largest if share == 1.0 else float(np.quantile(magnitudes, share))
            scale = clip / _LEVELS
            if not scale:
                continue
            whole = np.clip(np.rint(moved / scale), -_LEVELS, _LEVELS) * np.float32(scale)
            wrong = sum(
                float(np.square(whole @ matrix - product, dtype=np.float64).sum())
                for matrix, product in zip(matrices, products, strict=True)
            )
            error = float(np.sqrt(wrong / power))
            if best is None or error < best.error:
                best = ActivationScale(scale, largest, error, factors)
    assert best is not None
    return best


def _factors(
    most: Floats, weights: Sequence[Floats], strength: float
) -> npt.NDArray[np.float16] | None:
    """1 over (activation's largest ** strength / matrix' largest ** (1 - strength)), by channel."""
    if not strength:
        return None
    rows = np.max([np.abs(weight).max(axis=1) for weight in weights], axis=0).astype(np.float64)
    used = (most > 0) & (rows > 0)
    if not used.any():
        return None
    logs = np.zeros_like(most)
    logs[used] = (1 - strength) * np.log(rows[used]) - strength * np.log(most[used])
    logs[used] -= logs[used].mean()
    # Within float16's normal numbers, and nothing is divided by almost nothing.
    return np.exp(np.clip(logs, -7, 7)).astype(np.float16)


def _rounded(weight: Floats) -> Floats:
    """A matrix [in, out] as int8 has it."""
    scale = np.abs(weight).max(axis=0, keepdims=True) / np.float32(_LEVELS)
    scale[scale == 0] = 1
    return np.asarray(np.rint(weight / scale) * scale, np.float32)
