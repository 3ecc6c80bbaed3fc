"""A process of its own for what needs much memory or may end its process: its tasks and its main.

``python -m edgecompile.runtime.finish.worker FD`` reads one JSON request from standard input and writes
messages, a JSON object a line, to the descriptor FD:

    {"progress": {"phase", "fraction", "seconds"}} and {"note": text}, any number of them, then
    {"result": ...}, {"failed": {"text", "memory"}} or {"error": {"class", "message", "hint"}}

The other end is in worker_process.py.
"""

import contextlib
import ctypes
import errno
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Dict, Mapping

from ..errors import EdgecompileError, GpuError
from ..format.document import shorten
from ..gpu.cuda import Cuda
from ..gpu.device import describe_device, free_memory
from ..gpu.log import BuildFailure
from .build import BuildJob, Tell, build_engine

_PR_SET_PDEATHSIG = 1
_NO_MEMORY = 2  # cudaErrorMemoryAllocation


def describe(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """The device and how much memory a build can have on it now."""
    cuda = Cuda.load()
    identity = describe_device(cuda)
    return {
        "device": identity.to_json(),
        "free_bytes": free_memory(cuda, identity.integrated),
    }


def build(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """See ``build.build_engine``; the request holds a BuildJob."""
    return build_engine(BuildJob.from_json(request["job"]), tell)


def selftest(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """See ``selftest.selftest_engine``."""
    from .selftest import selftest_engine

    return selftest_engine(request, tell)


def accept(request: Mapping[str, Any], tell: Tell) -> Dict[str, Any]:
    """See ``gpu.tensorrt.find_refusal``; the request has "path", "sha256" and "size" of an engine."""
    from ..gpu.cache import FinishedEngine
    from ..gpu.tensorrt import find_refusal

    Cuda.load()  # the very one that engines are opened with
    engine = FinishedEngine(request["path"], request["sha256"], request["size"], (), {})
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
