"""The recipe as frozen dataclasses; FORMAT.md is normative.

Construction checks nothing: ``parse.parse_recipe`` does, and every writer sends its bytes through
it before they leave.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from ..manifest.schema import Tolerance, plain

RECIPE_VERSION = 1

Shape = Tuple[int, ...]


def version_pair(text: str) -> Tuple[int, int]:
    """(major, minor) of a version that begins with ``10.3``; (0, 0) for what doesn't."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", text)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


class Record:
    """A base of dataclasses whose JSON is an object of their fields."""

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values in the order of the fields."""
        return {key: plain(value) for key, value in self.__dict__.items()}


@dataclass(frozen=True)
class ShapeRange(Record):
    """The shapes that one input has in one profile: smallest, the one tuned for, largest."""

    min: Shape
    opt: Shape
    max: Shape


@dataclass(frozen=True)
class TensorType(Record):
    """Name and dtype of an input or output, as the ONNX has them."""

    name: str
    dtype: str


@dataclass(frozen=True)
class TargetDevice(Record):
    """The module that the recipe is for; ``models`` are parts of what its device tree may say.

    Of a recipe that is for no Jetson, they are parts of what CUDA may call the GPU.

    ``sm_count`` None: modules of several counts will do. ``memory_bytes`` is all of its memory, which CPU and GPU share.
    """

    name: str
    compute_capability: str
    sm_count: Optional[int]
    memory_bytes: int
    models: Tuple[str, ...]


@dataclass(frozen=True)
class Predicted(Record):
    """The build host's predictions: bytes, and seconds where it can tell; ``how`` names their basis.

    ``host_bytes``: of main memory that a build takes where the GPU has memory of its own; None: not known, or
    part of ``build_bytes``.
    """

    build_bytes: int
    engine_bytes: int
    scratch_bytes: Tuple[int, ...]
    build_seconds: Optional[float]
    how: str
    host_bytes: Optional[int] = None

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values; without ``host_bytes`` where that isn't known."""
        entries = super().to_json()
        if self.host_bytes is None:
            del entries["host_bytes"]
        return entries


@dataclass(frozen=True)
class OtherForm(Record):
    """The same model in the form that another TensorRT takes; its keys replace those of the recipe.

    The ONNX points into the recipe's weights file.
    """

    onnx: str
    opset: int
    jetpack: str
    least: str
    below: str
    float32: Optional[Tuple[str, ...]] = None

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values."""
        return {
            "onnx": self.onnx,
            "opset": self.opset,
            **_typed(self.float32),
            "jetpack": self.jetpack,
            "tensorrt": {"least": self.least, "below": self.below},
        }


@dataclass(frozen=True)
class Side(Record):
    """The graph of some buckets, where the model's code takes another way at their lengths.

    Its engine lies behind those of the graphs before it, in one file. The ONNX points into the recipe's weights file.

    Attributes:
        onnx: the name of its file, beside the recipe.
        opset, float32: the fields of the recipe.
        buckets: their indices, ascending.
    """

    onnx: str
    opset: int
    buckets: Tuple[int, ...]
    float32: Optional[Tuple[str, ...]] = None

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values."""
        return {
            "onnx": self.onnx,
            "opset": self.opset,
            **_typed(self.float32),
            "buckets": list(self.buckets),
        }


def _typed(float32: Optional[Tuple[str, ...]]) -> Dict[str, Any]:
    named = {} if float32 is None else {"float32": list(float32)}
    return {"strongly_typed": float32 is None, **named}


@dataclass(frozen=True)
class Recipe:
    """The whole recipe. ``profiles`` has one entry per bucket: ranges of shapes by input.

    ``least`` and ``below`` are the TensorRT versions, major.minor, that it may be finished with:
    least <= version < below. ``padding``: filling inputs up to a profile's ``max`` with the
    manifest's pad values was verified to change nothing. ``tolerance`` and ``min_cosine`` judge what
    the engine gives, as its precision isn't that of the variants for a CPU; None: any cosine will do.
    ``float32`` is None where the ONNX says the type of everything. TensorRT 8's builder chooses between float32
    and ``precision`` itself: there it names the values that stay float32 if the golden
    vectors fail without.
    ``engine`` saves devices like the build host the building. ``jetpack`` is "" where the device isn't a
    Jetson. ``also`` has the forms for further versions of TensorRT. ``sides`` has the graphs of the buckets
    that ``onnx`` doesn't serve; a recipe has only one of the two.
    """

    onnx: str
    weights: str
    opset: int
    precision: str
    padding: bool
    tolerance: Tolerance
    min_cosine: Optional[float]
    jetpack: str
    least: str
    below: str
    device: TargetDevice
    inputs: Tuple[TensorType, ...]
    outputs: Tuple[TensorType, ...]
    profiles: Tuple[Mapping[str, ShapeRange], ...]
    optimization_level: int
    workspace_bytes: int
    predicted: Predicted
    float32: Optional[Tuple[str, ...]] = None
    also: Tuple[OtherForm, ...] = ()
    sides: Tuple[Side, ...] = ()

    @property
    def graphs(self) -> Tuple[Side, ...]:
        """Every graph with its buckets, the recipe's own first."""
        others = {bucket for side in self.sides for bucket in side.buckets}
        own = tuple(index for index in range(len(self.profiles)) if index not in others)
        return (Side(self.onnx, self.opset, own, self.float32), *self.sides)

    def for_tensorrt(self, version: str) -> "Recipe":
        """The recipe in the form that a version of TensorRT takes; itself where no other form is for it."""
        for form in self.also:
            if version_pair(form.least) <= version_pair(version) < version_pair(form.below):
                return replace(self, **vars(form), also=())
        return self

    def to_json(self) -> Dict[str, Any]:
        """The recipe as plain JSON values, in the order of FORMAT.md."""
        return {
            "recipe_version": RECIPE_VERSION,
            "onnx": self.onnx,
            "weights": self.weights,
            "opset": self.opset,
            "precision": self.precision,
            **_typed(self.float32),
            "padding": self.padding,
            "tolerance": plain(self.tolerance),
            "min_cosine": self.min_cosine,
            "jetpack": self.jetpack,
            "tensorrt": {"least": self.least, "below": self.below},
            "device": self.device.to_json(),
            "inputs": plain(self.inputs),
            "outputs": plain(self.outputs),
            "profiles": plain(self.profiles),
            "builder": {
                "optimization_level": self.optimization_level,
                "workspace_bytes": self.workspace_bytes,
            },
            "predicted": self.predicted.to_json(),
            **({"also": plain(self.also)} if self.also else {}),
            **({"sides": plain(self.sides)} if self.sides else {}),
        }

    def to_bytes(self) -> bytes:
        """The bytes of recipe.json: deterministic, indented, ASCII, one final newline."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=True, allow_nan=False)
        return text.encode("ascii") + b"\n"
