"""The fresh processes that ``finish`` works with: what needs CUDA or TensorRT runs in one of them."""

from typing import Any, Dict, Mapping, Optional

from ..errors import DeviceMemoryError, FinishError
from ..gpu.log import BuildFailure
from .progress import ProgressLine
from .worker_process import Message, WorkerDied, run_worker


class Workers:
    """Runs tasks in fresh processes, the progress of each on a line of its own."""

    def __init__(self, predicted_seconds: Optional[float], debug: bool) -> None:
        self._predicted = predicted_seconds
        self._debug = debug

    def run(self, task: str, request: Mapping[str, Any], lock: int = -1) -> Dict[str, Any]:
        """See ``run_worker``; the process holds the lock too, if there is one."""
        line = ProgressLine(self._predicted)

        def tell(message: Message) -> None:
            if "progress" in message:
                line.show(message["progress"])

        try:
            whole = dict(request, debug=self._debug)
            return run_worker(task, whole, keep_open=[lock] if lock >= 0 else [], tell=tell)
        finally:
            line.end()

    def describe(self) -> Dict[str, Any]:
        """The device and its free memory; see ``worker.describe``.

        Raises:
            GpuError: CUDA or TensorRT don't answer.
            DeviceMemoryError, FinishError: the process failed.
        """
        try:
            return self.run("describe", {})
        except BuildFailure as failure:
            text = "there isn't even the memory to ask CUDA what it has: {}".format(failure)
            raise DeviceMemoryError(text, "end other programs first") from None
        except WorkerDied as died:
            raise FinishError(str(died)) from None
