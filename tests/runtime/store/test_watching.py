"""Threads, signals and processes around a model that follows its versions."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import follow
from edgecompile.runtime.base.errors import ModelClosedError
from edgecompile.runtime.store import followed as module
from tests.forks import in_child
from tests.hostile.toy import WEIGHTS
from tests.runtime.store.device import Device
from tests.runtime.store.following import INPUTS, NEW, OLD, Followed, answer_of, wait_for

SIGNAL = {"signal_number": signal.SIGHUP}
WATCH = {"watch": 0.01}


@pytest.fixture
def told() -> Iterator[list[int]]:
    """The signals that a program's own handler got."""
    told: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: told.append(number))
    yield told
    signal.signal(signal.SIGHUP, before)


def tell() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


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


def test_a_version_that_is_still_copied_serves_once_it_is_whole(
    made: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def note(path: str, **options: Any) -> Any:
        opened.append(path)
        return open_bundle(path, **options)

    open_bundle = module.open_bundle
    followed = Followed(made, tmp_path, **WATCH)
    monkeypatch.setattr(module, "open_bundle", note)
    monkeypatch.setattr(module, "_PAUSE", 2)
    new = tmp_path / "new.ecb"
    shutil.copytree(made.place / "2.ecb", new)
    (new / WEIGHTS).rename(tmp_path / "weights")
    with followed.model as model:
        followed.serve(new)
        assert model._thread is not None
        wait_for(lambda: len(opened) >= 4, model._thread)
        assert model.swaps == 0
        (tmp_path / "weights").rename(new / WEIGHTS)
        wait_until_served(followed, 1)
        assert (followed.answer(), model.error) == (NEW, None)


def test_a_version_in_use_blocks_neither_the_next_ones_nor_the_end(
    made: Device, tmp_path: Path
) -> None:
    followed = Followed(made, tmp_path, **WATCH)
    with followed.model.use() as first:
        for swaps, version in ((1, NEW), (2, OLD), (3, NEW)):
            followed.serve(version)
            wait_until_served(followed, swaps)
            assert followed.answer() == version
        followed.model.close()
        with pytest.raises(ModelClosedError):
            followed.model.run(INPUTS)
        assert answer_of(first.run(INPUTS)) == OLD
    with pytest.raises(ModelClosedError):
        first.run(INPUTS)


def test_blocks_of_two_versions_may_close_each_others_model(followed: Followed) -> None:
    model = followed.model
    together = threading.Barrier(2)
    versions = []

    def use() -> None:
        with model.use() as version:
            versions.append(version)
            together.wait()
            together.wait()
            model.close()
            together.wait()  # both have closed, in blocks that go on

    other = threading.Thread(target=use, daemon=True)
    other.start()
    together.wait()
    followed.serve(NEW)
    assert model.refresh()
    with model.use() as version:
        versions.append(version)
        together.wait()
        model.close()
        together.wait()
    other.join()
    for version in versions:
        with pytest.raises(ModelClosedError):
            version.run(INPUTS)


def test_a_close_waits_for_old_versions_too(followed: Followed) -> None:
    inside, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def use() -> None:
        with followed.model.use():
            inside.set()
            go_on.wait()
            ended.append("block")

    def close() -> None:
        followed.model.close()
        ended.append("close")

    threads = [threading.Thread(target=work, daemon=True) for work in (use, close)]
    threads[0].start()
    inside.wait()
    followed.serve(NEW)
    assert followed.model.refresh()
    threads[1].start()
    wait_for(lambda: followed.model._version.life.closed, threads[1])
    go_on.set()
    for thread in threads:
        thread.join()
    assert ended == ["block", "close"]


def test_what_fails_as_a_version_closes_costs_no_answer(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("not given back")

    with followed.model.use() as model:
        model._life.own(fail)
        followed.serve(NEW)
        assert followed.model.refresh()
    assert "not given back" in caplog.text
    model._life._owned.remove(fail)


def test_one_signal_wakes_all_followers(made: Device, tmp_path: Path, told: list[int]) -> None:
    handler = signal.getsignal(signal.SIGHUP)
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    with ExitStack() as stack:
        one, two = (Followed(made, place, **SIGNAL) for place in places)
        stack.enter_context(two.model)
        with one.model:
            for followed in (one, two):
                followed.serve(NEW)
            tell()
            for followed in (one, two):
                wait_until_served(followed, 1)
        two.serve(OLD)
        tell()
        wait_until_served(two, 2)
        assert (one.model.swaps, told) == (1, [])
    assert signal.getsignal(signal.SIGHUP) is handler


def test_a_signal_after_the_end_in_another_thread_is_the_programs(
    made: Device, tmp_path: Path, told: list[int]
) -> None:
    handler = signal.getsignal(signal.SIGHUP)
    in_thread(Followed(made, tmp_path, **SIGNAL).model.close)
    tell()
    assert told == [signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) is handler
    # One that came after it stays, and may still call it.
    followed = Followed(made, tmp_path, **SIGNAL)
    mine = signal.getsignal(signal.SIGHUP)
    assert callable(mine)
    signal.signal(signal.SIGHUP, lambda number, frame: mine(number, frame))
    later = signal.getsignal(signal.SIGHUP)
    followed.model.close()
    tell()
    assert signal.getsignal(signal.SIGHUP) is later


def test_a_signal_while_the_first_version_opens_is_taken(
    made: Device, tmp_path: Path, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_told(path: str, **options: Any) -> Any:
        model = open_bundle(path, **options)
        link.unlink()
        link.symlink_to(made.place / "2.ecb")
        tell()
        return model

    open_bundle = module.open_bundle
    monkeypatch.setattr(module, "open_bundle", open_told)
    link = tmp_path / "current"
    handler = signal.getsignal(signal.SIGHUP)
    followed = Followed(made, tmp_path, **SIGNAL)
    with followed.model:
        wait_until_served(followed, 1)
        assert followed.answer() == NEW
    with pytest.raises(Exception, match="doesn't exist"):
        follow(tmp_path / "none.ecb", **SIGNAL)
    assert signal.getsignal(signal.SIGHUP) is handler
    assert told == []


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


@pytest.mark.parametrize("options", [SIGNAL, WATCH], ids=["signal", "watch"])
def test_a_forked_process_looks_for_new_versions_itself(
    made: Device, tmp_path: Path, options: dict[str, Any]
) -> None:
    followed = Followed(made, tmp_path, **options)

    def child() -> int:
        followed.serve(NEW)
        if options is SIGNAL:
            tell()
        wait_until_served(followed, 1)
        followed.model.close()
        return followed.model.swaps

    with followed.model:
        assert in_child(child) == "gave 1"
        followed.model.close()
        assert in_child(lambda: followed.model._thread.is_alive()) == "gave False"
