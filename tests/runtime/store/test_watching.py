"""Threads, signals and processes around a model that follows its versions."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import ModelClosedError
from tests.forks import in_child
from tests.runtime.store.device import Device
from tests.runtime.store.following import INPUTS, NEW, OLD, Followed, wait_for

SIGNAL = {"signal_number": signal.SIGHUP}
WATCH = {"watch": 0.01}


def tell() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def wait_until_served(followed: Followed, swaps: int) -> None:
    assert followed.model._thread is not None
    wait_for(lambda: followed.model.swaps == swaps, followed.model._thread)


@pytest.mark.parametrize("options", [SIGNAL, WATCH], ids=["signal", "watch"])
def test_a_thread_looks_for_new_versions(
    made: Device, tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tell_it = tell if options is SIGNAL else lambda: None
    before = signal.getsignal(signal.SIGHUP)
    followed = Followed(made, tmp_path, **options)
    bad = tmp_path / "bad.ecb"
    shutil.copytree(made.place / "2.ecb", bad)
    shutil.rmtree(bad / "signatures")
    with followed.model as model:
        followed.serve(bad)
        tell_it()
        assert model._thread is not None
        wait_for(lambda: "the old version serves on" in caplog.text, model._thread)
        assert (model.error is not None, followed.answer()) == (True, OLD)
        followed.serve(OLD)
        tell_it()
        wait_for(lambda: model.error is None, model._thread)
        followed.serve(NEW)
        tell_it()
        wait_until_served(followed, 1)
        assert followed.answer() == NEW
    assert signal.getsignal(signal.SIGHUP) == before
    with pytest.raises(ModelClosedError):
        model.run(INPUTS)
    with pytest.raises(ModelClosedError):
        model.refresh()
    assert not [t for t in threading.enumerate() if t.name == "edgecompile-follow"]


def test_after_a_fork(followed: Followed) -> None:
    with followed.model._turn:  # another thread's

        def child() -> int:
            followed.serve(NEW)
            assert followed.model.refresh()
            answer = followed.answer()
            followed.model.close()
            return answer

        assert in_child(child) == f"gave {NEW}"
    assert followed.answer() == OLD
