"""The recipe as frozen dataclasses; FORMAT.md is normative.

Construction checks nothing: ``recipe.parse_recipe`` does, and every writer sends its bytes through
it before they leave.
"""

import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from .schema import Tolerance, plain

RECIPE_VERSION = 1

Shape = Tuple[int, ...]


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
class ShippedEngine(Record):
    """An engine that lies beside the recipe, for one very device.

    Attributes:
        file: its name.
        made_by: the tool and its version, for people.
        device: all that an engine depends on, as ``DeviceIdentity.key_json`` has it.
        profile_of: the engine's profile for each bucket.
        tensors: what the engine calls an input or output, by the manifest's name.
    """

    file: str
    made_by: str
    device: Mapping[str, Any]
    profile_of: Tuple[int, ...]
    tensors: Mapping[str, str]


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
    Jetson.
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
    engine: Optional[ShippedEngine] = None
    float32: Optional[Tuple[str, ...]] = None

    def to_json(self) -> Dict[str, Any]:
        """The recipe as plain JSON values, in the order of FORMAT.md."""
        engine = {} if self.engine is None else {"engine": self.engine.to_json()}
        float32 = {} if self.float32 is None else {"float32": list(self.float32)}
        return {
            "recipe_version": RECIPE_VERSION,
            "onnx": self.onnx,
            "weights": self.weights,
            "opset": self.opset,
            "precision": self.precision,
            "strongly_typed": self.float32 is None,
            **float32,
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
            **engine,
        }

    def to_bytes(self) -> bytes:
        """The bytes of recipe.json: deterministic, indented, ASCII, one final newline."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=True, allow_nan=False)
        return text.encode("ascii") + b"\n"
