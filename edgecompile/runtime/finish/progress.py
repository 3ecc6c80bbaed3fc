"""The line that tells how far a build is: overwritten on a terminal, else now and then a new one."""

import sys
import time
from typing import TYPE_CHECKING, Mapping, Optional

from ..format.document import shorten

if TYPE_CHECKING:
    from typing import Any, TextIO

_EVERY = 15.0  # seconds between two lines where they aren't overwritten
_EARLY = 0.03  # of the work: before that a rate says nothing


def estimate_left(fraction: float, seconds: float, predicted: Optional[float]) -> Optional[float]:
    """Seconds that a build takes still, or None where nothing can be said.

    Args:
        fraction: of the work that is done, 0 to 1.
        seconds: since the build began.
        predicted: of the whole build, by the recipe, or None.
    """
    if fraction >= _EARLY:
        return seconds * (1 - fraction) / fraction
    return None if predicted is None else max(predicted - seconds, 0.0)


class ProgressLine:
    """Shows the progress of one build on ``stream``, standard error by default."""

    def __init__(self, predicted: Optional[float], stream: "Optional[TextIO]" = None) -> None:
        self._predicted = predicted
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._shown = False
        # The first one comes when there is something to tell.
        self._next = time.monotonic() + _EVERY / 5

    def show(self, progress: "Mapping[str, Any]") -> None:
        """Takes {"phase", "fraction", "seconds"} of a worker's message."""
        now = time.monotonic()
        if not self._terminal and now < self._next:
            return
        self._next = now + _EVERY
        fraction, seconds = float(progress["fraction"]), float(progress["seconds"])
        left = estimate_left(fraction, seconds, self._predicted)
        text = "  {:3.0f} %  {}  {}  {}".format(
            100 * fraction,
            _clock(seconds),
            "time left unknown" if left is None else "about {} left".format(_clock(left)),
            shorten(progress["phase"], 40),
        )
        self._stream.write("\r" + text + "\x1b[K" if self._terminal else text + "\n")
        self._stream.flush()
        self._shown = True

    def end(self) -> None:
        """Clears the line on a terminal."""
        if self._terminal and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._shown = False


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return "{}:{:02d}".format(minutes, rest)
