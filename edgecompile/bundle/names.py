"""Names of bundles and of their models."""

from __future__ import annotations

import re
from pathlib import Path

from edgecompile.errors import BundleWriteError

SUFFIX = ".ecb"


def bundle_name(model: object) -> str:
    """The name for a model's bundle: its folder, its factory or its file, without the rest."""
    if not isinstance(model, (str, Path)):
        return manifest_name(str(getattr(model, "name", type(model).__name__)))
    path, _, factory = str(model).rpartition(":")
    if path and factory:
        name = factory.rpartition(".")[2]
    else:
        file = Path(model).expanduser().resolve()
        name = file.stem if file.suffix in (".pt2", ".onnx", ".gguf") else file.name
    return manifest_name(name)


def manifest_name(text: str) -> str:
    """``text`` made of the characters that a manifest allows in names, and beginning as it asks."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:200] or "model"


def bundle_path(output: Path) -> Path:
    """``output`` with the suffix of bundles.

    Raises:
        BundleWriteError: it ends in no name.
    """
    if output.name in ("", ".."):
        raise BundleWriteError(
            f"`output` {output} ends in no name", hint="name it, as in model.ecb"
        )
    return output if output.suffix == SUFFIX else output.with_name(output.name + SUFFIX)
