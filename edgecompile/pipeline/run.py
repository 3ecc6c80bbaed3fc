"""A build or a plan under way: named, timed stages, their notes, and a folder for their files."""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgecompile.errors import BundleWriteError
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.threads import enough_threads
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.notes import Notes
from edgecompile.progress import Progress, StepHandle
from edgecompile.targets.profile import TargetProfile

if TYPE_CHECKING:
    from edgecompile.pipeline.forecast import BuildForecast

T = TypeVar("T")


class Run:
    """Things that the stages of one build or plan share.

    Args:
        request: the request.
        profile: its target.
        progress: the display of every stage.

    Attributes:
        options: the settings of the plan and the build.
        seconds: wall time by stage, of all its runs together.
        notes: remarks for the user, from all stages.
        forecast: the forecast of a language model's build; None: there is none.
        model: the model, which later stages run; None: it isn't loaded yet.
    """

    def __init__(self, request: BuildRequest, profile: TargetProfile, progress: Progress) -> None:
        self.request, self.options = request, request.plan
        self.profile, self.progress = profile, progress
        self.seconds: dict[str, float] = {}
        self.notes = Notes()
        self.forecast: BuildForecast | None = None
        self.model: LoadedModel | None = None

    def stage(self, title: str, action: Callable[[StepHandle], T]) -> T:
        """The result of ``action``, which shows its progress on the step that it is given."""
        start = time.perf_counter()
        threads = nullcontext() if self.model is None else enough_threads(self.model)
        try:
            with threads, self.progress.step(title) as step, warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of torch's to itself
                return action(step)
        finally:
            taken = time.perf_counter() - start
            self.seconds[title] = self.seconds.get(title, 0.0) + taken


@contextmanager
def work_folder(named: Path | None, source: ModelSource) -> Iterator[Path]:
    """The work folder that was named, or a temporary one that goes when the build ends.

    It stays where the build's last stage fails for the place that the bundle goes to, and another
    build can use the model's exports: the error's hint then says how to go on from it.
    """
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named
        return
    folder = Path(tempfile.mkdtemp(prefix="edgecompile-work-"))
    keep = False
    try:
        yield folder
    except BundleWriteError as error:
        keep = error.destination is not None and source.lasting
        if keep:
            hint = f'the work is kept: `work_dir="{folder}"` goes on from it'
            error.hint = f"{error.hint}; {hint}" if error.hint else hint
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
