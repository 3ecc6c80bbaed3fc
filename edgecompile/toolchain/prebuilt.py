"""Libraries of the native runtime that a wheel brings, so that they need no compiler.

``scripts/prebuild`` compiles them. Each has a folder of its own in the package, ``_prebuilt/NAME-KEY``, whose key
covers its sources and flags. A checkout has none.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import edgecompile
from edgecompile.files import replacing


def prebuilt_folder() -> Path:
    """The folder with a wheel's libraries."""
    return Path(next(iter(edgecompile.__path__))) / "_prebuilt"


def take_prebuilt(arch: str, key: str, output_dir: Path) -> Path | None:
    """Copies the wheel's library into a folder; None if the wheel has none of these sources and flags.

    ``$EDGECOMPILE_CXX`` names a compiler for x86-64 to use instead, so nothing for that is taken where it is set.

    Args:
        arch: ``x86-64`` or ``aarch64``.
        key: ``key`` of :class:`edgecompile.toolchain.native.NativeLibrary`.
        output_dir: folder that gets the library, under its own name.
    """
    if arch == "x86-64" and os.environ.get("EDGECOMPILE_CXX"):
        return None
    for library in prebuilt_folder().glob(f"*-{key}/*.so"):
        output_dir.mkdir(parents=True, exist_ok=True)
        with library.open("rb") as source, replacing(output_dir / library.name) as target:
            shutil.copyfileobj(source, target)
        return output_dir / library.name
    return None
