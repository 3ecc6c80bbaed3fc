"""Hooks of the fake, set by the environment: count, fail, pause and die at a chosen call.

FAKE_TRT_VERSION   the version that it says it is, by default 10.3.0; 8.6.x has 8.6's names
FAKE_TRT_FAIL      NAME:N[:HOW], several with commas: call N (or *) of NAME fails. HOW is "" (as
                   that call fails), raise, kill (SIGKILL, as out of memory), segv, abort, or the
                   name of a signal: SIGTERM
FAKE_TRT_COUNTS    a folder: calls are counted over all processes that have it
FAKE_TRT_PAUSE     NAME:N:FILE: at call N of NAME, writes the process' number to FILE and sleeps
FAKE_TRT_LOG       a file that gets a line per call
FAKE_TRT_MEMORY    bytes; a build that "needs" more fails, FAKE_TRT_OOM=kill by SIGKILL
FAKE_TRT_MIXES_ROWS  any text: every row of a batch but the first is wrong
FAKE_TRT_LACKS     operators that it doesn't know, with commas
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

_counts: Counter[str] = Counter()


class FakeTensorrtMisuse(AssertionError):
    """A call that would crash TensorRT, or that its documentation forbids."""


def require(condition: object, text: str) -> None:
    """Raises FakeTensorrtMisuse unless ``condition``."""
    if not condition:
        raise FakeTensorrtMisuse(text)


def version() -> str:
    """The version that the fake says it is."""
    return os.environ.get("FAKE_TRT_VERSION", "10.3.0")


def device() -> str:
    """The device that engines and timing caches are bound to."""
    items = os.environ.get("FAKE_CUDART_DEVICE", "").split(";")
    # TensorRT doesn't use the process' libcudart.
    bound = [item for item in items if not item.startswith("runtime=")]
    return "{}/{}".format(version(), ";".join(bound))


def note(text: str) -> None:
    """A line of FAKE_TRT_LOG."""
    path = os.environ.get("FAKE_TRT_LOG")
    if path:
        with open(path, "a") as stream:
            stream.write(f"{os.getpid()} {text}\n")


def called(name: str, details: str = "") -> bool:
    """To be called first in every function; True if the call has to fail."""
    number = _count(name)
    note(f"{name} {details}".rstrip())
    _pause(name, number)
    for item in filter(None, os.environ.get("FAKE_TRT_FAIL", "").split(",")):
        function, which, how = [*item.split(":"), "", ""][:3]
        if function != name or which not in ("*", str(number)):
            continue
        note(f"fails: {item}")
        if how == "raise":
            raise RuntimeError(f"fake failure of {name}")
        short = {"kill": "SIGKILL", "segv": "SIGSEGV", "abort": "SIGABRT"}.get(how, how)
        if short.startswith("SIG"):
            number = signal.Signals[short]
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            time.sleep(60)
        return True
    return False


def _count(name: str) -> int:
    folder = os.environ.get("FAKE_TRT_COUNTS")
    if not folder:
        _counts[name] += 1
        return _counts[name]
    path = Path(folder) / name
    with path.open("a") as stream:
        stream.write("x")
    return path.stat().st_size


def _pause(name: str, number: int) -> None:
    function, _, rest = os.environ.get("FAKE_TRT_PAUSE", "").partition(":")
    which, _, file = rest.partition(":")
    if function == name and which == str(number):
        path = Path(file)
        path.with_suffix(".tmp").write_text(str(os.getpid()))
        path.with_suffix(".tmp").rename(path)
        while True:
            time.sleep(0.05)
            if not path.exists():  # the test lets it go on
                return
