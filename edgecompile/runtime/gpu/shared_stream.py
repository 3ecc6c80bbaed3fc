"""The stream that all buckets of a model share on a GPU, and the turns on it."""

import threading
from typing import Callable, Optional

from ..base.errors import GpuError
from .cuda import Cuda


class SharedStream:
    """Things that all buckets of a model share: a stream, and the right to use the scratch memory.

    Whoever runs holds ``lock``. After an error that CUDA doesn't recover from, ``check`` refuses.
    """

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.stream = cuda.stream()
        self.lock = threading.Lock()
        self._broken: Optional[GpuError] = None

    @property
    def broken(self) -> Optional[str]:
        """The reason why no call of CUDA can succeed any more, or None."""
        error = self._broken
        if error is None:
            return None
        text = "nothing runs on this GPU in this process any more, since {} ({}): {}"
        return text.format(error.name, error.number, error.message)

    def check(self) -> None:
        """Raises GpuError if an earlier run broke everything."""
        error, broken = self._broken, self.broken
        if error is not None and broken is not None:
            hint = "start the process again; if it happens again, run the self-test"
            raise GpuError(broken, hint, error.name, error.number, True)

    def note(self, error: BaseException) -> None:
        """Remembers an error after which nothing works; another one is forgotten."""
        if isinstance(error, GpuError) and error.sticky and self._broken is None:
            self._broken = error

    def record(self, queue: Callable[[], None]) -> int:
        """A graph, ready to launch, of what ``queue`` puts into the stream; the caller destroys it.

        Raises:
            GpuError: it can't be recorded.
        """
        cuda, stream = self.cuda, self.stream
        cuda.begin_capture(stream)
        try:
            queue()
        except BaseException:
            try:
                graph = cuda.end_capture(stream)
                if graph:
                    cuda.destroy_graph(graph)
            except GpuError:
                pass  # what spoilt the capture says more
            raise
        graph = cuda.end_capture(stream)
        try:
            return cuda.instantiate(graph)
        finally:
            cuda.destroy_graph(graph)

    def settle(self, failure: BaseException) -> BaseException:
        """After a failure: waits until nothing uses the buffers; returns what is to be raised.

        An engine may only know that CUDA failed: then the wait tells how.
        """
        self.note(failure)
        if self.broken:
            return failure
        try:
            self.cuda.synchronize(self.stream)
        except GpuError as error:
            self.note(error)
            if isinstance(failure, GpuError) and not failure.number:
                text = "{}; {}".format(failure.message, error.message)
                hint = failure.hint or error.hint
                return GpuError(text, hint, error.name, error.number, error.sticky)
        return failure
