"""TensorRT's log: it says why something failed there alone, so its last messages are kept."""

from typing import TYPE_CHECKING, List, Optional

from ..format.document import shorten

if TYPE_CHECKING:
    import tensorrt

KEPT = 40  # messages of each kind
# Words of TensorRT's log that tell a lack of memory from other failures.
_MEMORY_WORDS = (
    "out of memory",
    "outofmemory",
    "insufficient memory",
    "memory allocation",
    "allocation failure",
    "bad_alloc",
    "requested amount of gpu memory",
)


def is_about_memory(text: str) -> bool:
    """Whether TensorRT's words speak of a lack of memory."""
    return any(word in text.lower() for word in _MEMORY_WORDS)


class BuildFailure(Exception):
    """No engine came out; ``memory``: for want of memory, so a smaller attempt may do; None: it may be."""

    def __init__(self, text: str, memory: Optional[bool]) -> None:
        super().__init__(text)
        self.memory = memory


class BuildLog:
    """The errors and warnings of TensorRT, the last of each."""

    def __init__(self) -> None:
        self.errors: List[str] = []
        self.warnings: List[str] = []

    def add(self, items: List[str], text: str) -> None:
        """Keeps one message."""
        items.append(shorten(text, 500))
        del items[:-KEPT]

    def about_memory(self) -> bool:
        """Whether TensorRT spoke of a lack of memory."""
        return is_about_memory("\n".join(self.errors + self.warnings))

    def failure(self, doing: str) -> BuildFailure:
        """The error where TensorRT gave nothing back."""
        reasons = self.errors or self.warnings or ["TensorRT gave no reason"]
        text = "{}: {}".format(doing, "; ".join(reasons[-5:]))
        # Without any reason the commonest one is assumed: a smaller attempt costs time alone.
        return BuildFailure(text, self.about_memory() or not self.errors or None)


def make_logger(log: BuildLog) -> "tensorrt.ILogger":
    """A logger of TensorRT that keeps errors and warnings in ``log``."""
    import tensorrt

    class Logger(tensorrt.ILogger):
        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)

        def log(self, severity: "tensorrt.ILogger.Severity", msg: str) -> None:
            if severity in (tensorrt.ILogger.ERROR, tensorrt.ILogger.INTERNAL_ERROR):
                log.add(log.errors, msg)
            elif severity == tensorrt.ILogger.WARNING:
                log.add(log.warnings, msg)

    return Logger()
