"""What a recipe says, as frozen dataclasses; FORMAT.md is normative.

Construction checks nothing: ``recipe.parse_recipe`` does, and every writer sends its bytes through
it before they leave.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .document import Reader, join, shorten
from .schema import Manifest, Tolerance

RECIPE_VERSION = 1

Shape = Tuple[int, ...]


@dataclass(frozen=True)
class ShapeRange:
    """The shapes that one input has in one profile: smallest, the one tuned for, largest."""

    min: Shape
    opt: Shape
    max: Shape

    def to_json(self) -> Dict[str, List[int]]:
        """{"min", "opt", "max"}."""
        return {"min": list(self.min), "opt": list(self.opt), "max": list(self.max)}


@dataclass(frozen=True)
class TensorType:
    """Name and dtype of an input or output, as the ONNX has them."""

    name: str
    dtype: str

    def to_json(self) -> Dict[str, str]:
        """{"name", "dtype"}."""
        return {"name": self.name, "dtype": self.dtype}


@dataclass(frozen=True)
class TargetDevice:
    """The module that the recipe is for; ``models`` are parts of what its device tree may say.

    Of a recipe that is for no Jetson, they are parts of what CUDA may call the GPU.

    ``sm_count`` None: modules of several counts will do. ``memory_bytes`` is all of its memory, which CPU and GPU share.
    """

    name: str
    compute_capability: str
    sm_count: Optional[int]
    memory_bytes: int
    models: Tuple[str, ...]

    def to_json(self) -> Dict[str, Any]:
        """The recipe's entry."""
        return {
            "name": self.name,
            "compute_capability": self.compute_capability,
            "sm_count": self.sm_count,
            "memory_bytes": self.memory_bytes,
            "models": list(self.models),
        }


@dataclass(frozen=True)
class Predicted:
    """What the build host expects: bytes, and seconds where it can tell; ``how`` says from what."""

    build_bytes: int
    engine_bytes: int
    scratch_bytes: Tuple[int, ...]
    build_seconds: Optional[float]
    how: str

    def to_json(self) -> Dict[str, Any]:
        """The recipe's entry."""
        return {
            "build_bytes": self.build_bytes,
            "engine_bytes": self.engine_bytes,
            "scratch_bytes": list(self.scratch_bytes),
            "build_seconds": self.build_seconds,
            "how": self.how,
        }


@dataclass(frozen=True)
class ShippedEngine:
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

    def to_json(self) -> Dict[str, Any]:
        """The recipe's entry."""
        return {
            "file": self.file,
            "made_by": self.made_by,
            "device": dict(self.device),
            "profile_of": list(self.profile_of),
            "tensors": dict(self.tensors),
        }


@dataclass(frozen=True)
class Recipe:
    """The whole recipe. ``profiles`` has one entry per bucket: ranges of shapes by input.

    ``least`` and ``below`` are the TensorRT versions, major.minor, that it may be finished with:
    least <= version < below. ``padding``: filling inputs up to a profile's ``max`` with the
    manifest's pad values was verified to change nothing. ``tolerance`` and ``min_cosine`` judge what
    the engine gives, as its precision isn't that of the variants for a CPU; None: any cosine will do.
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

    def to_json(self) -> Dict[str, Any]:
        """The recipe as plain JSON values, in the order of FORMAT.md."""
        engine = {} if self.engine is None else {"engine": self.engine.to_json()}
        return {
            "recipe_version": RECIPE_VERSION,
            "onnx": self.onnx,
            "weights": self.weights,
            "opset": self.opset,
            "precision": self.precision,
            "strongly_typed": True,
            "padding": self.padding,
            "tolerance": self.tolerance.to_json(),
            "min_cosine": self.min_cosine,
            "jetpack": self.jetpack,
            "tensorrt": {"least": self.least, "below": self.below},
            "device": self.device.to_json(),
            "inputs": [item.to_json() for item in self.inputs],
            "outputs": [item.to_json() for item in self.outputs],
            "profiles": [
                {name: shapes.to_json() for name, shapes in profile.items()}
                for profile in self.profiles
            ],
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


_TEXT = re.compile(r"[ -~]{1,200}")
_MAX_SMS = 4096
#: What ``DeviceIdentity.key_json`` has; the others are strings.
_STRINGS = ("model", "l4t", "name", "compute_capability", "driver", "tensorrt")


def read_shipped(
    reader: Reader, entry: Dict[str, Any], file: str, manifest: Manifest
) -> Optional[ShippedEngine]:
    """The recipe's ``engine``; None when a problem was noted.

    Args:
        reader: gets the problems.
        entry: the entry.
        file: its ``file``, which was looked at.
        manifest: of the bundle.
    """
    before = reader.problems.count
    made_by = reader.string(entry, "made_by", "engine")
    if made_by is not None:
        _check_text(reader, made_by, "engine.made_by")
    device = _device(reader, reader.mapping(entry, "device", "engine"))
    count = len(manifest.buckets)
    items = reader.items(entry, "profile_of", "engine", 1, 256)
    numbers = [reader.as_integer(item, "engine.profile_of") for item in items]
    if items and len(items) != count:
        text = "{} profiles for {} buckets".format(len(items), count)
        reader.problems.add("recipe-engine", "engine.profile_of", text)
    for number in numbers:
        if number is not None and not 0 <= number < count:
            text = "{} isn't within 0..{}".format(number, count - 1)
            reader.problems.add("recipe-engine", "engine.profile_of", text)
    names = [item.name for item in (*manifest.inputs, *manifest.outputs)]
    tensors = _tensors(reader, reader.mapping(entry, "tensors", "engine"), names)
    if reader.problems.count > before or made_by is None:
        return None
    profile_of = tuple(number for number in numbers if number is not None)
    return ShippedEngine(file, made_by, device, profile_of, tensors)


def _device(reader: Reader, entry: Dict[str, Any]) -> Dict[str, Any]:
    where = "engine.device"
    result: Dict[str, Any] = {}
    for key in _STRINGS:
        value = reader.string(entry, key, where)
        if value:  # "" where the system doesn't say
            _check_text(reader, value, join(where, key))
        result[key] = value
    result["sm_count"] = count = reader.integer(entry, "sm_count", where)
    if count is not None and not 1 <= count <= _MAX_SMS:
        text = "{} isn't within 1..{}".format(count, _MAX_SMS)
        reader.problems.add("recipe-engine", join(where, "sm_count"), text)
    result["integrated"] = reader.boolean(entry, "integrated", where)
    return result


def _tensors(reader: Reader, entry: Dict[str, Any], names: Sequence[str]) -> Dict[str, str]:
    where = "engine.tensors"
    if entry.keys() != set(names):
        found = ", ".join(shorten(name) for name in sorted(entry)[:128]) or "none"
        text = "has {}, must have {}".format(found, ", ".join(names))
        reader.problems.add("recipe-engine", where, text)
        return {}
    result = {}
    for name in names:
        value = reader.string(entry, name, where)
        if value is not None:
            _check_text(reader, value, join(where, name))
            result[name] = value
    if len(set(result.values())) < len(result):
        reader.problems.add("recipe-engine", where, "two have the same name")
    return result


def _check_text(reader: Reader, value: str, where: str) -> None:
    if not _TEXT.fullmatch(value):
        text = "{!r} must be 1 to 200 printable ASCII characters".format(shorten(value))
        reader.problems.add("recipe-engine", where, text)
