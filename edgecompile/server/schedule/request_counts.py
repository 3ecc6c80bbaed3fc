"""The requests that a model got, counted as devices count runs; and how far they are from the plan."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgecompile.runtime import Model
from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.call.inputs import CheckedInputs
from edgecompile.runtime.format.manifest.schema import Extent
from edgecompile.runtime.measure.serving import batch_axis
from edgecompile.runtime.stats.counters import Stats
from edgecompile.runtime.stats.file import StatsWriter

if TYPE_CHECKING:
    from edgecompile.runtime.format.output import Path

_log = logging.getLogger("edgecompile.server")


class RequestCounts:
    """Counts requests one by one, whatever they ran with: ``edgecompile plan --from-stats`` reads it.

    ``Model.stats`` counts runs instead, whose length is that of their longest request.

    Attributes:
        answered, failed: the number of answered requests, and of those whose run failed.
        queue_s, run_s: seconds that these waited and ran, all together; those that ran together count each.
        last: the time of the last answer, in seconds since 1970; 0 without one.
    """

    def __init__(self, model: Model, planned: Sequence[int] = ()) -> None:
        """``planned``: the percentiles of the lengths planned for, see ``drift_distance``."""
        manifest = model.manifest
        try:
            # How many rows run together is the server's business: a plan is for the lengths.
            rows = batch_axis(manifest)
            manifest = manifest._replace(axes={**manifest.axes, rows: Extent(1, 1, None)})
        except InputError:
            pass
        self._stats = Stats(manifest)
        info = model.info
        self._writer = StatsWriter(
            *(self._stats, manifest, info["manifest_sha256"], info["variant"], model.path),
            model.release,
        )
        self._planned = planned
        self._told: str | None = None
        self.answered = self.failed = 0
        self.queue_s = self.run_s = self.last = 0.0

    def count(self, request: CheckedInputs, waited: float, took: float, share: float) -> None:
        """A request was answered: it waited so many seconds, and had this share of a run of so many."""
        self.answered += 1
        self.queue_s += waited
        self.run_s += took
        self.last = time.time()
        self._stats.record(request.bucket, request.sizes, int(took * share * 1e9))

    def refuse(self, sizes: Mapping[str, int] | None = None) -> None:
        """A request was refused; ``sizes`` where the reason is that no program takes them."""
        self._stats.record_refusal(sizes)

    @property
    def drift(self) -> float | None:
        """The distance of the lengths served from those planned for, 0 to 1; None: unknown."""
        if not self._planned:
            return None
        counts = {int(length): n for length, n in self._stats.snapshot()["lengths"].items()}
        return drift_distance(counts, self._planned) if counts else None

    def snapshot(self) -> dict[str, Any]:
        """As ``Model.stats``, by request."""
        return self._stats.snapshot()

    def schedule(self, path: Path, every: float) -> None:
        """Writes the stats file now and then, and at the end."""
        self._writer.schedule(path, every)

    def tick(self, now_ns: int) -> None:
        """Writes the stats file where it is due; where that fails, the log says so once."""
        self._writer.tick(now_ns)
        if self._writer.error is not self._told:
            self._tell()

    def _tell(self) -> None:
        error, previous = self._writer.error, self._told
        if error is None:
            _log.warning("the statistics are written again")
        elif previous is None:
            _log.warning("the statistics are counted on, but %s", error)
        self._told = error

    def write(self, path: Path) -> None:
        """Writes the stats file now; raises InputError where it can't be."""
        self._writer.write(path)

    def finish(self) -> None:
        """Writes the stats file a last time, where one is scheduled."""
        self._writer.finish()
        if self._writer.error is not self._told:
            self._tell()


def drift_distance(counts: Mapping[int, int], percentiles: Sequence[int]) -> float:
    """The Kolmogorov-Smirnov distance of counted lengths from planned ones.

    Args:
        counts: the count of each length, at least one length.
        percentiles: the planned lengths at 0, 1, …, 100 percent, so the result is exact to a
            hundredth.
    """
    total, below, most = sum(counts.values()), 0, 0.0
    steps = len(percentiles) - 1
    for length in sorted({*counts, *percentiles}):
        below += counts.get(length, 0)
        # A length that fills several percent is in the list as often.
        share = max(0, bisect_right(percentiles, length) - 1) / max(1, steps)
        most = max(most, abs(below / total - share))
    return most
