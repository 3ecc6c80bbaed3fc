"""stats_file: what is in the file, when it is written, and what happens when it can't be."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.stats.counters import Stats
from edgecompile.runtime.stats.file import StatsWriter, format_time


@pytest.fixture
def stats(manifest: Manifest) -> Stats:
    return Stats(manifest)


@pytest.fixture
def writer(stats: Stats, manifest: Manifest, tmp_path: Path) -> StatsWriter:
    return StatsWriter(stats, manifest, "ab" * 32, "x86-64-v3", str(tmp_path / "tiny.ecb"))


def record(stats: Stats, count: int = 1) -> None:
    for _ in range(count):
        stats.record(0, {"batch": 1, "length": 7}, 2_000_000)


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_what_is_in_it(stats: Stats, writer: StatsWriter, tmp_path: Path) -> None:
    stats.since = 1_795_255_200.9
    record(stats, 3)
    stats.record_refusal({"batch": 1, "length": 99})
    before = time.time()
    assert writer.write(tmp_path / "x") == os.path.realpath(tmp_path / "x")
    seen = read(tmp_path / "x")
    head = [
        "stats_version",
        "bundle",
        "manifest_sha256",
        "release",
        "variant",
        "since",
        "until",
        "axes",
    ]
    assert list(seen) == head + list(stats.snapshot())
    assert {key: seen[key] for key in stats.snapshot()} == stats.snapshot()
    assert (seen["stats_version"], seen["bundle"]) == (1, "tiny")
    assert (seen["manifest_sha256"], seen["variant"]) == ("ab" * 32, "x86-64-v3")
    assert seen["since"] == "2026-11-21T10:00:00Z" and seen["axes"] == ["length", "batch"]
    assert format_time(before) <= seen["until"] <= format_time(time.time())
    assert seen["runs"] == 3 and seen["outside"] == {"99": 1}


def test_when_it_is_written(stats: Stats, writer: StatsWriter, tmp_path: Path) -> None:
    place = tmp_path / "x"
    record(stats)
    writer.tick(time.perf_counter_ns())
    writer.finish()
    assert not list(tmp_path.iterdir()), "without a path nothing is written"

    writer.schedule(place, 60)
    now = time.perf_counter_ns()
    writer.tick(now)
    assert not place.exists()
    writer.tick(now + 61 * 10**9)
    assert read(place)["runs"] == 1
    record(stats)
    writer.tick(now + 120 * 10**9)
    assert read(place)["runs"] == 1
    writer.tick(now + 122 * 10**9)
    assert read(place)["runs"] == 2
    record(stats)
    writer.finish()
    assert read(place)["runs"] == 3


def test_one_thread_writes_and_the_others_go_on(
    stats: Stats, writer: StatsWriter, tmp_path: Path
) -> None:
    writer.schedule(tmp_path / "x", 1)
    record(stats)
    with writer._lock:
        writer.tick(time.perf_counter_ns() + 10**10)
    assert not (tmp_path / "x").exists()


def test_nothing_is_not_written(writer: StatsWriter, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("of an earlier process")
    writer.schedule(tmp_path / "x", 1)
    writer.finish()
    assert (tmp_path / "x").read_text() == "of an earlier process"


def test_a_failure_is_remembered_until_it_is_over(
    stats: Stats, writer: StatsWriter, tmp_path: Path
) -> None:
    place = tmp_path / "folder" / "x"
    place.parent.mkdir()
    writer.schedule(place, 1)
    place.parent.rmdir()
    record(stats)
    writer.finish()
    assert writer.error == f"{os.path.realpath(place)}: can't be written: No such file or directory"
    with pytest.raises(InputError, match="doesn't exist"):
        writer.write(place)
    place.parent.mkdir()
    writer.finish()
    assert writer.error is None and read(place)["runs"] == 1


def test_any_failure_is_remembered(
    stats: Stats, writer: StatsWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.schedule(tmp_path / "x", 1)
    record(stats)

    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(stats, "snapshot", fail)
    writer.finish()
    assert writer.error is not None and writer.error.endswith("can't be written: MemoryError")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("every", [0, -1, float("nan"), float("inf"), 1e10, True, "1", None])
def test_every_out_of_range(writer: StatsWriter, tmp_path: Path, every: Any) -> None:
    with pytest.raises(InputError, match=r"stats_every is .*, must be seconds"):
        writer.schedule(tmp_path / "x", every)


def test_paths_out_of_the_question(writer: StatsWriter, tmp_path: Path) -> None:
    (tmp_path / "tiny.ecb").mkdir()
    for path in (tmp_path, tmp_path / "nowhere" / "x", tmp_path / "tiny.ecb" / "x", 3):
        with pytest.raises(InputError, match="stats_file"):
            writer.schedule(path, 1)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="the statistics file"):
            writer.write(path)  # type: ignore[arg-type]


def test_after_a_fork(
    stats: Stats, writer: StatsWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writer.schedule("x-{pid}", 1)
    monkeypatch.setattr(os, "getpid", lambda: 123456)
    monkeypatch.chdir("/")
    assert writer._lock.acquire()  # as a thread of the parent may have at the fork
    writer.after_fork()
    record(stats)
    writer.finish()
    assert read(tmp_path / "x-123456")["runs"] == 1 and writer.error is None

    writer.schedule(tmp_path / "x", 1)
    writer.after_fork()
    writer.finish()
    writer.tick(time.perf_counter_ns() + 10**12)
    assert not (tmp_path / "x").exists()
    assert writer.error is not None and "forked from" in writer.error
