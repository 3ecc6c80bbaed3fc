"""Files that a first test makes, for those that begin where it ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path


def make_once(folder: Path, paths: Sequence[Path], make: Callable[[], object]) -> None:
    """Brings paths to what ``make`` leaves there: it runs for the first test, later ones get copies.

    Args:
        folder: one of its own for everything that bears on the result.
        paths: files and folders of different names, which aren't there yet.
        make: makes them; one that it doesn't make isn't there later, either.
    """
    if not folder.exists():
        make()
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True)
        for path in paths:
            _copy(path, partial / path.name)
        partial.rename(folder)
        return
    for path in paths:
        _copy(folder / path.name, path)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy2(source, target)
