"""Puts QuantizeLinear and DequantizeLinear around products with constant matrices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgecompile.onnx_files.graph import Array, OnnxGraph
from edgecompile.onnx_files.int8.scales import ActivationScale, Layer, quantize_weight, round_up


def quantize(
    graph: OnnxGraph,
    wide: OnnxGraph,
    layers: Collection[Layer],
    scales: Mapping[str, ActivationScale],
) -> OnnxGraph:
    """A graph with these layers in int8.

    The activation goes through QuantizeLinear and DequantizeLinear, once for all that take it, and
    before that through a Mul with a factor for each channel where there are such. The
    matrix is stored in int8 behind a DequantizeLinear. Scales have the dtype that the layer
    calculates in, which strongly typed networks ask for.

    Args:
        graph: the graph in float32, or from opset 19 on narrowed to float16; isn't changed.
        wide: the float32 graph that it was made of: matrices are rounded once, from there.
        layers: the layers of ``wide``.
        scales: the scales by name of the activation in ``wide``.
    """
    chosen = {layer.node: layer for layer in layers}
    dtypes = graph.dtypes()
    result = graph.without_nodes()
    replacements: dict[str, str] = {}
    owners: dict[str, str] = {}

    for old in graph.nodes:
        layer = chosen.get(old.name)
        node = copy.deepcopy(old)
        if layer is not None:
            value, weight = old.input[0], old.input[1]
            place = graph.place(old.name)
            dtype = np.dtype(dtypes[value])
            if value not in replacements:
                scale = f"{value}/scale"
                source = value
                factors = scales[layer.value].factors
                if factors is not None:
                    source = f"{value}/smooth"
                    result.tensors[f"{value}/factors"] = factors.astype(dtype)
                    result.add("Mul", [value, f"{value}/factors"], source, place)
                step = np.array(scales[layer.value].scale, np.float64)
                result.tensors[scale] = round_up(step, dtype)
                replacements[value] = f"{value}/int8/{dtype.name}"
                zero = _zeros(result, ())
                result.add("QuantizeLinear", [source, scale, zero], f"{value}/int8", place)
                result.add(
                    "DequantizeLinear", [f"{value}/int8", scale, zero], replacements[value], place
                )
            # One matrix may be taken by two activations, with other factors each.
            own = owners.setdefault(weight, value) == value
            stored = f"{weight}/int8" if own else f"{weight}/int8/{value}"
            if stored not in replacements:
                matrix = _divided(wide.tensors[layer.weight], layer, scales[layer.value])
                whole, steps = quantize_weight(matrix, layer.axis, dtype)
                result.tensors[stored] = whole
                result.tensors[f"{stored}/scale"] = steps
                replacements[stored] = f"{stored}/{dtype.name}"
                inputs = [stored, f"{stored}/scale", _zeros(result, steps.shape)]
                result.add("DequantizeLinear", inputs, replacements[stored], place, axis=layer.axis)
            node.input[0], node.input[1] = replacements[value], replacements[stored]
        result.nodes.append(node)
    result.drop_unused()
    return result


def _zeros(graph: OnnxGraph, shape: tuple[int, ...]) -> str:
    """The name of zero points of a shape. TensorRT 8.6 asks for one for each scale."""
    name = "/".join(["int8/zero", *map(str, shape)])
    graph.tensors[name] = np.zeros(shape, np.int8)
    return name


def _divided(matrix: Array, layer: Layer, scale: ActivationScale) -> Array:
    """The matrix as it is to be multiplied by the activation times its factors."""
    if scale.factors is None:
        return matrix
    factors = scale.factors.astype(np.float64)
    return np.asarray(matrix / (factors[:, None] if layer.axis == 1 else factors[None, :]))


@dataclass(frozen=True)
class Trial:
    """The result of a choice of layers.

    Attributes:
        error: largest difference from eager, as a share of the output's scale.
        cosine: the least; None where there is none.
        ok: whether both are within what is allowed.
    """

    error: float
    cosine: float | None
    ok: bool


def choose_layers(
    layers: Sequence[Layer], alone: Mapping[str, float], attempt: Callable[[list[Layer]], Trial]
) -> tuple[list[Layer], list[tuple[int, Trial]]]:
    """As many layers as can be in int8 together.

    Those that do most harm for what they save are left out first (:func:`harm`), as few as will do;
    found by halving, since what fails with some layers fails with more.

    Args:
        layers: all.
        alone: the error with each alone in int8, by its node.
        attempt: runs a choice.

    Returns:
        The layers in their order, and (number of layers, trial) of what was tried.
    """
    ranked = sorted(layers, key=lambda layer: (harm(layer, alone), layer.node))
    trials: list[tuple[int, Trial]] = []

    def good(count: int) -> bool:
        chosen = {layer.node for layer in ranked[:count]}
        trial = attempt([layer for layer in layers if layer.node in chosen])
        trials.append((count, trial))
        return trial.ok

    low, high = 0, len(ranked)
    if high and good(high):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    chosen = {layer.node for layer in ranked[:low]}
    return [layer for layer in layers if layer.node in chosen], trials


def harm(layer: Layer, alone: Mapping[str, float]) -> float:
    """The error of a layer relative to its savings: independent errors add up by their squares."""
    return alone[layer.node] ** 2 / layer.size
