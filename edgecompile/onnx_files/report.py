"""The results of building an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.files import plain_fields
from edgecompile.onnx_files.check import OnnxReport
from edgecompile.onnx_files.graph import Place
from edgecompile.onnx_files.operators import OpsReport


@dataclass(frozen=True)
class KeptNode:
    """A node that calculates in float32 where the others don't.

    Attributes:
        node: its name.
        operator: its operator.
        place: its origin in the model.
        reason: why.
    """

    node: str
    operator: str
    place: Place
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} in {self.place}: {self.reason}"


@dataclass(frozen=True)
class Int8Layer:
    """A product with a constant matrix.

    Attributes:
        node: its name.
        place: its origin in the model.
        error: the error of the model's outputs with this layer alone in int8, as a share of their
            scale.
        scale: an activation is a whole number from -127 to 127 times this.
        clipped: the share of the largest seen activation that the range covers, 1 or less.
        quantized: whether it is in int8 in the file.
    """

    node: str
    place: Place
    error: float
    scale: float
    clipped: float
    quantized: bool


@dataclass(frozen=True)
class Int8Report:
    """The layers in int8.

    Attributes:
        layers: every product with a constant matrix, in the graph's order.
        calibrated_on: the inputs, in words.
        trials: (layers in int8, error, cosine) of each choice that was tried.
        error: largest difference from eager, as a share of the output's scale.
        cosine: least cosine with eager.
    """

    layers: tuple[Int8Layer, ...]
    calibrated_on: str
    trials: tuple[tuple[int, float, float | None], ...]
    error: float
    cosine: float | None

    @property
    def quantized(self) -> int:
        """The number of layers in int8."""
        return sum(layer.quantized for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"quantized": self.quantized, **plain_fields(self)}


@dataclass(frozen=True)
class OlderForm:
    """The same model for an older TensorRT, in a file that shares the weights.

    Attributes:
        path: the file.
        opset: version of ONNX's operators.
        float32: the attribute of :class:`OnnxArtifact`.
    """

    path: Path
    opset: int
    float32: tuple[str, ...] | None


@dataclass(frozen=True)
class SideForm:
    """The graph of some buckets, in a file that shares the weights.

    Attributes:
        path: the file.
        opset: version of ONNX's operators.
        float32: the attribute of :class:`OnnxArtifact`.
        buckets: the buckets' indices.
        nodes: the number of nodes.
    """

    path: Path
    opset: int
    float32: tuple[str, ...] | None
    buckets: tuple[int, ...]
    nodes: int


@dataclass(frozen=True)
class OnnxArtifact:
    """An ONNX file, its weights, and the findings about them.

    Attributes:
        path, weights: the files, in one folder.
        opset: version of ONNX's operators.
        precision: fp32, fp16 or int8.
        inputs, outputs: numpy's name of each dtype, in the file's order.
        unused_inputs: inputs that no output depends on. TensorRT-RTX keeps them in the network.
        nodes: the number of nodes.
        kept: the nodes in float32 in a file of another type.
        float32: the values that stay float32 where TensorRT's builder may choose float16; None: the file says
            every type.
        fills: constants that stand for "masked" and were cut down to fit, with what they became.
        int8: the layers in int8; None for other precisions.
        ops: the operators against the target's list, clean.
        check: the file against eager, clean but perhaps for padding.
        older: the form for an older TensorRT, if one was asked for and there is one.
        no_older: the reason why there is none.
        sides: the graphs of the buckets that this file doesn't serve. ``check`` is about all graphs, the
            figures beside it about the first alone.
    """

    path: Path
    weights: Path
    opset: int
    precision: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    unused_inputs: tuple[str, ...]
    nodes: int
    kept: tuple[KeptNode, ...]
    float32: tuple[str, ...] | None
    fills: tuple[str, ...]
    int8: Int8Report | None
    ops: OpsReport
    check: OnnxReport
    older: OlderForm | None = None
    no_older: str = ""
    sides: tuple[SideForm, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for reports."""
        return plain_fields(self)
