"""The file of statistics: what ``Model.stats`` tells, with its bundle and its time span.

docs/runtime.md says what is in it; ``edgecompile plan --from-stats`` reads it.
"""

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Optional

from ..base.errors import InputError
from ..format.document import shorten
from ..format.manifest.schema import Manifest
from ..format.output import check_output, write_output
from .counters import Stats

if TYPE_CHECKING:
    from ..format.output import Path

STATS_VERSION = 1
MAX_EVERY = 1e9


def check_schedule(path: "Path", every: float, bundle: str) -> str:
    """The absolute path of a statistics file to be written every so many seconds.

    Raises:
        InputError: nothing can be written there, or ``every`` is out of its range.
    """
    number = isinstance(every, (int, float)) and not isinstance(every, bool)
    if not (number and 0 < every <= MAX_EVERY):
        text = "stats_every is {!r}, must be seconds, more than 0 and at most {:g}"
        raise InputError(text.format(every, MAX_EVERY))
    return check_output(path, "stats_file", bundle)


class StatsWriter:
    """Writes the statistics of one model, on demand and from time to time.

    Nothing that goes wrong from time to time is raised: the calls of others bring it about, and
    they don't care. ``error`` holds it until a later writing succeeds.
    """

    def __init__(
        self,
        stats: Stats,
        manifest: Manifest,
        manifest_sha256: str,
        variant: str,
        bundle: str,
        release: Optional[int] = None,
    ) -> None:
        self._stats = stats
        self._bundle = bundle
        self._head = {
            "stats_version": STATS_VERSION,
            "bundle": manifest.name,
            "manifest_sha256": manifest_sha256,
            "release": release,
            "variant": variant,
        }
        self._axes = list(manifest.varying_axes())
        self._lock = threading.Lock()
        self._template = ""
        self._path: Optional[str] = None
        self._every = 0
        self._due = 0
        self.error: Optional[str] = None

    def schedule(self, path: "Path", every: float) -> None:
        """Makes ``tick`` write to ``path`` whenever ``every`` seconds have passed.

        Raises:
            InputError: see ``check_schedule``.
        """
        self._path = check_schedule(path, every, self._bundle)
        self._template = os.path.abspath(os.fspath(path))
        self._every = int(every * 1e9)
        self._due = time.perf_counter_ns() + self._every

    def tick(self, now: int) -> None:
        """Writes if it is time; ``now`` is ``time.perf_counter_ns``. Raises nothing."""
        if self._path is None or now < self._due:
            return
        # Of several threads that come here one writes, and the others go on.
        if self._lock.acquire(blocking=False):
            try:
                if now >= self._due:
                    self._due = now + self._every
                    self._write_quietly()
            finally:
                self._lock.release()

    def finish(self) -> None:
        """Writes for the last time, unless there is nothing to tell. Raises nothing.

        No call may be under way. That is why it takes no lock: one that an interrupted call left
        locked must not keep a model from closing.
        """
        if self._path is not None and not self._stats.empty:
            self._write_quietly()

    def _write_quietly(self) -> None:
        try:
            write_output(str(self._path), self._encode())
            self.error = None
        except Exception as error:
            text = error.strerror if isinstance(error, OSError) else None
            text = text or shorten(error, 200) or type(error).__name__
            self.error = "{}: can't be written: {}".format(self._path, text)

    def write(self, path: "Path") -> str:
        """Writes to ``path`` now and returns it, with ``{pid}`` and links resolved.

        Raises:
            InputError: that isn't possible.
        """
        real = check_output(path, "the statistics file", self._bundle)
        try:
            write_output(real, self._encode())
        except OSError as error:
            raise InputError("{}: can't be written: {}".format(real, error.strerror)) from None
        return real

    def after_fork(self) -> None:
        """In a process after a fork: its counts are its own, and so must be its file.

        A path with ``{pid}`` becomes that of this process. Without it nothing is written, because
        the file is the parent's.
        """
        self._lock = threading.Lock()
        self.error = None
        if self._path is None:
            return
        self._due = time.perf_counter_ns() + self._every
        try:
            if "{pid}" not in self._template:
                raise InputError("the file belongs to the process that this one was forked from")
            self._path = check_output(self._template, "stats_file", self._bundle)
        except InputError as error:
            self.error = "{}: isn't written: {}".format(self._template, error.message)
            self._path = None

    def _encode(self) -> bytes:
        document: Dict[str, Any] = dict(self._head)
        document["since"] = format_time(self._stats.since)
        document["until"] = format_time(time.time())
        document["axes"] = self._axes
        document.update(self._stats.snapshot())
        return json.dumps(document, allow_nan=False).encode("ascii") + b"\n"


def format_time(seconds: float) -> str:
    """Seconds since 1970 as UTC: ``2026-11-21T10:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
