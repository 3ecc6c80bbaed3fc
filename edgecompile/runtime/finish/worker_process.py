"""Runs a task of worker.py in a fresh process and reads its messages."""

import json
import os
import signal
import subprocess
from typing import Any, Callable, Dict, Mapping, Sequence, Type

from .. import errors
from ..children import child_command
from ..errors import EdgecompileError, FinishError
from ..format.document import shorten
from ..gpu.log import BuildFailure

Message = Dict[str, Any]


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
        request: what it needs, plain JSON values.
        keep_open: descriptors that the process inherits, such as that of a lock.
        tell: gets its messages meanwhile, in this thread.

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
        raise BuildFailure(str(answer["failed"]["text"]), bool(answer["failed"]["memory"]))
    if "error" in answer:
        entry = answer["error"]
        kind = getattr(errors, str(entry["class"]), FinishError)
        known: Type[EdgecompileError] = FinishError
        if isinstance(kind, type) and issubclass(kind, EdgecompileError):
            known = kind
        raise known(entry["message"], entry["hint"])
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
