"""Reads recipe.json: what a device builds the TensorRT engine of a bundle from.

No engine can be built on another machine than the one that runs it, so a bundle holds the ONNX, its
weights and this recipe. Reading it is total, like the manifest's: whatever the bytes are, the result
is a valid ``Recipe`` or a ``BundleError`` that lists every broken rule of FORMAT.md.
"""

import os
import posixpath
import re
from typing import Any, Dict, Optional, Sequence, Tuple

from ..errors import FormatVersionError
from .document import Problems, Reader, join, parse_json, shorten
from .folder import BundleFolder
from .manifest import check_path, read_tolerance
from .recipe_schema import (
    RECIPE_VERSION,
    Predicted,
    Recipe,
    ShapeRange,
    ShippedEngine,
    TargetDevice,
    TensorType,
)
from .schema import BucketSpec, Manifest, TensorSpec, Variant

__all__ = [
    "MAX_RECIPE_BYTES",
    "RECIPE_VERSION",
    "Predicted",
    "Recipe",
    "ShapeRange",
    "ShippedEngine",
    "TargetDevice",
    "TensorType",
    "parse_recipe",
    "read_recipe",
    "sibling",
    "version_pair",
]

MAX_RECIPE_BYTES = 4 << 20
MAX_SIZE = 2**31 - 1
MAX_BYTES = 1 << 48
MAX_SMS = 4096
#: The strings of ``DeviceIdentity.key_json``.
IDENTITY = ("model", "l4t", "name", "compute_capability", "driver", "tensorrt")
_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_TEXT = re.compile(r"[ -~]{1,200}")
_HINT = "the recipe was written wrongly or changed; build the bundle again"


def version_pair(text: str) -> Tuple[int, int]:
    """(major, minor) of a version that begins with ``10.3``; (0, 0) for what doesn't."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", text)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def sibling(variant: Variant, name: str) -> str:
    """The path in the bundle of a file that lies beside the recipe of ``variant``."""
    return posixpath.join(posixpath.dirname(variant.recipe), name)


def read_recipe(folder: BundleFolder, variant: Variant) -> Recipe:
    """Reads the recipe of a variant of the backend ``tensorrt``, its hash compared first.

    Raises:
        DamagedBundleError: the file is missing, or differs from its size or hash.
        FormatVersionError: of a recipe version that this runtime doesn't know.
        BundleError: lists every broken rule (recipe-* and json-* of FORMAT.md).
    """
    source = "{}: {}".format(folder.path, variant.recipe)
    with os.fdopen(folder.open_checked(variant.recipe), "rb") as stream:
        stream.seek(0)
        data = stream.read(MAX_RECIPE_BYTES + 1)
    return parse_recipe(data, folder.manifest, variant, source)


def parse_recipe(
    data: bytes, manifest: Manifest, variant: Variant, source: str = "recipe.json"
) -> Recipe:
    """Parses and validates the bytes of a recipe against the manifest of its bundle.

    Args:
        data: the bytes of recipe.json.
        manifest: the bundle's; inputs, outputs, buckets and files are compared with it.
        variant: the one whose recipe it is.
        source: what to call the bytes in an error.

    Raises:
        FormatVersionError: of a recipe version that this runtime doesn't know.
        BundleError: anything else; lists every broken rule.
    """
    document = parse_json(data, source, MAX_RECIPE_BYTES)
    problems = Problems(source)
    reader = Reader(problems)
    version = reader.integer(document, "recipe_version", "")
    problems.raise_if_any()
    if version != RECIPE_VERSION:
        text = "{}: the recipe has version {}, this runtime knows version {} [recipe-version]"
        hint = "use the runtime in the bundle's own runtime/ folder"
        raise FormatVersionError(text.format(source, version, RECIPE_VERSION), hint)
    recipe = _RecipeReader(document, reader, manifest, variant).read()
    problems.raise_if_any(hint=_HINT)
    assert recipe is not None
    return recipe


class _RecipeReader:
    def __init__(
        self, document: Dict[str, Any], reader: Reader, manifest: Manifest, variant: Variant
    ) -> None:
        self.document = document
        self.reader = reader
        self.add = reader.problems.add
        self.manifest = manifest
        self.variant = variant

    def read(self) -> Optional[Recipe]:
        """The recipe; None when a problem was noted."""
        top, reader = self.document, self.reader
        if reader.boolean(top, "strongly_typed", "") is ("float32" in top):
            self.add("recipe-typed", "strongly_typed", "must be true, or false and float32 a list")
        values: Dict[str, Any] = {
            "onnx": self._file(top, "onnx", ""),
            "weights": self._file(top, "weights", ""),
            "opset": self._ranged(top, "opset", "", 9, 99),
            "precision": reader.name(top, "precision", ""),
            "padding": reader.boolean(top, "padding", ""),
            "tolerance": read_tolerance(top, reader, "recipe-tolerance"),
            "min_cosine": self._min_cosine(),
            "jetpack": self._version(top, "jetpack", "", may_be_empty=True),
            "inputs": self._tensors("inputs", self.manifest.inputs),
            "outputs": self._tensors("outputs", self.manifest.outputs),
            "profiles": self._profiles(),
        }
        for key, read in (
            ("tensorrt", self._versions),
            ("device", self._device),
            ("builder", self._builder),
            ("predicted", self._predicted),
        ):
            entry = reader.mapping(top, key, "")
            if entry is top.get(key):
                values.update(read(entry))
        if "float32" in top:
            values["float32"] = reader.strings(top, "float32", "", 0, 65536)
        if top.get("engine") is not None:
            values["engine"] = self._engine(reader.mapping(top, "engine", ""))
        return None if reader.problems.items else Recipe(**values)

    def _file(self, parent: Dict[str, Any], key: str, where: str) -> str:
        name = self.reader.string(parent, key, where)
        place = join(where, key)
        if name is None:
            return ""
        if "/" in name or check_path(name) is not None:
            text = "{!r} isn't the bare name of a file"
            self.add("recipe-files", place, text.format(shorten(name)))
        elif sibling(self.variant, name) not in self.manifest.files:
            text = "{!r} isn't listed in the manifest's files"
            self.add("recipe-files", place, text.format(shorten(sibling(self.variant, name), 200)))
        return name

    def _ranged(
        self, parent: Dict[str, Any], key: str, where: str, least: int, most: int
    ) -> Optional[int]:
        return self.reader.within(parent, key, where, least, most, "recipe-range")

    def _optional(self, parent: Dict[str, Any], key: str, where: str) -> Optional[float]:
        """A number, or None where it is null."""
        if self.reader.key(parent, key, where) is None:
            return None
        return self.reader.number(parent, key, where)

    def _min_cosine(self) -> Optional[float]:
        cosine = self._optional(self.document, "min_cosine", "")
        if cosine is not None:
            self.reader.check_range(cosine, "min_cosine", 0, 1, "recipe-tolerance")
        return cosine

    def _version(
        self, parent: Dict[str, Any], key: str, where: str, may_be_empty: bool = False
    ) -> str:
        value = self.reader.string(parent, key, where)
        if value or not may_be_empty:
            place = join(where, key)
            self.reader.check_form(value, place, _VERSION, "recipe-versions", "must look like 10.3")
        return value or ""

    def _versions(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        least = self._version(entry, "least", "tensorrt")
        below = self._version(entry, "below", "tensorrt")
        formed = _VERSION.fullmatch(least) and _VERSION.fullmatch(below)
        if formed and version_pair(least) >= version_pair(below):
            text = "no version is at least {} and below {}".format(least, below)
            self.add("recipe-versions", "tensorrt", text)
        return {"least": least, "below": below}

    def _device(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        sm_count = None
        if self.reader.key(entry, "sm_count", "device") is not None:
            sm_count = self._ranged(entry, "sm_count", "device", 1, MAX_SMS)
        models = self.reader.strings(entry, "models", "device", 1, 16)
        for index, model in enumerate(models):
            self._check_text(model, "device.models[{}]".format(index), "recipe-model")
        device = TargetDevice(
            name=self.reader.name(entry, "name", "device") or "",
            compute_capability=self._version(entry, "compute_capability", "device"),
            sm_count=sm_count,
            memory_bytes=self._ranged(entry, "memory_bytes", "device", 1, MAX_BYTES) or 0,
            models=models,
        )
        return {"device": device}

    def _builder(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        return {
            "optimization_level": self._ranged(entry, "optimization_level", "builder", 0, 5),
            "workspace_bytes": self._ranged(entry, "workspace_bytes", "builder", 1, MAX_BYTES),
        }

    def _tensors(self, key: str, specs: Sequence[TensorSpec]) -> Tuple[TensorType, ...]:
        result = []
        for where, entry in self.reader.objects(self.document, key, "", 1, 64):
            name = self.reader.name(entry, "name", where)
            dtype = self.reader.string(entry, "dtype", where)
            if name is not None and dtype is not None:
                result.append(TensorType(name, dtype))
        listed = [(item.name, item.dtype) for item in result]
        expected = [(item.name, item.dtype) for item in specs]
        if listed != expected:
            text = "are {}, the manifest has {}"
            self.add("recipe-tensors", key, text.format(_pairs(listed), _pairs(expected)))
        return tuple(result)

    def _check_names(
        self, entry: Dict[str, Any], where: str, specs: Sequence[TensorSpec], rule: str
    ) -> bool:
        """Whether the keys are the names of these inputs and outputs."""
        names = [item.name for item in specs]
        if entry.keys() == set(names):
            return True
        listed = ", ".join(shorten(name) for name in sorted(entry)[:64]) or "none"
        self.add(rule, where, "has {}, must have {}".format(listed, ", ".join(names)))
        return False

    def _profiles(self) -> Tuple[Dict[str, ShapeRange], ...]:
        buckets, inputs = self.manifest.buckets, self.manifest.inputs
        items = self.reader.items(self.document, "profiles", "", 1, 256)
        if "profiles" in self.document:
            self._check_count(len(items), "profiles", "profiles", "recipe-profiles")
        result = []
        for index, (value, bucket) in enumerate(zip(items, buckets)):
            where = "profiles[{}]".format(index)
            entry = self.reader.as_object(value, where)
            if entry is not value:
                continue
            self._check_names(entry, where, inputs, "recipe-profiles")
            ranges = {
                spec.name: self._range(entry, where, spec, bucket)
                for spec in inputs
                if spec.name in entry
            }
            result.append(ranges)
        return tuple(result)

    def _check_count(self, count: int, where: str, things: str, rule: str) -> None:
        buckets = len(self.manifest.buckets)
        if count != buckets:
            self.add(rule, where, "{} {} for {} buckets".format(count, things, buckets))

    def _range(
        self, parent: Dict[str, Any], place: str, spec: TensorSpec, bucket: BucketSpec
    ) -> ShapeRange:
        where = join(place, spec.name)
        entry = self.reader.mapping(parent, spec.name, place)
        if entry is not parent[spec.name]:
            return ShapeRange((), (), ())
        shapes = [self.reader.integers(entry, key, where, 0, 8) for key in ("min", "opt", "max")]
        if any(len(shape) != len(spec.shape) for shape in shapes):
            text = "min, opt and max must have {} sizes each".format(len(spec.shape))
            self.add("recipe-profile", where, text)
            return ShapeRange((), (), ())
        padded = bucket.padded(self.manifest.length_axis)
        for index, dim in enumerate(spec.shape):
            lo, opt, hi = (shape[index] for shape in shapes)
            if isinstance(dim, int):
                lowest = highest = dim
            else:
                extent = bucket.axes[str(dim)]
                # What is padded comes at its upper edge only.
                lowest, highest = extent.hi if dim in padded else extent.lo, extent.hi
            if not 1 <= lo <= opt <= hi <= MAX_SIZE or lo > lowest or hi < highest:
                text = "dimension {}: {}, {}, {} must ascend from at most {} to at least {}"
                text = text.format(index, lo, opt, hi, lowest, highest)
                self.add("recipe-profile", where, text)
        return ShapeRange(*shapes)

    def _predicted(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        where, place = "predicted", "predicted.scratch_bytes"
        scratch = self.reader.integers(entry, "scratch_bytes", where, 1, 256)
        for size in scratch:
            self.reader.check_range(size, place, 0, MAX_BYTES, "recipe-range")
        if isinstance(entry.get("scratch_bytes"), list) and entry["scratch_bytes"]:
            self._check_count(len(entry["scratch_bytes"]), place, "sizes", "recipe-profiles")
        seconds = self._optional(entry, "build_seconds", where)
        if seconds is not None and not seconds >= 0:
            text = "{} is negative".format(seconds)
            self.add("recipe-range", "predicted.build_seconds", text)
        predicted = Predicted(
            build_bytes=self._ranged(entry, "build_bytes", where, 0, MAX_BYTES) or 0,
            engine_bytes=self._ranged(entry, "engine_bytes", where, 0, MAX_BYTES) or 0,
            scratch_bytes=scratch,
            build_seconds=seconds,
            how=self.reader.string(entry, "how", where) or "",
        )
        return {"predicted": predicted}

    def _engine(self, entry: Dict[str, Any]) -> Optional[ShippedEngine]:
        if entry is not self.document["engine"]:
            return None
        reader, place = self.reader, "engine.profile_of"
        profile_of = reader.integers(entry, "profile_of", "engine", 1, 256)
        if isinstance(entry.get("profile_of"), list) and entry["profile_of"]:
            self._check_count(len(entry["profile_of"]), place, "profiles", "recipe-engine")
        for number in profile_of:
            most = len(self.manifest.buckets) - 1
            reader.check_range(number, place, 0, most, "recipe-engine")
        return ShippedEngine(
            file=self._file(entry, "file", "engine"),
            made_by=self._text(entry, "made_by", "engine"),
            device=self._shipped_for(reader.mapping(entry, "device", "engine")),
            profile_of=profile_of,
            tensors=self._native_names(reader.mapping(entry, "tensors", "engine")),
        )

    def _shipped_for(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        where = "engine.device"
        # "" where the system doesn't say.
        result: Dict[str, Any] = {
            key: self._text(entry, key, where) if entry.get(key) != "" else "" for key in IDENTITY
        }
        result["sm_count"] = self.reader.within(
            entry, "sm_count", where, 1, MAX_SMS, "recipe-engine"
        )
        result["integrated"] = self.reader.boolean(entry, "integrated", where)
        return result

    def _native_names(self, entry: Dict[str, Any]) -> Dict[str, str]:
        where, specs = "engine.tensors", (*self.manifest.inputs, *self.manifest.outputs)
        if not self._check_names(entry, where, specs, "recipe-engine"):
            return {}
        result = {spec.name: self._text(entry, spec.name, where) for spec in specs}
        if len(set(result.values())) < len(result):
            self.add("recipe-engine", where, "two have the same name")
        return result

    def _text(self, parent: Dict[str, Any], key: str, where: str) -> str:
        value = self.reader.string(parent, key, where)
        self._check_text(value, join(where, key), "recipe-engine")
        return value or ""

    def _check_text(self, value: Optional[str], where: str, rule: str) -> None:
        text = "must be 1 to 200 printable ASCII characters"
        self.reader.check_form(value, where, _TEXT, rule, text)


def _pairs(items: Sequence[Tuple[str, str]]) -> str:
    return ", ".join("{} {}".format(name, shorten(dtype)) for name, dtype in items) or "none"
