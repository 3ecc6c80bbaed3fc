"""Bytes on disk: of installed Python packages with all that they require, and of files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from benchmarks.baselines.workshop import Workshop

__all__ = ["eager_bytes", "folder_bytes", "package_bytes"]

_NAME = re.compile(r"[A-Za-z0-9._-]+")
# Every baseline is called with numpy arrays, so every device has it.
_EVERYWHERE = frozenset({"numpy"})


def package_bytes(*names: str) -> dict[str, int]:
    """Size of each named distribution and of what it requires, numpy aside.

    Optional requirements (extras) are left out; compiled Python files don't count.

    Args:
        names: of distributions; those that aren't installed are left out.
    """
    sizes: dict[str, int] = {}
    waiting = [_normal(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in sizes or name in _EVERYWHERE:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        sizes[name] = sum(_file_bytes(distribution))
        waiting += _requirements(distribution)
    return sizes


def eager_bytes(workshop: Workshop) -> dict[str, int]:
    """torch with its requirements, transformers where the model is made by it, the weights."""
    names = ["torch"]
    if workshop.model.source.kind == "folder":
        names.append("transformers")
    return {**package_bytes(*names), "weights": workshop.weight_bytes}


def folder_bytes(folder: Path, names: Iterable[str] | None = None) -> int:
    """Size of the files below ``folder``, or of those named relative to it."""
    if names is None:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return sum((folder / name).stat().st_size for name in names)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(distribution: metadata.Distribution) -> list[str]:
    names = []
    for line in distribution.requires or []:
        requirement, _, marker = line.partition(";")
        match = _NAME.match(requirement)
        # Requirements for other systems aren't installed here, so markers need no evaluation.
        if match is not None and "extra" not in marker:
            names.append(_normal(match.group()))
    return names


def _file_bytes(distribution: metadata.Distribution) -> Iterable[int]:
    for file in distribution.files or []:
        path = Path(str(file.locate()))
        if path.suffix != ".pyc" and path.is_file():
            yield path.stat().st_size
