"""The parts of this installation that shape a build: packages, edgecompile's own sources, variables."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import edgecompile


@cache
def installation_id() -> str:
    """Identifies them: part of the key of everything that is kept from one build to the next.

    Every installed package counts by its version, since models may use any of them, every file of
    edgecompile by its content, and the environment's variables that torch reads but for folders.
    """
    packages = {f"{dist.metadata['Name']} {dist.version}" for dist in metadata.distributions()}
    variables = {
        name: text
        for name, text in os.environ.items()
        if name.startswith("TORCH") and not name.endswith(("_DIR", "_HOME"))
    }
    parts = [sys.version, sorted(packages), variables, own_files_id()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def own_files_id() -> str:
    """Identifies the content of edgecompile's own files."""
    root = Path(edgecompile.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
