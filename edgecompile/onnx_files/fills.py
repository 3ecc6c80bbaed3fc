"""Constants that stand for "masked": lower than float16 reaches, and fit to be cut down.

A mask adds torch.finfo(float32).min or -1e9 to the scores that softmax is to ignore. Any number far
below the scores does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.onnx_files.graph import OnnxGraph, attribute

#: What "masked" becomes: half of float16's lowest, so that a score that is added to it can't make it
#: infinite (a row of them would be NaN), nor can a second mask.
FILL = -32752.0

_LOWEST = -65504.0
_ENDS = ("Softmax", "LogSoftmax")
#: What a mask goes through on its way: it picks, moves or adds up entries.
_PASSES = (
    *("Add", "Cast", "Concat", "Expand", "Gather", "GatherElements", "GatherND", "Identity"),
    *("Max", "Min", "Mul", "Pad", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split"),
    *("Squeeze", "Sum", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
)
_BOUNDS = ("Clip", "Max", "Min")


@dataclass(frozen=True)
class Fill:
    """A constant with entries beyond float16.

    Attributes:
        name: the initializer.
        value: its entry beyond float16 that is nearest to zero.
        becomes: the new value of such entries.
        reaches: the values that hold it on its way to a softmax; none for a bound.
    """

    name: str
    value: float
    becomes: float
    reaches: frozenset[str]

    def apply(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The constant with such entries cut down."""
        if not self.reaches:
            return np.asarray(np.clip(array, _LOWEST, -_LOWEST))
        return np.where(np.isfinite(array) & (array < _LOWEST), np.float32(self.becomes), array)

    def __str__(self) -> str:
        what = "a mask's fill" if self.reaches else "a bound"
        return f"{self.name}: {what}, {self.value:.4g} becomes {self.becomes:g}"


def find_fills(graph: OnnxGraph) -> dict[str, Fill]:
    """Constants of a float32 graph that may be cut down.

    A constant may if all its entries beyond float16 are negative and everything that is made of it
    ends in a softmax; or if it is nothing but a bound that values are clipped to.
    """
    users = graph.consumers()
    fills = {}
    for name, array in graph.tensors.items():
        if array.dtype != np.float32 or not array.size:
            continue
        beyond = array[np.isfinite(array) & (np.abs(array) > -_LOWEST)]
        if not beyond.size:
            continue
        nearest = float(beyond[np.argmin(np.abs(beyond))])
        if all(_is_bound(node, name) for node in users.get(name, ())):
            fills[name] = Fill(name, nearest, float(np.sign(nearest)) * -_LOWEST, frozenset())
            continue
        reached = _reach(graph, name, users) if bool((beyond < 0).all()) else None
        if reached is not None:
            fills[name] = Fill(name, nearest, FILL, frozenset(reached))
    return fills


def masked_values(fills: Mapping[str, Fill]) -> dict[str, float]:
    """The limit of each value below which its entries stand for "masked"."""
    limits: dict[str, float] = {}
    for fill in fills.values():
        for name in fill.reaches:
            limits[name] = max(fill.value / 2, limits.get(name, -np.inf))
    return limits


def _is_bound(node: Any, name: str) -> bool:
    if node.op_type == "Clip":
        return bool(node.input[0] != name)
    return node.op_type in _BOUNDS and len(node.input) == 2


def _reach(graph: OnnxGraph, name: str, users: Mapping[str, list[Any]]) -> set[str] | None:
    """The values made of a constant on its ways to softmaxes; None if there is another end."""
    reached = {name}
    left = [name]
    ended = False
    while left:
        current = left.pop()
        if current in graph.outputs:
            return None
        for node in users.get(current, ()):
            if node.op_type in _ENDS:
                ended = True
                continue
            if _is_bound(node, current):
                continue
            if node.op_type not in _PASSES or (
                node.op_type == "Cast" and attribute(node, "to") not in (1, 10)
            ):
                return None
            for output in node.output:
                if output and output not in reached:
                    reached.add(output)
                    left.append(output)
    return reached if ended else None
