"""Finds the layers of a bundle in an image layout of the OCI, and checks them before anything of them is used."""

import hashlib
import os
import platform
import re
from typing import List, NamedTuple, Optional, Tuple

from ..base.errors import BundleError, DamagedBundleError
from ..cpu.host import architecture
from ..format.document import Field, Problems, parse_json, shorten
from .archive import open_archive

#: Beginning of the name of a layout, as skopeo has it: ``oci:DIR`` or ``oci:DIR:TAG``.
PREFIX = "oci:"
#: The OCI's names of architectures, by ours.
ARCHITECTURES = {"x86-64": "amd64", "aarch64": "arm64"}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
#: What is added to it for a compressed layer.
GZIP = "+gzip"
_TAG = "org.opencontainers.image.ref.name"
_MOST_LAYERS = 128
_MOST_IMAGES = 1024
_MAX_BYTES = 1 << 22
_CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Blob(NamedTuple):
    kind: str
    digest: str
    size: int


def find_layers(source: str) -> List[str]:
    """The paths of the layers of an image, once their digests were compared.

    Args:
        source: ``oci:DIR``, or ``oci:DIR:TAG`` where the layout has several images.

    Raises:
        BundleError: it isn't a layout, has no image for this device, or one that holds more than files.
        DamagedBundleError: a blob isn't what its digest says.
    """
    folder, tag = _split(source[len(PREFIX) :])
    path = os.path.join(folder, "index.json")
    blob = _choose(path, _read(path, _MAX_BYTES), tag)
    if blob.kind == INDEX:
        path = _place(folder, blob)
        blob = _choose(path, _read(path, _MAX_BYTES, blob), None)
    path = _place(folder, blob)
    problems = Problems(path)
    top = Field(problems, parse_json(_read(path, _MAX_BYTES, blob), path, _MAX_BYTES))
    layers = [
        _read_blob(entry, (LAYER, LAYER + GZIP))
        for entry in top.at("layers").objects(1, _MOST_LAYERS)
    ]
    problems.raise_if_any(hint="`edgecompile image --only-bundle` writes an image of a bundle")
    for layer in layers:
        _check(_place(folder, layer), layer)
    return [_place(folder, layer) for layer in layers]


def _split(text: str) -> Tuple[str, Optional[str]]:
    """The folder and the tag in ``DIR:TAG``; both may have colons, so the longest folder that exists is meant."""
    words = text.split(":")
    for count in range(len(words), 0, -1):
        folder = ":".join(words[:count])
        if os.path.isdir(folder):
            return folder, ":".join(words[count:]) or None
    return words[0], ":".join(words[1:]) or None


def _choose(path: str, data: bytes, tag: Optional[str]) -> _Blob:
    """The image of an index that has a tag, or is for this device."""
    problems = Problems(path)
    top = Field(problems, parse_json(data, path, _MAX_BYTES))
    here = architecture(platform.machine())
    wanted = ARCHITECTURES.get(here, here)
    found = []
    for entry in top.at("manifests").objects(1, _MOST_IMAGES):
        blob = _read_blob(entry, (INDEX, MANIFEST))
        name = entry.find("annotations").find(_TAG).value if tag is not None else None
        arch = entry.find("platform").find("architecture")
        if name == tag and (not arch or arch.value == wanted):
            found.append(blob)
    problems.raise_if_any()
    if len(found) != 1:
        what = wanted if tag is None else "{} named {}".format(wanted, shorten(tag))
        text = "{}: {} images for {}, must be one [image-choice]"
        raise BundleError(text.format(path, len(found), what), "name one: oci:DIR:TAG")
    return found[0]


def _read_blob(entry: Field, kinds: Tuple[str, ...]) -> _Blob:
    kind = entry.at("mediaType").choice(kinds, "image-kind") or ""
    if entry.find("urls"):
        entry.refuse("image-kind", "lies elsewhere")
    digest = entry.at("digest").formed(_DIGEST, "image-digest", "isn't a SHA-256") or ""
    return _Blob(kind, digest, entry.at("size").integer() or 0)


def _place(folder: str, blob: _Blob) -> str:
    return os.path.join(folder, "blobs", *blob.digest.split(":"))


def _read(path: str, most: int, blob: Optional[_Blob] = None) -> bytes:
    """The bytes of a small file, compared with the digest if there is one."""
    if blob is not None:
        _check(path, blob)
    with open_archive(path) as file:
        return file.read(most + 1)


def _check(path: str, blob: _Blob) -> None:
    digest = hashlib.sha256()
    with open_archive(path) as file:
        size = os.fstat(file.fileno()).st_size
        for part in iter(lambda: file.read(_CHUNK), b"") if size == blob.size else ():
            digest.update(part)
    if digest.hexdigest() != blob.digest[7:]:
        text = "{}: isn't the blob of {} bytes that the image lists [image-digest]"
        raise DamagedBundleError(text.format(path, blob.size), "copy the image again")
