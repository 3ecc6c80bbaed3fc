"""A program that goes on while versions change: no call is lost, and a bad version changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import follow
from edgecompile.runtime.base.errors import (
    BundleError,
    DamagedBundleError,
    EdgecompileError,
    InputError,
    ModelClosedError,
    SelftestError,
    StoreError,
    UnsignedBundleError,
    UntrustedBundleError,
)
from edgecompile.runtime.store import followed as followed_module
from edgecompile.runtime.store.followed import FollowedModel
from tests.hostile.toy import PROGRAMS, WEIGHTS, build_libraries, make_toy_bundle
from tests.runtime.signed import make_key
from tests.runtime.store.device import MODEL, Device
from tests.runtime.store.following import INPUTS, NEW, OLD, Followed, answer_of, wait_for


def test_no_call_is_lost_over_several_swaps(followed: Followed) -> None:
    threads, wanted, turns = 4, 10_000, 6
    answers: list[list[int]] = [[] for _ in range(threads)]
    failures: list[BaseException] = []

    def call(seen: list[int]) -> None:
        try:
            while len(seen) < wanted // threads or followed.model.swaps < turns:
                seen.append(followed.answer())
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=call, args=(seen,)) for seen in answers]
    for caller in callers:
        caller.start()
    for turn in range(turns):
        before = [len(seen) for seen in answers]
        wait_for(
            lambda b=before: all(  # type: ignore[misc]
                len(s) > n for s, n in zip(answers, b, strict=True)
            ),
            *callers,
        )
        expected = (NEW, OLD)[turn % 2]
        followed.serve(expected)
        assert followed.model.refresh()
        assert followed.answer() == expected
    for caller in callers:
        caller.join()
    assert failures == []
    assert sum(map(len, answers)) >= wanted
    assert {answer for seen in answers for answer in seen} == {OLD, NEW}
    assert (followed.model.swaps, followed.model.error) == (turns, None)


def test_a_call_that_comes_too_late_for_a_version_gets_the_next_one(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = followed.model._version.life
    held = life.held

    def late() -> Any:
        monkeypatch.undo()
        followed.serve(NEW)
        assert followed.model.refresh()
        return held()

    monkeypatch.setattr(life, "held", late)
    assert followed.answer() == NEW


def test_the_current_version_of_a_store(made: Device, tmp_path: Path) -> None:
    made.root = tmp_path / "store"
    trust = str(made.signed.trust)
    store = made.store
    with pytest.raises(EdgecompileError, match="doesn't exist"):
        follow(store.path, trust=trust)
    store.make()
    with pytest.raises(StoreError, match="no version is installed"):
        follow(store.path, trust=trust)
    made.install(made.place / "1.ecb")
    with follow(store.path, trust=trust) as model:
        assert not model.refresh()
        made.install(made.place / "2.ecb")
        old, weights = model.path, os.stat(Path(model.path, WEIGHTS))
        with model.use() as first:  # both are open
            assert model.refresh()
            assert answer_of(first.run(INPUTS)) == OLD
            assert answer_of(model.run(INPUTS)) == NEW
            # Equal files are linked, and their pages are there once.
            assert os.stat(Path(model.path, WEIGHTS)).st_ino == weights.st_ino
            maps = Path("/proc/self/maps").read_text().splitlines()
            assert sum(line.split()[4] == str(weights.st_ino) for line in maps) == 1
        with pytest.raises(ModelClosedError):
            first.run(INPUTS)
        assert old != model.path == store.describe()["path"]


def test_weights_that_change_under_an_open_model_are_not_opened_again(
    made: Device, tmp_path: Path
) -> None:
    path = tmp_path / "written.ecb"
    shutil.copytree(made.place / "1.ecb", path)
    with follow(path, trust=False):
        weights = path / WEIGHTS
        with weights.open("r+b") as file:  # the same inode
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
        with pytest.raises(DamagedBundleError, match="file-hash"):
            follow(path, trust=False)


def unsigned(made: Device, path: Path) -> None:
    shutil.rmtree(path / "signatures")


def signed_by_another(made: Device, path: Path) -> None:
    made.signed.path = path
    made.signed.sign(key=make_key())


def damaged(made: Device, path: Path) -> None:
    (path / PROGRAMS[0]).unlink()


def removed(made: Device, path: Path) -> None:
    shutil.rmtree(path)


def rewritten(**changes: Any) -> Callable[[Device, Path], None]:
    """A version whose first input or output, or whose name is another."""

    def change(made: Device, path: Path) -> None:
        shutil.rmtree(path)
        bundle = make_toy_bundle(path, build_libraries())
        for key, value in changes.items():
            where = bundle.document
            *steps, last = key.split("__")
            for step in steps:
                where = where[int(step) if step.isdigit() else step]
            where[last] = value
        made.sign(bundle, number=3, name=bundle.document["name"])

    return change


BAD: dict[str, tuple[type[EdgecompileError], str, Callable[[Device, Path], None]]] = {
    "unsigned": (UnsignedBundleError, "signature-missing", unsigned),
    "another's": (UntrustedBundleError, "signature-trusted", signed_by_another),
    "damaged": (DamagedBundleError, "is missing", damaged),
    "removed": (BundleError, "doesn't exist", removed),
    "another model": (
        BundleError,
        "is of the model tiny-2, not of tiny",
        rewritten(name="tiny-2"),
    ),
    "another dtype": (
        BundleError,
        r"output embedding is float64\[batch, 4\], was float32\[batch, 4\]",
        rewritten(outputs__0__dtype="float64"),
    ),
    "another width": (
        BundleError,
        r"output embedding is float32\[batch, 8\]",
        rewritten(outputs__0__shape=["batch", 8]),
    ),
    "another rank": (
        BundleError,
        r"input input_ids is int64\[length\], was int64\[batch, length\]",
        rewritten(inputs__0__shape=["length"]),
    ),
    "another input": (
        BundleError,
        "has no input attention_mask\n  wants an input mask",
        rewritten(inputs__1__name="mask"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_version_leaves_the_old_one(followed: Followed, tmp_path: Path, name: str) -> None:
    kind, text, spoil = BAD[name]
    path = tmp_path / "bad.ecb"
    shutil.copytree(followed.made.place / "2.ecb", path)
    spoil(followed.made, path)
    followed.serve(path)
    for _ in range(2):
        with pytest.raises(kind, match=text):
            followed.model.refresh()
        assert followed.model.error
        assert (followed.answer(), followed.model.swaps) == (OLD, 0)
    followed.serve(NEW)
    assert followed.model.refresh()
    assert (followed.answer(), followed.model.error) == (NEW, None)


def test_golden_vectors_are_repeated_unless_the_caller_knows_better(
    made: Device, tmp_path: Path
) -> None:
    bad = made.release(3, answer=3, good=False)
    followed = Followed(made, tmp_path)
    unproved = Followed(made, tmp_path, prove=False)
    with followed.model, unproved.model:
        followed.serve(bad)
        with pytest.raises(SelftestError, match="2 of 2 golden vectors failed"):
            followed.model.refresh()
        assert followed.answer() == OLD
        assert unproved.model.refresh()
        assert unproved.answer() == 3


def test_a_version_that_is_removed_while_it_is_open_serves_on(
    followed: Followed, tmp_path: Path
) -> None:
    path = tmp_path / "gone.ecb"
    shutil.copytree(followed.made.place / "2.ecb", path)
    followed.serve(path)
    assert followed.model.refresh()
    shutil.rmtree(path)
    with pytest.raises(BundleError, match="doesn't exist"):
        followed.model.refresh()
    assert followed.answer() == NEW
    followed.serve(OLD)
    assert followed.model.refresh()
    assert followed.answer() == OLD


def test_of_two_refreshes_at_once_one_opens(followed: Followed) -> None:
    followed.serve(NEW)
    together, results = threading.Barrier(2), []

    def refresh() -> None:
        together.wait()
        results.append(followed.model.refresh())

    threads = [threading.Thread(target=refresh) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]
    assert (followed.answer(), followed.model.swaps) == (NEW, 1)


@pytest.mark.parametrize("chosen", [None, 0.002])
def test_calls_wait_less_for_the_interpreter_while_a_version_opens(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, chosen: float | None
) -> None:
    usual, seen = sys.getswitchinterval(), []
    opened = followed_module.open_bundle

    def look(*arguments: Any, **options: Any) -> Any:
        seen.append(sys.getswitchinterval())
        if chosen is not None:  # the program's own choice stays
            sys.setswitchinterval(chosen)
        return opened(*arguments, **options)

    monkeypatch.setattr(followed_module, "open_bundle", look)
    followed.serve(NEW)
    try:
        assert followed.model.refresh()
        assert seen[0] < usual / 5
        assert sys.getswitchinterval() == pytest.approx(chosen or usual)
    finally:
        sys.setswitchinterval(usual)


def test_a_refresh_within_a_block_does_not_wait_for_itself(followed: Followed) -> None:
    with followed.model.use() as model:
        followed.serve(NEW)
        assert followed.model.refresh()
        assert followed.answer() == NEW
    with pytest.raises(ModelClosedError):
        model.run(INPUTS)


def test_each_version_counts_its_own_calls(made: Device, tmp_path: Path) -> None:
    followed = Followed(made, tmp_path, stats_file=tmp_path / "stats-{pid}-{swap}.json")
    with followed.model as model:
        assert model.stats["runs"] == 0  # golden vectors aren't traffic
        for version, calls in ((NEW, 3), (OLD, 2)):
            for _ in range(calls):
                followed.answer()
            assert model.stats["runs"] == calls
            followed.serve(version)
            assert model.refresh()
        followed.answer()
    documents = [
        json.loads((tmp_path / f"stats-{os.getpid()}-{number}.json").read_text())
        for number in range(3)
    ]
    assert [document["runs"] for document in documents] == [3, 2, 1]
    assert [document["release"] for document in documents] == [OLD, NEW, OLD]
    hashes = [document["manifest_sha256"] for document in documents]
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"watch": 0}, "watch is 0, must be seconds"),
        ({"watch": True}, "watch is True"),
        ({"watch": "1"}, "watch is '1'"),
        ({"path": 7}, "path is 7"),
        ({"signal_number": 0}, "signal_number is 0"),
        ({"signal_number": signal.SIGKILL}, "signal_number is"),
        ({"stats_file": "stats-{pid}.json"}, r"has no \{swap\}"),
        ({"stats_file": "/nowhere/{swap}.json"}, "the folder /nowhere doesn't exist"),
        ({"stats_file": "{swap}.json", "stats_every": 0}, "stats_every is 0"),
    ],
)
def test_arguments_that_make_no_sense(made: Device, options: dict[str, Any], text: str) -> None:
    options = {"path": made.place / "1.ecb", "trust": str(made.signed.trust), **options}
    with pytest.raises(InputError, match=text):
        follow(**options)


def test_a_followed_model_has_the_calls_of_a_model(followed: Followed) -> None:
    for name in ("run", "encode_texts", "generate", "complete", "chat", "transcribe"):
        assert getattr(FollowedModel, name).__doc__
    assert followed.model.info["name"] == MODEL
    with pytest.raises(EdgecompileError, match="tokenizer"):
        followed.model.encode_texts(["a text"])
