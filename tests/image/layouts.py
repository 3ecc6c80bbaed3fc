"""Writes images with the command, and reads the layouts that it wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.cli.command import run


def write(*words: object) -> dict[str, Any]:
    """What the command says of the image that it wrote."""
    done = run("image", *map(str, words), "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(*words: object) -> dict[str, Any]:
    """The error that the command ends with."""
    done = run("image", *map(str, words), "--json")
    assert done.exit_code != 0
    return json.loads(done.stdout)["error"]


def blob(layout: Path, digest: str) -> bytes:
    """A blob of a layout, once its hash was compared."""
    found = (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert f"sha256:{hashlib.sha256(found).hexdigest()}" == digest
    return found


def document(layout: Path, digest: str) -> dict[str, Any]:
    return json.loads(blob(layout, digest))
