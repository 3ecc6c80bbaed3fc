"""lifetime: closing from anywhere at any moment, and calls that are interrupted."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.base.errors import CopyError, ModelClosedError
from edgecompile.runtime.base.lifetime import Lifetime
from edgecompile.runtime.call.inputs import make_inputs


class Owned:
    """Something to free, which notes how often that was done."""

    def __init__(self) -> None:
        self.freed = 0
        self.life = Lifetime("x.ecb", [self.free])

    def free(self) -> None:
        self.freed += 1


class Interrupt(BaseException):
    """Raised by a signal handler."""


def interrupt_at(number: int, action: Callable[[], Any], *files: str) -> bool:
    """Calls ``action``, interrupted before bytecode instruction ``number`` of Python in ``files``.

    Stricter than signals, which CPython looks at only between some instructions.

    Returns:
        Whether there were so many instructions.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            count += 1
            if count == number:
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 looks for one before it traces
    sys.settrace(trace)
    try:
        action()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def every_instruction(make: Callable[[], Callable[[], Any]], *files: str) -> Iterator[int]:
    """Interrupts what ``make`` gives at each instruction in turn; yields after each time."""
    # What earlier tests left is not to be freed, and interrupted, meanwhile.
    gc.collect()
    gc.disable()
    try:
        number = 0
        while True:
            number += 1
            if not interrupt_at(number, make(), *files):
                return
            yield number
    finally:
        gc.enable()


def test_an_end_is_that_of_everything() -> None:
    owned = Owned()
    assert owned.life.hold(lambda value: value + 1, 1) == 2
    owned.life.close()
    owned.life.close()
    assert owned.freed == 1
    with pytest.raises(ModelClosedError, match=r"x\.ecb"):
        owned.life.hold(lambda: None)
    assert owned.life.hold(lambda: 3, closed_too=True) == 3
    assert owned.freed == 1


def test_an_error_of_a_call_or_an_end_stops_nothing() -> None:
    owned = Owned()

    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        owned.life.hold(fail)
    tries: list[int] = []

    def fail_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no")

    owned.life.own(fail_once)
    with pytest.raises(OSError, match="no"):
        owned.life.close()
    assert owned.freed == 1, "the rest was freed all the same"
    owned.life.close()
    assert len(tries) == 2 and owned.freed == 1


def test_a_close_within_a_call_is_put_off_to_its_end() -> None:
    owned = Owned()

    def work() -> str:
        owned.life.close()
        with pytest.raises(ModelClosedError):
            owned.life.hold(lambda: None)
        assert owned.freed == 0
        return "done"

    assert owned.life.hold(work) == "done"
    assert owned.freed == 1


def test_an_end_that_does_not_wait_leaves_the_rest_to_the_last_call() -> None:
    owned = Owned()
    owned.life.close(wait=False)
    assert owned.freed == 1, "there was no call"
    owned = Owned()
    with owned.life.held():
        closer = threading.Thread(target=owned.life.close, args=(False,))
        closer.start()
        closer.join()
        assert owned.life.closed and owned.freed == 0
    assert owned.freed == 1
    owned.life.close()
    assert owned.freed == 1


def test_of_several_calls_the_last_one_frees() -> None:
    owned = Owned()
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        inside.set()
        go.wait()

    thread = threading.Thread(target=owned.life.hold, args=(other,))
    thread.start()
    inside.wait()
    owned.life.hold(owned.life.close)
    assert owned.freed == 0, "the other call is under way"
    go.set()
    thread.join()
    assert owned.freed == 1


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a call"])
def test_several_threads_may_wait_for_the_end(within: bool) -> None:
    """None of them returns while another thread is still freeing."""
    owned = Owned()
    ended: list[int] = []

    def free_slowly() -> None:
        time.sleep(0.05)
        ended.append(1)

    owned.life.own(free_slowly)
    inside, go = threading.Event(), threading.Event()
    freed: list[int] = []

    def other() -> None:
        inside.set()
        go.wait()
        if within:
            owned.life.close()

    def close() -> None:
        owned.life.close()
        freed.append(owned.freed + len(ended))

    runner = threading.Thread(target=owned.life.hold, args=(other,))
    runner.start()
    inside.wait()
    closers = [threading.Thread(target=close) for _ in range(3)]
    for thread in closers:
        thread.start()
    while not owned.life.closed:
        pass
    go.set()
    for thread in (runner, *closers):
        thread.join()
    assert freed == [2, 2, 2]


def test_an_interrupt_anywhere_leaves_no_call_behind() -> None:
    """Else the next close would wait for ever, as would the end of a ``with``."""
    owned: list[Owned] = []

    def make() -> Callable[[], Any]:
        owned.append(Owned())
        return lambda: owned[-1].life.hold(lambda: None)

    tried = 0
    for number in every_instruction(make, "lifetime.py"):
        life = owned[-1].life
        assert not life._calls, f"after an interrupt at instruction {number}"
        life.close()
        assert owned[-1].freed == 1
        tried = number
    assert tried > 20


@pytest.mark.parametrize("way", ["alone", "within a call", "without waiting"])
def test_an_interrupted_end_can_be_repeated(way: str) -> None:
    owned: list[Owned] = []

    def make() -> Callable[[], Any]:
        owned.append(Owned())
        life = owned[-1].life
        if way == "alone":
            return life.close
        return (
            (lambda: life.hold(life.close)) if way == "within a call" else lambda: life.close(False)
        )

    for _ in every_instruction(make, "lifetime.py"):
        owned[-1].life.close()
        assert not owned[-1].life._calls and not owned[-1].life._owned
    # What is taken off and not called yet is lost: that is a gap of a few instructions.
    assert sum(item.freed == 0 for item in owned) <= 4 < len(owned)


def test_an_interrupted_run_of_a_model_leaves_none_behind(native_bundle: str) -> None:
    """Through all of this package's Python, at every 7th instruction: there are 2000 of them."""
    with open_bundle(native_bundle, threads=1) as model:
        sizes = {axis: extent.lo for axis, extent in model.manifest.buckets[0].axes.items()}
        given = make_inputs(model.manifest, sizes)
        want = model.run(given)
        number = 0
        files = (
            "runtime/open/bundle.py",
            "runtime/base/lifetime.py",
            "runtime/cpu/library.py",
            "runtime/call/results.py",
        )
        while interrupt_at(number := number + 7, lambda: model.run(given), *files):
            assert not model._life._calls
        assert number > 300
        got = model.run(given)
        for name in want:
            assert np.array_equal(got[name], want[name])
    assert model.info["loaded_buckets"] == []


HANDLER = """
import signal, sys, threading, time, faulthandler
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import ModelClosedError
from edgecompile.runtime.call.inputs import make_inputs
faulthandler.dump_traceback_later(120, exit=True)  # what hangs tells where, and fails
model = open_bundle(sys.argv[1], threads=1, stats_file=sys.argv[2])
sizes = {axis: extent.hi for axis, extent in model.manifest.buckets[-1].axes.items()}
given = make_inputs(model.manifest, sizes)
seen = []
def close(number, frame):
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    seen.append("hold" in names)
    model.close()
signal.signal(signal.SIGALRM, close)
signal.setitimer(signal.ITIMER_REAL, 0.01 + float(sys.argv[3]))
runs = 0
try:
    while True:
        outputs = model.run(given)
        model.stats
        runs += 1
except ModelClosedError:
    pass
assert len(seen) == 1 and model.info["loaded_buckets"] == [] and model.stats["runs"] >= runs
model.close()
print("closed", seen[0])
"""


def test_a_signal_handler_may_close_while_its_thread_runs(
    native_bundle: str, tmp_path: Any, device_python: str
) -> None:
    within = 0
    for i in range(8):
        command = [
            device_python,
            "-c",
            HANDLER,
            native_bundle,
            str(tmp_path / "s"),
            str(i * 0.0007),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        within += done.stdout.split() == ["closed", "True"]
    assert within >= 5, "the handler came within a call"


def test_nothing_open_is_copied_or_pickled(native_bundle: str, decoder_bundle: Any) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        for work in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(CopyError, match="a Model can't be copied or pickled"):
                work(model)
        with pytest.raises(TypeError):
            copy.copy(model)
        model.load(0)
        assert model.info["loaded_buckets"] == [0], "and what was to be copied works"
    with open_bundle(decoder_bundle, warmup=False) as decoder:
        for item in (decoder.session(), decoder.stream([1, 2])):
            with pytest.raises(CopyError, match=type(item).__name__):
                copy.copy(item)


def test_a_model_that_nobody_refers_to_is_freed_at_once(native_bundle: str) -> None:
    model: Model | None = open_bundle(native_bundle, warmup=False)
    assert model is not None
    life = model._life
    del model
    assert life.closed and not life._owned
