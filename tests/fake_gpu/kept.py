"""Files that a first test makes, for those that begin where it ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path


def make_once(kept: Path, paths: Sequence[Path], make: Callable[[], object]) -> None:
    """Brings paths to what ``make`` leaves there: it runs for the first test, later ones get copies.

    Args:
        kept: a folder of its own for everything that bears on the result.
        paths: files and folders of different names, which aren't there yet.
        make: makes them; one that it doesn't make isn't there later, either.
    """
    if not kept.exists():
        make()
        partial = kept.with_suffix(".partial")
        partial.mkdir(parents=True)
        for path in paths:
            _copy(path, partial / path.name)
        partial.rename(kept)
        return
    for path in paths:
        _copy(kept / path.name, path)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy2(source, target)
