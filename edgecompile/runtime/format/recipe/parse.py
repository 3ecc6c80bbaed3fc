"""Reads recipe.json: what a device builds the TensorRT engine of a bundle from.

No engine can be built on another machine than the one that runs it, so a bundle holds the ONNX, its
weights and this recipe. Reading it is total, like the manifest's: whatever the bytes are, the result
is a valid ``Recipe`` or a ``BundleError`` that lists every broken rule of FORMAT.md.
"""

import os
import posixpath
import re
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ...base.errors import FormatVersionError
from ..document import Field, Problems, parse_json, shorten
from ..files.folder import BundleFolder
from ..manifest.parse import check_path, read_tolerance
from ..manifest.schema import BucketSpec, Manifest, TensorSpec, Variant
from ..sums import size_span
from .schema import (
    RECIPE_VERSION,
    OtherForm,
    Predicted,
    Recipe,
    ShapeRange,
    Side,
    TargetDevice,
    TensorType,
    version_pair,
)

MAX_RECIPE_BYTES = 4 << 20
MAX_SIZE = 2**31 - 1
MAX_BYTES = 1 << 48
MAX_SMS = 4096
_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_TEXT = re.compile(r"[ -~]{1,200}")
_HINT = "the recipe was written wrongly or changed; build the bundle again"


def sibling(variant: Variant, name: str) -> str:
    """The path in the bundle of a file that lies beside the recipe of ``variant``."""
    return posixpath.join(posixpath.dirname(variant.recipe), name)


def read_recipe(folder: BundleFolder, variant: Variant) -> Recipe:
    """Reads the recipe of a variant of the backend ``tensorrt``, its hash compared first.

    Raises:
        DamagedBundleError: the file is missing, or differs from its size or hash.
        FormatVersionError: the recipe has a version that this runtime doesn't know.
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
        source: the name of the bytes in an error.

    Raises:
        FormatVersionError: the recipe has a version that this runtime doesn't know.
        BundleError: anything else; lists every broken rule.
    """
    problems = Problems(source)
    document = Field(problems, parse_json(data, source, MAX_RECIPE_BYTES))
    version = document.at("recipe_version").integer()
    problems.raise_if_any()
    if version != RECIPE_VERSION:
        text = "{}: the recipe has version {}, this runtime knows version {} [recipe-version]"
        hint = "use the runtime in the bundle's own runtime/ folder"
        raise FormatVersionError(text.format(source, version, RECIPE_VERSION), hint)
    recipe = _RecipeReader(document, manifest, variant).read()
    problems.raise_if_any(hint=_HINT)
    assert recipe is not None
    return recipe


class _RecipeReader:
    def __init__(self, document: Field, manifest: Manifest, variant: Variant) -> None:
        self.document = document
        self.manifest = manifest
        self.variant = variant

    def read(self) -> Optional[Recipe]:
        """The recipe; None when a problem was noted."""
        top = self.document
        values: Dict[str, Any] = {
            **self._form(top),
            "weights": self._file(top.at("weights")),
            "precision": top.at("precision").name(),
            "padding": top.at("padding").boolean(),
            "tolerance": read_tolerance(top.at("tolerance"), "recipe-tolerance"),
            "min_cosine": _optional(top.at("min_cosine")),
            "inputs": self._tensors(top.at("inputs"), self.manifest.inputs),
            "outputs": self._tensors(top.at("outputs"), self.manifest.outputs),
            "profiles": self._profiles(top.at("profiles")),
        }
        top.find("min_cosine").check_range(values["min_cosine"], 0, 1, "recipe-tolerance")
        values["device"] = _device(top.at("device").object())
        builder = top.at("builder").object()
        values["optimization_level"] = _ranged(builder.at("optimization_level"), 0, 5)
        values["workspace_bytes"] = _ranged(builder.at("workspace_bytes"), 1, MAX_BYTES)
        values["predicted"] = self._predicted(top.at("predicted").object())
        if top.find("also").given:
            forms = [self._form(entry) for entry in top.find("also").objects(1, 8)]
            values["also"] = () if top.problems.items else tuple(OtherForm(**f) for f in forms)
        if top.find("sides").given:
            values["sides"] = self._sides(top.find("sides"))
        return None if top.problems.items else Recipe(**values)

    def _form(self, entry: Field) -> Dict[str, Any]:
        """The keys that depend on the version of TensorRT."""
        return {
            **self._graph(entry),
            "jetpack": _version(entry.at("jetpack"), may_be_empty=True),
            **_versions(entry.at("tensorrt").object()),
        }

    def _graph(self, entry: Field) -> Dict[str, Any]:
        typed, float32 = entry.at("strongly_typed"), entry.find("float32")
        if typed.boolean() is bool(float32):
            typed.refuse("recipe-typed", "must be true, or false and float32 a list")
        return {
            "onnx": self._file(entry.at("onnx")),
            "opset": _ranged(entry.at("opset"), 9, 99),
            "float32": float32.strings(0, 65536) if float32 else None,
        }

    def _sides(self, entries: Field) -> Tuple[Side, ...]:
        """The graphs of some buckets; each bucket has one graph, and the recipe's own has one bucket at least."""
        count = len(self.manifest.buckets)
        sides: List[Side] = []
        seen: Set[int] = set()
        for entry in entries.objects(1, 255):
            listed = entry.at("buckets")
            buckets = listed.integers(1, 256)
            if list(buckets) != sorted(set(buckets) - seen) or any(
                not 0 <= index < count for index in buckets
            ):
                text = "must ascend, below {}, and be no other side's".format(count)
                listed.refuse("recipe-sides", text)
            seen.update(buckets)
            graph = self._graph(entry)
            if not entries.problems.items:
                sides.append(Side(buckets=buckets, **graph))
        if len(seen) >= count:
            entries.refuse("recipe-sides", "no bucket is left for the recipe's own ONNX")
        if self.document.find("also").given:
            text = "the recipe has the key also, which allows no sides"
            entries.refuse("recipe-sides", text)
        return tuple(sides)

    def _file(self, field: Field) -> str:
        name = field.string()
        if name is None:
            return ""
        if "/" in name or check_path(name) is not None:
            text = "{!r} isn't the bare name of a file"
            field.refuse("recipe-files", text.format(shorten(name)))
        elif sibling(self.variant, name) not in self.manifest.files:
            text = "{!r} isn't listed in the manifest's files"
            field.refuse("recipe-files", text.format(shorten(sibling(self.variant, name), 200)))
        return name

    def _tensors(self, entries: Field, specs: Sequence[TensorSpec]) -> Tuple[TensorType, ...]:
        result = []
        for entry in entries.objects(1, 64):
            name, dtype = entry.at("name").name(), entry.at("dtype").string()
            if name is not None and dtype is not None:
                result.append(TensorType(name, dtype))
        listed = [(item.name, item.dtype) for item in result]
        expected = [(item.name, item.dtype) for item in specs]
        if listed != expected:
            text = "are {}, the manifest has {}"
            entries.refuse("recipe-tensors", text.format(_pairs(listed), _pairs(expected)))
        return tuple(result)

    def _check_count(self, field: Field, things: str, rule: str) -> None:
        """The list has one entry for each bucket."""
        count, buckets = field.value, len(self.manifest.buckets)
        if isinstance(count, list) and count and len(count) != buckets:
            field.refuse(rule, "{} {} for {} buckets".format(len(count), things, buckets))

    def _profiles(self, field: Field) -> Tuple[Dict[str, ShapeRange], ...]:
        inputs = self.manifest.inputs
        self._check_count(field, "profiles", "recipe-profiles")
        result = []
        for entry, bucket in zip(field.items(1, 256), self.manifest.buckets):
            if entry.object():
                _check_names(entry, inputs, "recipe-profiles")
                specs = [spec for spec in inputs if entry.find(spec.name)]
                result.append({s.name: self._range(entry.find(s.name), s, bucket) for s in specs})
        return tuple(result)

    def _range(self, field: Field, spec: TensorSpec, bucket: BucketSpec) -> ShapeRange:
        entry = field.object()
        if not entry:
            return ShapeRange((), (), ())
        shapes = [entry.at(key).integers(0, 8) for key in ("min", "opt", "max")]
        if any(len(shape) != len(spec.shape) for shape in shapes):
            text = "min, opt and max must have {} sizes each".format(len(spec.shape))
            entry.refuse("recipe-profile", text)
            return ShapeRange((), (), ())
        padded = bucket.padded(self.manifest.length_axis)
        for index, dim in enumerate(spec.shape):
            lo, opt, hi = (shape[index] for shape in shapes)
            if isinstance(dim, int):
                lowest = highest = dim
            elif dim in bucket.axes:
                extent = bucket.axes[str(dim)]
                # What is padded comes at its upper edge only.
                lowest, highest = extent.hi if dim in padded else extent.lo, extent.hi
            else:
                lowest, highest = size_span(str(dim), bucket.axes)
            if not 1 <= lo <= opt <= hi <= MAX_SIZE or lo > lowest or hi < highest:
                text = "dimension {}: {}, {}, {} must ascend from at most {} to at least {}"
                entry.refuse("recipe-profile", text.format(index, lo, opt, hi, lowest, highest))
        return ShapeRange(*shapes)

    def _predicted(self, entry: Field) -> Predicted:
        scratch = entry.at("scratch_bytes")
        sizes = scratch.integers(1, 256)
        for size in sizes:
            scratch.check_range(size, 0, MAX_BYTES, "recipe-range")
        self._check_count(scratch, "sizes", "recipe-profiles")
        host, seconds = entry.find("host_bytes"), _optional(entry.at("build_seconds"))
        if seconds is not None and not seconds >= 0:
            text = "{} is negative".format(seconds)
            entry.find("build_seconds").refuse("recipe-range", text)
        return Predicted(
            build_bytes=_ranged(entry.at("build_bytes"), 0, MAX_BYTES),
            engine_bytes=_ranged(entry.at("engine_bytes"), 0, MAX_BYTES),
            scratch_bytes=sizes,
            build_seconds=seconds,
            how=entry.at("how").string() or "",
            host_bytes=_ranged(host, 0, MAX_BYTES) if host.given else None,
        )


def _ranged(field: Field, least: int, most: int) -> int:
    return field.within(least, most, "recipe-range") or 0


def _optional(field: Field) -> Optional[float]:
    """A number, or None where it is null."""
    return field.number() if field.given else None


def _version(field: Field, may_be_empty: bool = False) -> str:
    if may_be_empty and field.value == "":
        return ""
    return field.formed(_VERSION, "recipe-versions", "must look like 10.3") or ""


def _versions(entry: Field) -> Dict[str, Any]:
    least, below = _version(entry.at("least")), _version(entry.at("below"))
    formed = _VERSION.fullmatch(least) and _VERSION.fullmatch(below)
    if formed and version_pair(least) >= version_pair(below):
        text = "no version is at least {} and below {}".format(least, below)
        entry.refuse("recipe-versions", text)
    return {"least": least, "below": below}


def _device(entry: Field) -> TargetDevice:
    count = entry.at("sm_count")
    models = entry.at("models").items(1, 16)
    return TargetDevice(
        name=entry.at("name").name() or "",
        compute_capability=_version(entry.at("compute_capability")),
        sm_count=_ranged(count, 1, MAX_SMS) if count.given else None,
        memory_bytes=_ranged(entry.at("memory_bytes"), 1, MAX_BYTES),
        models=tuple(_text(item, "recipe-model") for item in models),
    )


def _check_names(entry: Field, specs: Sequence[TensorSpec], rule: str) -> bool:
    """Whether the keys are the names of these inputs and outputs."""
    names = [item.name for item in specs]
    if entry.value.keys() == set(names):
        return True
    listed = ", ".join(shorten(name) for name in sorted(entry.value)[:64]) or "none"
    entry.refuse(rule, "has {}, must have {}".format(listed, ", ".join(names)))
    return False


def _text(field: Field, rule: str) -> str:
    return field.formed(_TEXT, rule, "must be 1 to 200 printable ASCII characters") or ""


def _pairs(items: Sequence[Tuple[str, str]]) -> str:
    return ", ".join("{} {}".format(name, shorten(dtype)) for name, dtype in items) or "none"
