"""The parts of a bundle as layers, so that an update moves only what changed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from edgecompile.image.layers import Blobs, Entry, Layer, folder_entries
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import MANIFEST_NAME
from edgecompile.runtime.format.trust.release import RELEASE_NAME
from edgecompile.runtime.format.trust.statement import SIGNATURES_NAME, is_signature_name

#: Where KServe looks for a model in an image.
BUNDLE = "models"
#: Least size in bytes of a file that is a layer of its own.
_LARGE = 1 << 20
#: Engines mount at most about 120 layers.
_MOST_LARGE = 100
_DATA, _RUNTIME, _CODE, _REST = "tokenizer and golden vectors", "runtime", "code", "manifest"
_GROUPS = {"tokenizer": _DATA, "golden": _DATA, "runtime": _RUNTIME, "code": _CODE}


def list_names(path: Path, bundle: BundleFolder) -> set[str]:
    """The paths of all files that belong to a bundle, with its release and signatures."""
    folder = path / SIGNATURES_NAME
    signatures = [item.name for item in folder.glob("*") if is_signature_name(item.name)]
    names = {f"{SIGNATURES_NAME}/{name}" for name in signatures}
    return {*bundle.manifest.files, MANIFEST_NAME, RELEASE_NAME, *names}


def write_parts(path: Path, bundle: BundleFolder, blobs: Blobs) -> list[Layer]:
    """Each large file as a layer, then the others in four groups; the manifest is in the last one."""
    prefix = f"{BUNDLE}/"
    entries = list(folder_entries(path, prefix, list_names(path, bundle).__contains__))
    large = sorted((-entry.size, entry.name) for entry in entries if entry.size >= _LARGE)
    alone = {name for _, name in large[:_MOST_LARGE]}
    parts: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        name = entry.name[len(prefix) :]
        parts[name if entry.name in alone else _find_group(name, bundle)].append(entry)
    groups = (_DATA, _RUNTIME, _CODE, _REST)
    titles = [*sorted(parts.keys() - set(groups)), *(title for title in groups if title in parts)]
    # A registry's client would compress plain layers, and give the image another digest.
    return [blobs.write_layer(t, parts[t], compress=True, sealed=True) for t in titles]


def _find_group(name: str, bundle: BundleFolder) -> str:
    if name in bundle.manifest.weights.values():
        return _DATA
    # An encoder's bundle within this one has such folders, too.
    return next((_GROUPS[part] for part in name.split("/")[:2] if part in _GROUPS), _REST)
