"""The fresh processes that ``finish`` works with, both ends: what needs CUDA or TensorRT runs in one,
as it takes much memory or may end its process.

``python -m edgecompile.runtime.finish.worker FD`` reads one JSON request from standard input and writes
messages, a JSON object a line, to the descriptor FD:

    {"progress": {"phase", "fraction", "seconds"}} and {"note": text}, any number of them, then
    {"result": ...}, {"failed": {"text", "memory"}} or {"error": {"class", "message", "hint"}}
"""

import contextlib
import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Sequence, Type

from ..base import errors
from ..base.children import child_command
from ..base.errors import DeviceMemoryError, EdgecompileError, FinishError, GpuError
from ..format.document import shorten
from ..gpu.cuda import Cuda
from ..gpu.device import describe_device, free_memory, main_memory
from ..gpu.log import BuildFailure, is_about_memory
from .engine_build import BuildJob, Tell, build_engines

if TYPE_CHECKING:
    from typing import TextIO

Message = Dict[str, Any]

_PR_SET_PDEATHSIG = 1
_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_EVERY = 15.0  # seconds between two lines of progress where they aren't overwritten
_EARLY = 0.03  # of the work: before that a rate says nothing


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
        """The device and its free memory; see ``describe``.

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


class WorkerDied(Exception):
    """The process ended without an answer. ``signal``: the number of what ended it, or 0."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.signal = number


def run_worker(
    task: str,
    request: Mapping[str, Any],
    *,
    keep_open: Sequence[int] = (),
    tell: Callable[[Message], None] = lambda message: None,
) -> Dict[str, Any]:
    """Runs ``task`` and returns its result.

    Args:
        task: one of worker.py.
        request: the arguments of the task, plain JSON values.
        keep_open: descriptors that the process inherits, such as that of a lock.
        tell: a function that gets its messages meanwhile, in this thread.

    Raises:
        BuildFailure: TensorRT didn't build, or memory ran out.
        WorkerDied: a signal ended the process, or it gave no answer.
        EdgecompileError: the one that it raised.
    """
    command, where = child_command("edgecompile.runtime.finish.worker")
    reading, writing = os.pipe()
    with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as messages:
        try:
            child = subprocess.Popen(
                [*command, str(writing)],
                stdin=subprocess.PIPE,
                stdout=2,  # nothing but our own data may come to standard output
                **where,
                pass_fds=[writing, *keep_open],
                # Ctrl-C is for this process; it ends the child itself.
                start_new_session=True,
            )
        except OSError as error:
            text = "can't start a process: {}".format(error.strerror)
            raise FinishError(text) from None
        finally:
            os.close(writing)
        try:
            _send(child, dict(request, task=task, parent=os.getpid()))
            answer: Message = {}
            for line in messages:
                message = _parse(line)
                if message.keys() & {"result", "failed", "error"}:
                    answer = message
                else:
                    tell(message)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    return _judge(task, answer, code)


def _send(child: "subprocess.Popen[bytes]", request: Mapping[str, Any]) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(request, allow_nan=False).encode("ascii"))
        child.stdin.close()
    except BrokenPipeError:  # it ended already; its exit code says how
        pass


def _parse(line: str) -> Message:
    try:
        message = json.loads(line)
    except ValueError:  # the process was killed while it wrote
        return {}
    return message if isinstance(message, dict) else {}


def _judge(task: str, answer: Message, code: int) -> Dict[str, Any]:
    if "result" in answer:
        result: Dict[str, Any] = answer["result"]
        return result
    if "failed" in answer:
        raise BuildFailure(str(answer["failed"]["text"]), answer["failed"]["memory"])
    if "error" in answer:
        entry = answer["error"]
        kind = getattr(errors, str(entry["class"]), FinishError)
        error_class: Type[EdgecompileError] = FinishError
        if isinstance(kind, type) and issubclass(kind, EdgecompileError):
            error_class = kind
        raise error_class(entry["message"], entry["hint"])
    if code < 0:
        text = "the process that was to {} was ended by {}".format(task, _signal_name(-code))
        raise WorkerDied(text, -code)
    raise WorkerDied("the process that was to {} ended with exit code {}".format(task, code), 0)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "signal {}".format(number)
    more = ", as the system does where memory runs out" if name == "SIGKILL" else ""
    return shorten(name + more)


def estimate_left(fraction: float, seconds: float, predicted: Optional[float]) -> Optional[float]:
    """Seconds that a build takes still, or None where nothing can be said.

    Args:
        fraction: the part of the work that is done, 0 to 1.
        seconds: since the build began.
        predicted: the seconds of the whole build that the recipe predicts, or None.
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
        remaining = estimate_left(fraction, seconds, self._predicted)
        text = "  {:3.0f} %  {}  {}  {}".format(
            100 * fraction,
            _clock(seconds),
            "time left unknown" if remaining is None else "about {} left".format(_clock(remaining)),
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


def describe(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """The device and how much memory a build can have on it now."""
    cuda = Cuda.load()
    identity = describe_device(cuda)
    return {
        "device": identity.to_json(),
        "free_bytes": free_memory(cuda, identity.integrated),
        # Where they share it, that is one memory.
        "host_bytes": None if identity.integrated else main_memory(),
    }


def build(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """See ``build.build_engines``; the request holds a BuildJob."""
    return build_engines(BuildJob.from_json(request["job"]), tell)


def selftest(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """See ``selftest.selftest_engine``."""
    from .selftest import selftest_engine

    return selftest_engine(request, tell)


def accept(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """See ``gpu.tensorrt.find_refusal``; the request has "path", "sha256", "size" and "plans" of an engine."""
    from ..gpu.cache import FinishedEngine
    from ..gpu.tensorrt import find_refusal

    Cuda.load()  # the very one that engines are opened with
    engine = FinishedEngine(
        request["path"], request["sha256"], request["size"], (), {}, plans=tuple(request["plans"])
    )
    return {"refusal": find_refusal(engine)}


_TASKS: Dict[str, Callable[[Mapping[str, Any], Tell], Dict[str, Any]]] = {
    "describe": describe,
    "build": build,
    "selftest": selftest,
    "accept": accept,
}


def main(descriptor: int) -> int:
    """Does what standard input asks for; 0 once the answer is written, whatever it is."""
    request = json.load(sys.stdin)
    _die_with(request["parent"])
    lock = threading.Lock()
    stream = os.fdopen(descriptor, "w", encoding="utf-8")

    def tell(message: Mapping[str, Any]) -> None:
        with lock:
            stream.write(json.dumps(message, allow_nan=False) + "\n")
            stream.flush()

    try:
        tell(_answer(request, tell))
        stream.close()
    except BrokenPipeError:  # the parent is gone, so nobody wants the answer
        return 1
    return 0


def _answer(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    try:
        return {"result": _TASKS[request["task"]](request, tell)}
    except BuildFailure as failure:
        return {"failed": {"text": str(failure), "memory": failure.memory}}
    except MemoryError:
        return {"failed": {"text": "Python ran out of memory", "memory": True}}
    except GpuError as error:
        if type(error) is GpuError and not error.number and request["task"] == "selftest":
            # TensorRT's own word about what it built.
            return {"failed": {"text": error.message, "memory": is_about_memory(error.message)}}
        if error.number == _NO_MEMORY:
            return {"failed": {"text": error.message, "memory": True}}
        return _error(type(error).__name__, error.message, error.hint)
    except EdgecompileError as error:
        return _error(type(error).__name__, error.message, error.hint)
    except OSError as error:
        name = "DeviceDiskError" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "FinishError"
        place = "{}: ".format(error.filename) if error.filename else ""
        return _error(name, place + (error.strerror or str(error)), None)
    except Exception as error:
        # What TensorRT's bindings raise where a factory gives nothing: TypeError, RuntimeError.
        if request.get("debug"):
            traceback.print_exc()
        text = "{}: {}".format(type(error).__name__, shorten(error, 500))
        return _error("FinishError", text, None)


def _error(name: str, message: str, hint: Any) -> Dict[str, Any]:
    return {"error": {"class": name, "message": message, "hint": hint}}


def _die_with(parent: int) -> None:
    """Ends this process when its parent ends: nobody would be there to take what it makes."""
    with contextlib.suppress(AttributeError, OSError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
