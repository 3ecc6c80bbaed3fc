"""The bill of materials of a bundle: its weights, libraries and tokenizer, and what built them, as CycloneDX 1.6."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import edgecompile
from edgecompile import checks
from edgecompile.errors import MissingDependencyError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import AOTI_CPU, TORCH, Manifest
from edgecompile.runtime.format.trust.release import RELEASE_NAME, Release, parse_release

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component

#: Licences of what builds bundles, and of what every bundle brings; those of a model nobody here knows.
_OWN_LICENSE = "Apache-2.0"
_LICENSES = {"python": "Python-2.0", "torch": "BSD-3-Clause", "edgecompile": _OWN_LICENSE}
#: Facts of a build that aren't programs.
_FACTS = ("structure", "verified")


def sbom(bundle: str | os.PathLike[str]) -> dict[str, Any]:
    """Lists what a bundle is made of.

    Every file is hashed first. The same bundle gives the same document: its serial number comes from the manifest's
    hash, its version and time from the release.

    Args:
        bundle: Path of the bundle.

    Returns:
        A document of CycloneDX 1.6, as plain JSON values.

    Raises:
        BundleError, DamagedBundleError: the bundle is malformed or damaged.
        MissingDependencyError: the package cyclonedx-python-lib isn't installed.
    """
    path = checks.given_path("bundle", bundle, "the path of a bundle")
    _require()
    from cyclonedx.output.json import JsonV1Dot6

    with closing(BundleFolder(str(path))) as folder:
        folder.check_hashes()
        release = path / RELEASE_NAME
        signed = parse_release(release.read_bytes(), str(release)) if release.is_file() else None
        bom = _make_bom(folder.manifest, folder.manifest_sha256, signed)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return document


def _require() -> None:
    try:
        import cyclonedx  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "a bill of materials needs the Python package cyclonedx-python-lib",
            "pip install 'edgecompile[sbom]'",
        ) from None


def _make_bom(manifest: Manifest, sha256: str, release: Release | None) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import ComponentType

    weights = sorted(set(manifest.weights.values()))
    parts = [*_list_files(manifest), *_list_programs(manifest)]
    model = _component(
        manifest.name,
        ComponentType.MACHINE_LEARNING_MODEL,
        ref=f"model:{manifest.name}",
        version=sha256[:16] if release is None else str(release.number),
        sha256s=[manifest.files[name].sha256 for name in weights],
        properties={
            "edgecompile:manifest:sha256": sha256,
            "edgecompile:precision": manifest.precision,
        },
    )
    tool = _component(
        "edgecompile", ComponentType.APPLICATION, version=edgecompile.__version__, license_id=_OWN_LICENSE, ref="tool"
    )  # fmt: skip
    metadata = BomMetaData(component=model)
    metadata.tools.components.add(tool)
    # An argument of None would be the time of this call.
    made = None if release is None else datetime.fromisoformat(release.created[:-1] + "+00:00")
    metadata.timestamp = made  # type: ignore[assignment]
    bom = Bom(
        components=parts,
        metadata=metadata,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"urn:sha256:{sha256}"),
        version=1 if release is None else max(1, release.number),
    )
    bom.register_dependency(model, parts)
    return bom


def _list_files(manifest: Manifest) -> Iterator[Component]:
    """A component for each file that isn't ours alone: weights, libraries, programs and the tokenizer."""
    from cyclonedx.model.component import ComponentType

    own = {variant.runtime for variant in manifest.variants} | {*manifest.probes.values()}
    weights = set(manifest.weights.values())
    for name, entry in sorted(manifest.files.items()):
        folders = name.split("/")[:-1]
        if name.endswith(".so"):
            kind = ComponentType.LIBRARY
        elif name in weights or "tokenizer" in folders[:2]:
            kind = ComponentType.DATA
        elif "code" in folders[:2]:
            kind = ComponentType.FILE
        else:
            continue
        license_id = _OWN_LICENSE if name in own else None
        yield _component(
            name, kind, ref=f"file:{name}", sha256s=[entry.sha256], license_id=license_id
        )


def _list_programs(manifest: Manifest) -> Iterator[Component]:
    """The runtime that the bundle brings, and what built it, which isn't in it."""
    from cyclonedx.model.component import ComponentScope, ComponentType

    built_by = {
        name: text for name, text in manifest.built_by.items() if text and name not in _FACTS
    }
    runtime = built_by.get("edgecompile")
    yield _component(
        "edgecompile-runtime", ComponentType.FRAMEWORK, ref="runtime", version=runtime,
        license_id=_OWN_LICENSE,
    )  # fmt: skip
    if any(variant.backend in (AOTI_CPU, TORCH) for variant in manifest.variants):
        built_by["torch-inductor"] = built_by.get("torch", "")
    for name, version in sorted(built_by.items()):
        license_id = _LICENSES["torch"] if name == "torch-inductor" else _LICENSES.get(name)
        yield _component(
            name,
            ComponentType.APPLICATION,
            version=version or None,
            license_id=license_id,
            scope=ComponentScope.EXCLUDED,
            ref=f"built-by:{name}",
        )


def _component(
    name: str,
    kind: Any,
    *,
    ref: str,
    sha256s: list[str] | None = None,
    license_id: str | None = None,
    properties: dict[str, str] | None = None,
    **more: Any,
) -> Component:
    """A component; no other one of a bill may have its ``ref``."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import DisjunctiveLicense

    return Component(
        name=name,
        type=kind,
        bom_ref=ref,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=item) for item in sha256s or ()],
        licenses=[] if license_id is None else [DisjunctiveLicense(id=license_id)],
        properties=[Property(name=key, value=value) for key, value in (properties or {}).items()],
        **more,
    )
