"""finish killed at any moment, or its builder or tester."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.fake_gpu.rig import Rig, wait_for_end, wait_for_pause
from tests.finish.outcome import WHOLE, check_served

pytestmark = pytest.mark.slow

BUILDING = [
    "Builder:1",
    "create_network:1",
    "parse_from_file:1",
    "set_shape:2",
    "create_timing_cache:1",
    "build_serialized_network:1",
    "tactic:5",
    "get_timing_cache:1",
]
TESTING = [
    "Runtime:1",
    "deserialize_cuda_engine:1",
    "create_execution_context:2",
    "execute_async_v3:1",
    "execute_async_v3:4",
]


@pytest.mark.parametrize("point", [*BUILDING, *TESTING])
def test_killed_and_run_again(rig: Rig, point: str) -> None:
    rig.kill_at(point)  # and its worker ended with it
    assert list(rig.cache.rglob("stamp.json")) == []
    again = rig.finish()
    assert again.report["state"] == "finished" and rig.names() == WHOLE
    if point in TESTING:
        assert "built before, not tested yet" in again.stderr
        assert len(rig.calls("build_serialized_network")) == 1
    check_served(rig, [3, 40], ("default",))


@pytest.mark.parametrize("point", BUILDING)
def test_the_builder_is_killed(rig: Rig, point: str) -> None:
    (rig.folder / "counts").mkdir()
    rig.environment["FAKE_TRT_COUNTS"] = str(rig.folder / "counts")
    stderr = rig.kill_at(point, worker=True)
    assert "was ended by SIGKILL" in stderr and "trying again: workspace 256 MiB" in stderr
    del rig.environment["FAKE_TRT_COUNTS"]
    assert rig.finish().report["state"] == "already finished" and rig.names() == WHOLE


@pytest.mark.parametrize("point", TESTING)
def test_the_tester_is_killed(rig: Rig, point: str) -> None:
    stderr = rig.kill_at(point, worker=True)
    assert "error: the engine can't be tested" in stderr and "SIGKILL" in stderr
    assert rig.finish().report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1


@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"])
def test_a_tester_that_is_told_to_end_accuses_no_engine(rig: Rig, how: str) -> None:
    done = rig.finish(FAKE_TRT_FAIL=f"execute_async_v3:1:{how}")
    assert done.code == 60 and how in done.stderr
    assert rig.names() == ["built.json", "engine"]
    assert len(list((rig.cache / "timing").iterdir())) == 1
    assert rig.finish().report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1


@pytest.mark.parametrize("how", ["segv", "abort", "SIGBUS", "SIGILL", "SIGFPE"])
def test_an_engine_that_ends_its_process_is_dropped(rig: Rig, how: str) -> None:
    done = rig.finish(FAKE_TRT_FAIL=f"execute_async_v3:1:{how}")
    assert done.code == 60 and rig.names() == []
    assert rig.finish().report["state"] == "finished"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(rig: Rig, number: signal.Signals) -> None:
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"tactic:3:{pause}") as child:
        worker = wait_for_pause(pause, child)
        os.kill(child.pid, number)
        stderr = child.communicate()[1]
    wait_for_end(worker)
    assert child.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in stderr
    assert rig.finish().report["state"] == "finished" and rig.names() == WHOLE


KILLER = """
import os, signal, sys
from edgecompile.runtime.__main__ import main
left = int(sys.argv[1])
def deadly(name, when):
    real = getattr(os, name)
    def call(*arguments, **options):
        global left
        if not when(*arguments):
            return real(*arguments, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, call)
always = lambda *arguments: True
for name in ("replace", "unlink", "fsync", "mkdir", "ftruncate", "pwrite"):
    deadly(name, always)
deadly("open", lambda path, flags=0, *rest: flags & os.O_CREAT)
sys.exit(main(["finish", sys.argv[2], "--json"]))
"""


def test_killed_before_everything_that_it_writes(rig: Rig) -> None:
    """Between one change of the disk and the next, until there is none left to be killed at."""
    rig.bundle.write()
    command = [sys.executable, "-c", KILLER]
    steps = 0
    while True:
        steps += 1
        rig.log.unlink(missing_ok=True)
        done = subprocess.run(
            [*command, str(steps), str(rig.bundle.folder)],
            env=rig.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert rig.finish().code == 0
        # Killed right after the stamp, it leaves a word that nobody heeds any more.
        assert [name for name in rig.names() if name != "built.json"] == WHOLE
        check = json.loads((rig.engines[0] / "stamp.json").read_text())
        (engine,) = rig.engines[0].glob("engine-*")
        assert check["engine"]["size"] == engine.stat().st_size
        for path in [*rig.engines[0].iterdir(), *(rig.cache / "timing").iterdir()]:
            path.unlink()
    assert steps > 12
