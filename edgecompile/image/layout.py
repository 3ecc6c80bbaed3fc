"""An image layout of the OCI: images by architecture, of layers that lie among its blobs, and their index."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgecompile.errors import ImageError
from edgecompile.image.layers import Blobs, Layer
from edgecompile.runtime.store.image import INDEX, MANIFEST

_CONFIG = "application/vnd.oci.image.config.v1+json"


class Layout:
    """A layout that is being written.

    Attributes:
        blobs: the folder of its blobs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.blobs = Blobs(folder / "blobs")
        self._entries: list[dict[str, Any]] = []

    def add(
        self,
        arch: str,
        layers: Sequence[Layer],
        settings: Mapping[str, Any],
        annotations: Mapping[str, str],
    ) -> dict[str, Any]:
        """Adds the image of an architecture.

        Args:
            arch: the architecture, such as ``amd64``.
            layers: its layers, the lowest first.
            settings: settings for running it.
            annotations: annotations of the manifest, and labels of the image.

        Returns:
            "platform", "digest", "bytes" and "layers" ("title", "digest", "size").
        """
        config = {
            "architecture": arch,
            "os": "linux",
            "created": annotations["org.opencontainers.image.created"],
            "config": {"Labels": dict(annotations), **settings},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created_by": layer.title} for layer in layers],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._store(_CONFIG, config),
            "layers": [layer.descriptor() for layer in layers],
            "annotations": dict(annotations),
        }
        platform = {"os": "linux", "architecture": arch}
        entry = {**self._store(MANIFEST, manifest), "platform": platform}
        self._entries.append(entry)
        return {
            "platform": f"linux/{arch}",
            "digest": entry["digest"],
            "bytes": sum(layer.size for layer in layers),
            "layers": [
                {"title": item.title, "digest": item.digest, "size": item.size} for item in layers
            ],
        }

    def finish(self) -> str:
        """Writes the index; returns the digest of the image, or of the index of several."""
        top = self._entries[0]
        if len(self._entries) > 1:
            top = self._store(INDEX, _index(self._entries))
        (self._folder / "index.json").write_bytes(_json(_index([top])))
        (self._folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
        return str(top["digest"])

    def _store(self, media_type: str, document: object) -> dict[str, Any]:
        digest, size = self.blobs.add(_json(document))
        return {"mediaType": media_type, "digest": digest, "size": size}


def _index(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def find_date() -> str:
    """The date of an image: by SOURCE_DATE_EPOCH, else 1970, so that the same parts give the same bytes."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not seconds.isdecimal():
        raise ImageError(f"SOURCE_DATE_EPOCH={seconds} is no number of seconds")
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
