"""Whether a bundle is what the same build made before: then there is nothing to do.

A build leaves ``built.json`` in its work folder: a key of everything that shaped the bundle, and
the hash of the bundle's manifest, which names the hash of every file. Nothing here loads a
framework, so that a build with nothing to do is over before torch would have been imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgecompile.files import file_sha256, hash_tree
from edgecompile.installation import installation_id
from edgecompile.machines.identity import cpu_identity, usable_cpus
from edgecompile.runtime.errors import EdgecompileError
from edgecompile.runtime.format.manifest import MANIFEST_NAME, parse_manifest
from edgecompile.targets.profile import load_target
from edgecompile.targets.schema import search_path
from edgecompile.toolchain.compilers import find_toolchain

__all__ = ["STAMP_NAME", "build_key", "find_built", "write_stamp"]

STAMP_NAME = "built.json"


def build_key(
    model: str, target: str, options: Mapping[str, Any], files: Mapping[str, Path | None]
) -> str | None:
    """A hash of all that shapes a bundle; equal keys mean that a build would make the same again.

    Args:
        model: a model specification.
        target: name or path of a target profile.
        options: plain values: lengths, limits, batch, precision, seed.
        files: what is read beside them (calibrations, texts), by what it is for; None: nothing.

    Returns:
        None for a model whose files don't tell all of it: a factory's code may do anything.

    Raises:
        TargetError, ToolchainError: the target can't be built for.
        OSError: a file can't be read.
    """
    where = Path(model).expanduser()
    if not (where.is_dir() or (where.is_file() and where.suffix == ".pt2")):
        return None
    profile = load_target(target)
    archs = sorted({variant.arch for variant in profile.variants})
    parts = {
        # A bundle is called after its model's folder or file.
        "model": [where.resolve().name, hash_tree(where)],
        "target": repr(profile),
        # With what is known of JetPacks and of TensorRT's operators.
        "profiles": [hash_tree(folder) for folder in search_path()],
        "options": options,
        "files": {name: path and hash_tree(path) for name, path in files.items()},
        "compilers": [[find_toolchain(arch).cxx, find_toolchain(arch).version] for arch in archs],
        # Measured costs are this machine's.
        "cpu": [cpu_identity(), usable_cpus()],
        "installation": installation_id(),
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def write_stamp(work: Path, key: str, bundle: Path, result: Mapping[str, Any]) -> None:
    """Notes what a build made.

    Args:
        work: the build's work folder.
        key: from :func:`build_key`, taken before the build began.
        bundle: the bundle.
        result: what the build says about itself; plain values.
    """
    manifest = file_sha256(bundle / MANIFEST_NAME)
    stamp = {"key": key, "manifest_sha256": manifest, "result": dict(result)}
    partial = work / (STAMP_NAME + ".partial")
    partial.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, work / STAMP_NAME)


def find_built(work: Path, key: str, bundle: Path) -> dict[str, Any] | None:
    """What an earlier build said, if ``bundle`` is still exactly what it made; else None.

    Args:
        work: the build's work folder.
        key: of what is asked for now.
        bundle: where the bundle should be; every file of it is hashed.
    """
    try:
        stamp = json.loads((work / STAMP_NAME).read_text(encoding="utf-8"))
        if stamp["key"] != key:
            return None
        text = (bundle / MANIFEST_NAME).read_bytes()
        if hashlib.sha256(text).hexdigest() != stamp["manifest_sha256"]:
            return None
        for name, entry in parse_manifest(text, str(bundle)).files.items():
            if file_sha256(bundle / name) != entry.sha256:
                return None
        result: dict[str, Any] = stamp["result"]
    except (OSError, ValueError, KeyError, TypeError, EdgecompileError):
        return None
    return result
