"""Reads manifest.json: every rule of FORMAT.md about it has one check here and one id.

The reading is total: whatever the bytes are, the result is a valid ``Manifest`` or a
``BundleError`` that lists every broken rule with its key path and the numbers.
"""

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...base.errors import FormatVersionError
from ...base.installation import newer_bundle_hint
from ..document import SHA256, Field, Problems, parse_json, shorten
from .generation import read_generation
from .policy import read_policy
from .schema import (
    AOTI_CPU,
    FORMAT_VERSION,
    MANIFEST_NAME,
    TENSORRT,
    TORCH,
    TRITON,
    FileEntry,
    GoldenCase,
    GpuSpec,
    Manifest,
    Tolerance,
    Variant,
)
from .signature import SignatureReader
from .speech import read_speech
from .state import read_state
from .text import read_labels, read_ranges, read_text

MAX_MANIFEST_BYTES = 4 << 20
MAX_ALTERNATIVES = 8
_GLIBC = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9._+@=,~-]{1,255}")


def check_path(path: str) -> Optional[str]:
    """The fault of a path in a bundle, or None.

    Relative, at most 1024 characters, segments of 1 to 255 of ``A-Z a-z 0-9 . _ + @ = , ~ -``
    separated by single slashes, none of them "." or "..".
    """
    if len(path) > 1024:
        return "has {} characters, at most 1024".format(len(path))
    for segment in path.split("/"):
        if segment in ("", ".", "..") or not _SEGMENT.fullmatch(segment):
            return "has the segment {!r}".format(shorten(segment))
    return None


def parse_manifest(data: bytes, source: str = MANIFEST_NAME) -> Manifest:
    """Parses and validates the bytes of a manifest.

    Args:
        data: the bytes of manifest.json.
        source: their name in an error, usually the path.

    Raises:
        FormatVersionError: written in a format version that this runtime doesn't know.
        BundleError: anything else; lists every broken rule.
    """
    problems = Problems(source)
    hint = "copy the bundle again, or build it again"
    document = Field(problems, parse_json(data, source, MAX_MANIFEST_BYTES, hint))
    version = document.at("format_version").integer()
    problems.raise_if_any()
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            "{}: the bundle has format version {}, this runtime knows version {} "
            "[version-known]".format(source, version, FORMAT_VERSION),
            newer_bundle_hint(document.value.get("built_by"))
            or "python3 NAME.ecb COMMAND uses the bundle's own runtime; or build the bundle again with "
            "the edgecompile that is installed here",
        )
    manifest = _read_manifest(document)
    problems.raise_if_any(
        hint=newer_bundle_hint(document.value.get("built_by"))
        or "the bundle was written wrongly or changed; build it again"
    )
    return manifest


def read_tolerance(field: Field, rule: str) -> Optional[Tolerance]:
    """A ``tolerance`` of a manifest or a recipe; None when a problem was noted.

    Args:
        field: the tolerance.
        rule: the id that a negative number breaks.
    """
    values = []
    entry = field.object()
    for key in ("atol", "rtol"):
        number = entry.at(key)
        value = number.number()
        if value is not None and not value >= 0:
            number.refuse(rule, "{} is negative".format(value))
        values.append(value)
    if values[0] is None or values[1] is None:
        return None
    return Tolerance(values[0], values[1])


def _read_manifest(top: Field) -> Manifest:
    """The manifest, read in the order in which keys depend on each other; worth nothing when a problem
    was noted."""
    name = top.at("name").name()
    built_by = _strings(top.find("built_by"))
    precision = top.at("precision").name()
    files = _read_files(top.at("files"))
    signature = SignatureReader(top).read()
    probes = _read_paths(top.at("probes"), files)
    weights = _read_paths(top.at("weights"), files)
    if precision is not None and precision not in weights:
        text = "no weights for the precision {!r}".format(precision)
        top.find("weights").refuse("weights-precision", text)
    n_buckets = len(signature.buckets)
    variants = _VariantReader(files, probes, weights, n_buckets).read(top.at("variants"))
    golden = tuple(_read_golden(top.at("golden"), n_buckets, files))
    tolerance = read_tolerance(top.at("tolerance"), "tolerance-range")
    generation = read_generation(top.find("generation"), signature, files)
    return Manifest(
        name=name or "",
        precision=precision or "",
        inputs=signature.inputs,
        outputs=signature.outputs,
        axes=signature.axes,
        length_axis=signature.length_axis,
        buckets=signature.buckets,
        variants=tuple(variants),
        probes=probes,
        weights=weights,
        golden=golden,
        tolerance=tolerance or Tolerance(0.0, 0.0),
        files=files,
        built_by=built_by,
        plan=top.find("plan").mapping(),
        expected=top.find("expected").mapping(),
        generation=generation,
        text=read_text(top.find("text"), files, signature),
        labels=read_labels(top.find("labels"), signature),
        ranges=read_ranges(top.find("ranges"), signature),
        state=read_state(top, signature),
        policy=read_policy(top, signature),
        speech=read_speech(top.find("speech"), generation, signature, files),
    )


def _strings(entries: Field) -> Dict[str, str]:
    texts = {key: value.string() for key, value in entries.members()}
    return {key: text for key, text in texts.items() if text is not None}


def _read_paths(entries: Field, files: Mapping[str, FileEntry]) -> Dict[str, str]:
    """Paths of listed files by name."""
    result = {}
    for name, value in entries.members(1, 64):
        if value.string() is not None and value.check_name(name):
            result[name] = value.path(files)
    return result


def _read_files(entries: Field) -> Dict[str, FileEntry]:
    result = {}
    for path, entry in entries.members(1, 65536):
        wrong = check_path(path)
        if wrong is not None:
            entry.refuse("path-form", wrong)
        if path == MANIFEST_NAME:
            entry.refuse("path-manifest", "the manifest can't list itself")
        if not entry.object():
            continue
        field = entry.at("size")
        size = field.integer()
        if size is not None and size < 0:
            field.refuse("file-size", "{} is negative".format(size))
        text = "isn't 64 lower-case hex digits"
        digest = entry.at("sha256").formed(SHA256, "file-sha256", text)
        # A broken entry still counts as listed: its own problem is enough.
        result[path] = FileEntry(size or 0, digest or "")
    return result


def _read_golden(
    entries: Field, n_buckets: int, files: Mapping[str, FileEntry]
) -> List[GoldenCase]:
    result = []
    seen = set()
    for entry in entries.objects(0, 65536):
        field = entry.at("bucket")
        bucket, case = field.integer(), entry.at("case").name()
        path = entry.at("file").path(files)
        if bucket is not None and not 0 <= bucket < n_buckets:
            text = "there is no bucket {}, only 0..{}".format(bucket, n_buckets - 1)
            field.refuse("golden-bucket", text)
        if bucket is None or case is None:
            continue
        if (bucket, case) in seen:
            text = "the case {!r} of bucket {} occurs twice".format(case, bucket)
            entry.refuse("name-unique", text)
        seen.add((bucket, case))
        result.append(GoldenCase(bucket, case, path))
    return result


class _VariantReader:
    """Reads the variants; what was read before them tells what they may name."""

    def __init__(
        self,
        files: Mapping[str, FileEntry],
        probes: Mapping[str, str],
        weights: Mapping[str, str],
        n_buckets: int,
    ) -> None:
        self.files, self.probes, self.weights = files, probes, weights
        self.n_buckets = n_buckets

    def read(self, entries: Field) -> List[Variant]:
        """All of them."""
        result: List[Variant] = []
        for entry in entries.objects(1, 64):
            name = entry.at("name").name()
            if name is not None and any(name == item.name for item in result):
                entry.find("name").refuse("name-unique", "{!r} occurs twice".format(name))
            arch, backend = entry.at("arch").name(), entry.at("backend").name()
            requires = entry.at("requires")
            features = requires.strings(0, 256)
            for feature in features:
                requires.check_name(feature)
            glibc = None
            if entry.at("glibc").given:
                text = "must look like 2.34"
                glibc = entry.find("glibc").formed(_GLIBC, "variant-glibc", text)
            rank = entry.at("rank").integer()
            parts: Dict[str, Any] = {}
            if backend in (AOTI_CPU, TORCH, TRITON):
                if arch is not None and arch not in self.probes:
                    text = "no probe for the architecture {!r}".format(arch)
                    entry.refuse("variant-probe", text)
                if backend == TORCH:
                    parts["torch"] = entry.at("torch").name() or ""
                else:
                    parts["runtime"] = entry.at("runtime").path(self.files)
                parts["programs"] = self._programs(entry.at("programs"))
                if backend == TRITON:
                    parts["gpu"] = self._gpu(entry.at("gpu").object())
                    if entry.find("alternatives"):
                        parts["alternatives"] = self._alternatives(entry.find("alternatives"))
            elif backend == TENSORRT:
                parts["recipe"] = entry.at("recipe").path(self.files)
            result.append(
                Variant(
                    name=name or "",
                    arch=arch or "",
                    backend=backend or "",
                    requires=features,
                    glibc=glibc,
                    rank=rank or 0,
                    **parts,
                )
            )
        return result

    def _programs(self, field: Field) -> Tuple[str, ...]:
        programs = tuple(item.path(self.files) for item in field.items(0, 256))
        if isinstance(field.value, list) and len(field.value) != self.n_buckets:
            text = "{} programs for {} buckets".format(len(field.value), self.n_buckets)
            field.refuse("variant-programs", text)
        return programs

    def _alternatives(self, field: Field) -> Tuple[Tuple[str, ...], ...]:
        lists = [
            tuple(path.path(self.files) for path in item.items(0, MAX_ALTERNATIVES))
            for item in field.items(0, 256)
        ]
        if isinstance(field.value, list) and len(lists) != self.n_buckets:
            text = "{} lists of alternatives for {} buckets".format(len(lists), self.n_buckets)
            field.refuse("variant-programs", text)
        return tuple(lists)

    def _gpu(self, entry: Field) -> Optional[GpuSpec]:
        """A variant's requirements of a GPU; None when a problem was noted."""
        if not entry:
            return None
        before = entry.problems.count
        capabilities = entry.at("compute_capabilities").strings(0, 32)
        least = entry.at("ptx")
        ptx = least.string() if least.given else None
        if not least.given and not capabilities:
            entry.refuse("variant-gpu", "has neither machine code nor PTX")
        for item in (*capabilities, ptx):
            if item is not None and not _CAPABILITY.fullmatch(item):
                text = "{!r} must look like 8.7".format(shorten(item, 80))
                entry.refuse("variant-gpu", text)
        driver = entry.at("driver").within(11000, 99999, "variant-gpu")
        precision = entry.at("precision").name()
        if precision is not None and precision not in self.weights:
            text = "no weights for the precision {!r}".format(precision)
            entry.find("precision").refuse("weights-precision", text)
        tolerance = read_tolerance(entry.at("tolerance"), "tolerance-range")
        cosine = None
        if entry.find("min_cosine").given:
            cosine = entry.find("min_cosine").number()
            entry.find("min_cosine").check_range(cosine, -1, 1, "tolerance-range")
        padding = entry.at("padding").boolean()
        checks: Tuple[str, ...] = ()
        if entry.find("checks"):
            checks = entry.find("checks").strings(0, 16)
            for item in checks:
                entry.find("checks").check_name(item)
        graphs = entry.find("graphs").boolean() if entry.find("graphs") else True
        cublaslt = entry.find("cublaslt").boolean() if entry.find("cublaslt") else False
        if entry.problems.count > before:
            return None
        assert driver is not None and precision is not None and tolerance is not None
        return GpuSpec(
            capabilities,
            ptx,
            driver,
            precision,
            tolerance,
            cosine,
            bool(padding),
            checks,
            bool(graphs),
            bool(cublaslt),
        )
