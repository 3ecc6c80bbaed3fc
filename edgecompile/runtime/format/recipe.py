"""Reads recipe.json: what a device builds the TensorRT engine of a bundle from.

No engine can be built on another machine than the one that runs it, so a bundle holds the ONNX, its
weights and this recipe. Reading it is total, like the manifest's: whatever the bytes are, the result
is a valid ``Recipe`` or a ``BundleError`` that lists every broken rule of FORMAT.md.
"""

import os
import posixpath
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

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
    read_shipped,
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
_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_MODEL = re.compile(r"[ -~]{1,200}")
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
        hint = "use the runtime that lies in the bundle's own runtime/ folder"
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
        onnx, weights = self._file(top, "onnx", ""), self._file(top, "weights", "")
        opset = self._ranged(top, "opset", "", 9, 99)
        precision = reader.name(top, "precision", "")
        if reader.boolean(top, "strongly_typed", "") is False:
            self.add("recipe-typed", "strongly_typed", "must be true")
        padding = reader.boolean(top, "padding", "")
        tolerance = read_tolerance(top, reader, "recipe-tolerance")
        min_cosine = self._min_cosine()
        jetpack = self._version(top, "jetpack", "", may_be_empty=True)
        least, below = self._versions()
        device = self._device()
        inputs = self._tensors("inputs", self.manifest.inputs)
        outputs = self._tensors("outputs", self.manifest.outputs)
        profiles = self._profiles()
        builder = reader.mapping(top, "builder", "")
        level = workspace = None
        if builder is top.get("builder"):
            level = self._ranged(builder, "optimization_level", "builder", 0, 5)
            workspace = self._ranged(builder, "workspace_bytes", "builder", 1, MAX_BYTES)
        predicted = self._predicted()
        engine = self._engine()
        if reader.problems.items:
            return None
        assert opset is not None and precision is not None and padding is not None
        assert tolerance is not None
        assert device is not None and predicted is not None
        assert level is not None and workspace is not None
        return Recipe(
            onnx=onnx,
            weights=weights,
            opset=opset,
            precision=precision,
            padding=padding,
            tolerance=tolerance,
            min_cosine=min_cosine,
            jetpack=jetpack,
            least=least,
            below=below,
            device=device,
            inputs=inputs,
            outputs=outputs,
            profiles=tuple(profiles),
            optimization_level=level,
            workspace_bytes=workspace,
            predicted=predicted,
            engine=engine,
        )

    def _file(self, parent: Dict[str, Any], key: str, where: str) -> str:
        name = self.reader.string(parent, key, where)
        place = join(where, key)
        if name is None:
            return ""
        if "/" in name or check_path(name) is not None:
            self.add(
                "recipe-files", place, "{!r} isn't the bare name of a file".format(shorten(name))
            )
        elif sibling(self.variant, name) not in self.manifest.files:
            text = "{!r} isn't listed in the manifest's files"
            self.add("recipe-files", place, text.format(shorten(sibling(self.variant, name), 200)))
        return name

    def _engine(self) -> Optional[ShippedEngine]:
        if self.document.get("engine") is None:
            return None
        entry = self.reader.mapping(self.document, "engine", "")
        if entry is not self.document["engine"]:
            return None
        file = self._file(entry, "file", "engine")
        return read_shipped(self.reader, entry, file, self.manifest)

    def _ranged(
        self, parent: Dict[str, Any], key: str, where: str, least: int, most: int
    ) -> Optional[int]:
        value = self.reader.integer(parent, key, where)
        if value is not None and not least <= value <= most:
            text = "{} isn't within {}..{}".format(value, least, most)
            self.add("recipe-range", join(where, key), text)
        return value

    def _min_cosine(self) -> Optional[float]:
        value = self.reader.key(self.document, "min_cosine", "")
        if value is None:
            return None
        cosine: Optional[float] = self.reader.as_number(value, "min_cosine")
        if cosine is not None and not 0 <= cosine <= 1:
            self.add("recipe-tolerance", "min_cosine", "{} isn't within 0..1".format(cosine))
        return cosine

    def _version(
        self, parent: Dict[str, Any], key: str, where: str, may_be_empty: bool = False
    ) -> str:
        value = self.reader.string(parent, key, where)
        if value is not None and not _VERSION.fullmatch(value) and (value or not may_be_empty):
            text = "{!r} must look like 10.3".format(shorten(value))
            self.add("recipe-versions", join(where, key), text)
        return value or ""

    def _versions(self) -> Tuple[str, str]:
        entry = self.reader.mapping(self.document, "tensorrt", "")
        if entry is not self.document.get("tensorrt"):
            return "", ""
        least = self._version(entry, "least", "tensorrt")
        below = self._version(entry, "below", "tensorrt")
        formed = _VERSION.fullmatch(least) and _VERSION.fullmatch(below)
        if formed and version_pair(least) >= version_pair(below):
            text = "no version is at least {} and below {}".format(least, below)
            self.add("recipe-versions", "tensorrt", text)
        return least, below

    def _device(self) -> Optional[TargetDevice]:
        entry = self.reader.mapping(self.document, "device", "")
        if entry is not self.document.get("device"):
            return None
        name = self.reader.name(entry, "name", "device")
        capability = self._version(entry, "compute_capability", "device")
        sm_count = None
        if self.reader.key(entry, "sm_count", "device") is not None:
            sm_count = self._ranged(entry, "sm_count", "device", 1, 4096)
        memory = self._ranged(entry, "memory_bytes", "device", 1, MAX_BYTES)
        models = []
        for index, item in enumerate(self.reader.items(entry, "models", "device", 1, 16)):
            place = "device.models[{}]".format(index)
            model = self.reader.as_string(item, place)
            if model is not None and not _MODEL.fullmatch(model):
                text = "{!r} must be 1 to 200 printable ASCII characters".format(shorten(model))
                self.add("recipe-model", place, text)
            models.append(model or "")
        if name is None or memory is None:
            return None
        return TargetDevice(name, capability, sm_count, memory, tuple(models))

    def _tensors(self, key: str, specs: Sequence[TensorSpec]) -> Tuple[TensorType, ...]:
        result = []
        for index, value in enumerate(self.reader.items(self.document, key, "", 1, 64)):
            where = "{}[{}]".format(key, index)
            entry = self.reader.as_object(value, where)
            if entry is not value:
                continue
            name = self.reader.name(entry, "name", where)
            dtype = self.reader.string(entry, "dtype", where)
            if name is not None and dtype is not None:
                result.append(TensorType(name, dtype))
        wanted = [(item.name, item.dtype) for item in specs]
        found = [(item.name, item.dtype) for item in result]
        if found != wanted:
            text = "are {}, the manifest has {}"
            self.add("recipe-tensors", key, text.format(_pairs(found), _pairs(wanted)))
        return tuple(result)

    def _profiles(self) -> List[Dict[str, ShapeRange]]:
        buckets = self.manifest.buckets
        items = self.reader.items(self.document, "profiles", "", 1, 256)
        if "profiles" in self.document and len(items) != len(buckets):
            text = "{} profiles for {} buckets".format(len(items), len(buckets))
            self.add("recipe-profiles", "profiles", text)
        result = []
        names = [item.name for item in self.manifest.inputs]
        for index, (value, bucket) in enumerate(zip(items, buckets)):
            where = "profiles[{}]".format(index)
            entry = self.reader.as_object(value, where)
            if entry is not value:
                continue
            if entry.keys() != set(names):
                text = "has {}, must have {}"
                found = ", ".join(shorten(name) for name in sorted(entry)[:64]) or "none"
                self.add("recipe-profiles", where, text.format(found, ", ".join(names)))
            ranges = {}
            for spec in self.manifest.inputs:
                if spec.name in entry:
                    shapes = self._range(entry[spec.name], join(where, spec.name), spec, bucket)
                    if shapes is not None:
                        ranges[spec.name] = shapes
            result.append(ranges)
        return result

    def _range(
        self, value: object, where: str, spec: TensorSpec, bucket: BucketSpec
    ) -> Optional[ShapeRange]:
        entry = self.reader.as_object(value, where)
        if entry is not value:
            return None
        shapes = []
        for key in ("min", "opt", "max"):
            items = self.reader.items(entry, key, where, 0, 8)
            place = join(where, key)
            sizes = [self.reader.as_integer(item, place) for item in items]
            shapes.append(tuple(size for size in sizes if size is not None))
        if any(len(shape) != len(spec.shape) for shape in shapes):
            text = "min, opt and max must have {} sizes each".format(len(spec.shape))
            self.add("recipe-profile", where, text)
            return None
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

    def _predicted(self) -> Optional[Predicted]:
        entry = self.reader.mapping(self.document, "predicted", "")
        if entry is not self.document.get("predicted"):
            return None
        build = self._ranged(entry, "build_bytes", "predicted", 0, MAX_BYTES)
        engine = self._ranged(entry, "engine_bytes", "predicted", 0, MAX_BYTES)
        scratch = []
        place = "predicted.scratch_bytes"
        for item in self.reader.items(entry, "scratch_bytes", "predicted", 1, 256):
            size = self.reader.as_integer(item, place)
            if size is not None and not 0 <= size <= MAX_BYTES:
                self.add("recipe-range", place, "{} isn't within 0..{}".format(size, MAX_BYTES))
            scratch.append(size or 0)
        if scratch and len(scratch) != len(self.manifest.buckets):
            text = "{} sizes for {} buckets".format(len(scratch), len(self.manifest.buckets))
            self.add("recipe-profiles", place, text)
        seconds = self.reader.key(entry, "build_seconds", "predicted")
        if seconds is not None:
            seconds = self.reader.as_number(seconds, "predicted.build_seconds")
            if seconds is not None and not seconds >= 0:
                self.add(
                    "recipe-range", "predicted.build_seconds", "{} is negative".format(seconds)
                )
        how = self.reader.string(entry, "how", "predicted")
        if build is None or engine is None or how is None:
            return None
        return Predicted(build, engine, tuple(scratch), seconds, how)


def _pairs(items: Sequence[Tuple[str, str]]) -> str:
    return ", ".join("{} {}".format(name, shorten(dtype)) for name, dtype in items) or "none"
