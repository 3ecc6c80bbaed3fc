"""Reads manifest.json: every rule of FORMAT.md about it has one check here and one id.

The reading is total: whatever the bytes are, the result is a valid ``Manifest`` or a
``BundleError`` that lists every broken rule with its key path and the numbers.
"""

import re
from typing import Any, Dict, List, Optional, Tuple

from ..errors import FormatVersionError
from .document import Problems, Reader, join, parse_json, shorten
from .generation import read_generation
from .schema import (
    AOTI_CPU,
    FORMAT_VERSION,
    GPU_BACKENDS,
    MANIFEST_NAME,
    TENSORRT,
    TORCH,
    TRITON,
    BucketSpec,
    Extent,
    FileEntry,
    GenerationSpec,
    GoldenCase,
    GpuSpec,
    Manifest,
    TensorSpec,
    Tolerance,
    Variant,
)
from .signature import SignatureReader
from .text import read_labels, read_text

__all__ = [
    "AOTI_CPU",
    "FORMAT_VERSION",
    "GPU_BACKENDS",
    "MANIFEST_NAME",
    "MAX_MANIFEST_BYTES",
    "TENSORRT",
    "TORCH",
    "TRITON",
    "BucketSpec",
    "Extent",
    "FileEntry",
    "GenerationSpec",
    "GoldenCase",
    "GpuSpec",
    "Manifest",
    "TensorSpec",
    "Tolerance",
    "Variant",
    "check_path",
    "parse_manifest",
    "read_tolerance",
]

MAX_MANIFEST_BYTES = 4 << 20
_GLIBC = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
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
        source: what to call them in an error, usually the path.

    Raises:
        FormatVersionError: written in a format version that this runtime doesn't know.
        BundleError: anything else; lists every broken rule.
    """
    document = parse_json(data, source, MAX_MANIFEST_BYTES)
    problems = Problems(source)
    reader = Reader(problems)
    version = reader.integer(document, "format_version", "")
    problems.raise_if_any()
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            "{}: the bundle has format version {}, this runtime knows version {} "
            "[version-known]".format(source, version, FORMAT_VERSION),
            "use the runtime in the bundle's own runtime/ folder, or build the bundle "
            "again with the edgecompile that is installed here",
        )
    manifest = _ManifestReader(document, reader).read()
    problems.raise_if_any(hint="the bundle was written wrongly or changed; build it again")
    assert manifest is not None
    return manifest


def read_tolerance(
    document: Dict[str, Any], reader: Reader, rule: str, where: str = ""
) -> Optional[Tolerance]:
    """The ``tolerance`` of a document, a manifest or a recipe; None when a problem was noted.

    Args:
        document: the whole document.
        reader: gets the problems.
        rule: the id that a negative number breaks.
        where: the place of ``document`` in a larger one.
    """
    entry = reader.mapping(document, "tolerance", where)
    if entry is not document.get("tolerance"):
        return None
    values = []
    place = join(where, "tolerance")
    for key in ("atol", "rtol"):
        value = reader.number(entry, key, place)
        if value is not None and not value >= 0:
            reader.problems.add(rule, join(place, key), "{} is negative".format(value))
        values.append(value)
    if values[0] is None or values[1] is None:
        return None
    return Tolerance(values[0], values[1])


class _ManifestReader:
    """Reads the keys in the order in which they depend on each other."""

    def __init__(self, document: Dict[str, Any], reader: Reader) -> None:
        self.document = document
        self.reader = reader
        self.add = reader.problems.add
        self.files: Dict[str, FileEntry] = {}

    def read(self) -> Optional[Manifest]:
        """The manifest; None when a problem was noted."""
        top, reader = self.document, self.reader
        name = reader.name(top, "name", "")
        built_by = self._strings("built_by", optional=True)
        precision = reader.name(top, "precision", "")
        self.files = self._files()
        signature = SignatureReader(top, reader).read()
        probes = self._paths("probes")
        weights = self._paths("weights")
        if precision is not None and precision not in weights:
            text = "no weights for the precision {!r}".format(precision)
            self.add("weights-precision", "weights", text)
        variants = self._variants(len(signature.buckets), probes, weights)
        golden = self._golden(len(signature.buckets))
        tolerance = read_tolerance(top, reader, "tolerance-range")
        plan = reader.mapping(top, "plan", "", optional=True)
        expected = reader.mapping(top, "expected", "", optional=True)
        generation = read_generation(top, reader, signature, self.files)
        texts = read_text(top, reader, self.files, signature)
        labels = read_labels(top, reader, signature)
        if reader.problems.items:
            return None
        assert name is not None and precision is not None and tolerance is not None
        return Manifest(
            name=name,
            precision=precision,
            inputs=signature.inputs,
            outputs=signature.outputs,
            axes=signature.axes,
            length_axis=signature.length_axis,
            buckets=signature.buckets,
            variants=tuple(variants),
            probes=probes,
            weights=weights,
            golden=tuple(golden),
            tolerance=tolerance,
            files=self.files,
            built_by=built_by,
            plan=plan,
            expected=expected,
            generation=generation,
            text=texts,
            labels=labels,
        )

    def _strings(self, key: str, optional: bool) -> Dict[str, str]:
        entries = self.reader.mapping(self.document, key, "", optional)
        result = {}
        for name, value in entries.items():
            text = self.reader.as_string(value, join(key, name))
            if text is not None:
                result[name] = text
        return result

    def _paths(self, key: str) -> Dict[str, str]:
        result = {}
        entries = self._strings(key, optional=False)
        for name, path in entries.items():
            if self.reader.check_name(name, join(key, name)):
                self.reader.check_listed(path, join(key, name), self.files)
                result[name] = path
        if isinstance(self.document.get(key), dict):
            self.reader.count(len(self.document[key]), key, 1, 64)
        return result

    def _path(self, entry: Dict[str, Any], key: str, where: str) -> str:
        """A path that is listed in files, under ``key``."""
        path = self.reader.string(entry, key, where)
        if path is not None:
            self.reader.check_listed(path, join(where, key), self.files)
        return path or ""

    def _files(self) -> Dict[str, FileEntry]:
        entries = self.reader.mapping(self.document, "files", "")
        if "files" in self.document:
            self.reader.count(len(entries), "files", 1, 65536)
        result = {}
        for path, value in entries.items():
            where = join("files", path)
            wrong = check_path(path)
            if wrong is not None:
                self.add("path-form", where, wrong)
            if path == MANIFEST_NAME:
                self.add("path-manifest", where, "the manifest can't list itself")
            entry = self.reader.as_object(value, where)
            if entry is not value:
                continue
            size = self.reader.integer(entry, "size", where)
            if size is not None and size < 0:
                self.add("file-size", join(where, "size"), "{} is negative".format(size))
            digest = self.reader.string(entry, "sha256", where)
            text = "isn't 64 lower-case hex digits"
            self.reader.check_form(digest, join(where, "sha256"), _SHA256, "file-sha256", text)
            # A broken entry still counts as listed: its own problem is enough.
            result[path] = FileEntry(size or 0, digest or "")
        return result

    def _variants(
        self, n_buckets: int, probes: Dict[str, str], weights: Dict[str, str]
    ) -> List[Variant]:
        result: List[Variant] = []
        for where, entry in self.reader.objects(self.document, "variants", "", 1, 64):
            name = self.reader.name(entry, "name", where)
            if name is not None and any(name == item.name for item in result):
                self.add("name-unique", join(where, "name"), "{!r} occurs twice".format(name))
            arch = self.reader.name(entry, "arch", where)
            backend = self.reader.name(entry, "backend", where)
            features = self.reader.strings(entry, "requires", where, 0, 256)
            for feature in features:
                self.reader.check_name(feature, join(where, "requires"))
            glibc = self._glibc(entry, where)
            rank = self.reader.integer(entry, "rank", where)
            parts: Dict[str, Any] = {}
            if backend in (AOTI_CPU, TORCH, TRITON):
                if arch is not None and arch not in probes:
                    text = "no probe for the architecture {!r}".format(arch)
                    self.add("variant-probe", where, text)
                if backend == TORCH:
                    parts["torch"] = self.reader.name(entry, "torch", where) or ""
                else:
                    parts["runtime"] = self._path(entry, "runtime", where)
                parts["programs"] = self._programs(entry, where, n_buckets)
                if backend == TRITON:
                    parts["gpu"] = self._gpu(entry, where, weights)
            elif backend == TENSORRT:
                parts["recipe"] = self._path(entry, "recipe", where)
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

    def _gpu(
        self, variant: Dict[str, Any], where: str, weights: Dict[str, str]
    ) -> Optional[GpuSpec]:
        """What a variant needs of a GPU; None when a problem was noted."""
        reader, entry = self.reader, self.reader.mapping(variant, "gpu", where)
        if entry is not variant.get("gpu"):
            return None
        where = join(where, "gpu")
        before = reader.problems.count
        capabilities = reader.strings(entry, "compute_capabilities", where, 0, 32)
        ptx = None
        if reader.key(entry, "ptx", where) is not None:
            ptx = reader.string(entry, "ptx", where)
        elif not capabilities:
            self.add("variant-gpu", where, "has neither machine code nor PTX")
        for item in (*capabilities, ptx):
            reader.check_form(item, where, _CAPABILITY, "variant-gpu", "must look like 8.7")
        driver = reader.within(entry, "driver", where, 11000, 99999, "variant-gpu")
        precision = reader.name(entry, "precision", where)
        if precision is not None and precision not in weights:
            text = "no weights for the precision {!r}".format(precision)
            self.add("weights-precision", join(where, "precision"), text)
        tolerance = read_tolerance(entry, reader, "tolerance-range", where)
        cosine = None
        if entry.get("min_cosine") is not None:
            cosine = reader.number(entry, "min_cosine", where)
            if cosine is not None:
                reader.check_range(cosine, join(where, "min_cosine"), -1, 1, "tolerance-range")
        padding = reader.boolean(entry, "padding", where)
        checks: Tuple[str, ...] = ()
        if "checks" in entry:
            checks = reader.strings(entry, "checks", where, 0, 16)
            for item in checks:
                reader.check_name(item, join(where, "checks"))
        if reader.problems.count > before:
            return None
        assert driver is not None and precision is not None and tolerance is not None
        return GpuSpec(
            capabilities, ptx, driver, precision, tolerance, cosine, bool(padding), checks
        )

    def _glibc(self, entry: Dict[str, Any], where: str) -> Optional[str]:
        if self.reader.key(entry, "glibc", where) is None:
            return None
        text = self.reader.string(entry, "glibc", where)
        place = join(where, "glibc")
        self.reader.check_form(text, place, _GLIBC, "variant-glibc", "must look like 2.34")
        return text

    def _programs(self, entry: Dict[str, Any], where: str, n_buckets: int) -> Tuple[str, ...]:
        place = join(where, "programs")
        programs = self.reader.strings(entry, "programs", where, 0, 256)
        for i, path in enumerate(programs):
            self.reader.check_listed(path, "{}[{}]".format(place, i), self.files)
        listed = entry.get("programs")
        if isinstance(listed, list) and len(listed) != n_buckets:
            text = "{} programs for {} buckets".format(len(listed), n_buckets)
            self.add("variant-programs", place, text)
        return programs

    def _golden(self, n_buckets: int) -> List[GoldenCase]:
        result = []
        seen = set()
        for where, entry in self.reader.objects(self.document, "golden", "", 0, 65536):
            bucket = self.reader.integer(entry, "bucket", where)
            case = self.reader.name(entry, "case", where)
            path = self._path(entry, "file", where)
            if bucket is not None and not 0 <= bucket < n_buckets:
                text = "there is no bucket {}, only 0..{}".format(bucket, n_buckets - 1)
                self.add("golden-bucket", join(where, "bucket"), text)
            if bucket is None or case is None:
                continue
            if (bucket, case) in seen:
                text = "the case {!r} of bucket {} occurs twice".format(case, bucket)
                self.add("name-unique", where, text)
            seen.add((bucket, case))
            result.append(GoldenCase(bucket, case, path))
        return result
