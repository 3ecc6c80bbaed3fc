"""What every build has: named, timed steps, and a folder for the files that they leave."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from edgecompile.errors import BundleWriteError
from edgecompile.models.loaded import ModelSource
from edgecompile.progress import Progress, StepHandle

__all__ = [
    "Stages",
    "work_folder",
]

T = TypeVar("T")


class Stages:
    """Runs steps one after the other and notes their wall times, in ``seconds`` by title."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}

    def run(self, title: str, action: Callable[[StepHandle], T]) -> T:
        """The result of ``action``, which is given the step to tell what it is doing."""
        start = time.perf_counter()
        with self.progress.step(title) as step:
            result = action(step)
        self.seconds[title] = time.perf_counter() - start
        return result


@contextmanager
def work_folder(given: Path | None, source: ModelSource) -> Iterator[Path]:
    """The work folder that was named, or a temporary one that goes when the build ends.

    It stays where the build's last step fails for the place that the bundle goes to, and another
    build can use the model's exports: the error's hint then says how to go on from it.
    """
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="edgecompile-work-"))
    kept = False
    try:
        yield folder
    except BundleWriteError as error:
        kept = error.destination is not None and source.lasting
        if kept:
            hint = f"the work is kept: --work-dir {folder} goes on from it"
            error.hint = f"{error.hint}; {hint}" if error.hint else hint
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
