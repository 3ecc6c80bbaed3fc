"""Two processes that finish at once, one bundle or two."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.fake_gpu.rig import Rig, wait_for_pause

pytestmark = pytest.mark.slow


def wait_until_it_waits(process: subprocess.Popen[str]) -> str:
    """The line that says so."""
    assert process.stderr is not None
    while True:
        line: str = process.stderr.readline()
        assert line, "it didn't wait"
        if "waiting until it is done" in line:
            return line


def test_the_second_waits_and_finds_the_engine(rig: Rig) -> None:
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"build_serialized_network:1:{pause}") as first:
        wait_for_pause(pause, first)
        with rig.start() as second:
            assert f"another process ({first.pid})" in wait_until_it_waits(second)
            pause.unlink()
            first_report = json.loads(first.communicate()[0])
            second_report = json.loads(second.communicate()[0])
    assert first_report["state"] == "finished"
    assert second_report["state"] == "already finished"
    assert second_report["engine"] == first_report["engine"]
    assert len(rig.calls("build_serialized_network")) == 1


def test_the_second_goes_on_where_the_first_was_killed(rig: Rig) -> None:
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"deserialize_cuda_engine:1:{pause}") as first:
        wait_for_pause(pause, first)
        with rig.start() as second:
            wait_until_it_waits(second)
            first.kill()
            report = json.loads(second.communicate()[0])
    assert report["state"] == "finished"
    assert len(rig.calls("build_serialized_network")) == 1


def test_two_bundles_take_turns(rig: Rig, fake_cudart_path: Path) -> None:
    """Who builds measures kernels; two at once would measure each other."""
    (rig.folder / "other").mkdir()
    other = Rig(rig.folder / "other", fake_cudart_path)
    other.environment["EDGECOMPILE_CACHE"] = str(rig.cache)
    other.bundle.recipe["builder"]["optimization_level"] = 2
    pause = rig.folder / "paused"
    with rig.start(FAKE_TRT_PAUSE=f"build_serialized_network:1:{pause}") as first:
        wait_for_pause(pause, first)
        with other.start() as second:
            wait_until_it_waits(second)
            assert other.calls("build_serialized_network") == []
            pause.unlink()
            assert json.loads(second.communicate()[0])["state"] == "finished"
        assert json.loads(first.communicate()[0])["state"] == "finished"
    assert len(rig.engines) == 2
