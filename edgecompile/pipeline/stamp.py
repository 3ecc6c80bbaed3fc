"""Finds out whether a bundle is the result of the same build made before: then there is nothing to do.

A build leaves ``built.json`` in its work folder: a key of everything that shaped the bundle, and
the hash of the bundle's manifest, which names the hash of every file. Nothing here loads a
framework, so that a build with nothing to do is over before torch would have been imported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgecompile.buckets.plan import BucketPlan
from edgecompile.files import file_sha256, hash_tree, write_json
from edgecompile.hosts.identity import cpu_identity, usable_cpus
from edgecompile.installation import installation_id
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.format.manifest.schema import MANIFEST_NAME
from edgecompile.targets.profile import TargetProfile
from edgecompile.targets.schema import search_path
from edgecompile.toolchain.compilers import find_toolchain

STAMP_NAME = "built.json"


def build_key(request: BuildRequest, profile: TargetProfile) -> str | None:
    """A hash of all that shapes a bundle; equal keys mean that a build would make the same again.

    Args:
        request: the request.
        profile: its target.

    Returns:
        None for a model whose files don't tell all of it: a factory's code may do anything; and where
        a file can't be read, which the build itself will say.
    """
    if not isinstance(request.model, (str, Path)):
        return None
    where = Path(request.model).expanduser()
    if not (where.is_dir() or (where.is_file() and where.suffix in (".pt2", ".gguf"))):
        return None
    try:
        parts = _parts(request, profile, where)
    except (OSError, EdgecompileError):
        return None
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _parts(request: BuildRequest, profile: TargetProfile, where: Path) -> dict[str, Any]:
    archs = sorted({variant.arch for variant in profile.variants})
    elsewhere = ("model", "target", "work_dir", "output", "force")
    options = {name: value for name, value in vars(request).items() if name not in elsewhere}
    return {
        # A bundle is called after its model's folder or file.
        "model": [where.resolve().name, hash_tree(where)],
        "target": repr(profile),
        # With what is known of JetPacks and of TensorRT's operators.
        "profiles": [hash_tree(folder) for folder in search_path()],
        "options": _plain(options),
        "compilers": [[find_toolchain(arch).cxx, find_toolchain(arch).version] for arch in archs],
        # Measured costs are this machine's.
        "cpu": [cpu_identity(), usable_cpus()],
        "installation": installation_id(),
    }


def _plain(value: object) -> object:
    """Requests as plain values; files count by their content."""
    if isinstance(value, Path):
        return hash_tree(value)
    if isinstance(value, (LengthDistribution, JointDistribution, BucketPlan)):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return value


def write_stamp(work: Path, key: str, result: BuildResult) -> None:
    """Notes what a build made.

    Args:
        work: the build's work folder.
        key: the key from :func:`build_key`, taken before the build began.
        result: the result of the build.
    """
    manifest = file_sha256(result.bundle_path / MANIFEST_NAME)
    write_json(
        work / STAMP_NAME, {"key": key, "manifest_sha256": manifest, "result": result.to_json()}
    )


def find_built(work: Path, key: str, bundle: Path) -> BuildResult | None:
    """The result of an earlier build, if ``bundle`` is still exactly what it made; else None.

    Args:
        work: the build's work folder.
        key: the key of the present request.
        bundle: the expected path of the bundle; every file of it is hashed.
    """
    try:
        stamp = json.loads((work / STAMP_NAME).read_text(encoding="utf-8"))
        if stamp["key"] != key:
            return None
        text = (bundle / MANIFEST_NAME).read_bytes()
        if hashlib.sha256(text).hexdigest() != stamp["manifest_sha256"]:
            return None
        # The manifest is the very one that the build wrote, so it is well-formed.
        for name, entry in json.loads(text)["files"].items():
            if file_sha256(bundle / name) != entry["sha256"]:
                return None
        return BuildResult.from_earlier(stamp["result"], bundle)
    except (OSError, ValueError, KeyError, TypeError, EdgecompileError):
        return None
