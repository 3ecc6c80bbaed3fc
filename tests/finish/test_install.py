"""An installation builds the engine of the new version while the one before serves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fake_gpu.rig import Rig, wait_for_pause
from tests.finish.outcome import WHOLE

pytestmark = pytest.mark.slow


def begin(rig: Rig, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edgecompile.runtime", *arguments, "--store", str(rig.folder / "store"), "--json"],
        env={**rig.environment, **environment}, cwd=rig.folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(rig: Rig, *arguments: str, **environment: str) -> dict[str, Any]:
    process = begin(rig, *arguments, **environment)
    report: dict[str, Any] = json.loads(process.communicate()[0])
    return report


def test_the_old_version_serves_meanwhile(rig: Rig) -> None:
    path = rig.bundle.write()
    old = run(rig, "install", path)
    assert rig.names() == WHOLE
    shutil.rmtree(rig.cache)
    rig.bundle.files["reports/plan.json"] = b'{"new": 1}'
    rig.bundle.write()
    pause = rig.folder / "paused"
    process = begin(rig, "install", path, FAKE_TRT_PAUSE=f"tactic:5:{pause}")
    wait_for_pause(pause, process)
    assert run(rig, "start", rig.bundle.document["name"])["path"] == old["path"]
    pause.unlink()
    new = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert new["path"] != old["path"]
    assert rig.names() == WHOLE
    assert Path(new["store"], "current").samefile(new["path"])


def test_an_engine_that_can_not_be_built(rig: Rig) -> None:
    path = rig.bundle.write()
    del rig.environment["EDGECOMPILE_CUDART"]
    report = run(rig, "install", path)
    assert report["error"]["code"] == 19
    assert list((rig.folder / "store").glob("*/versions/*")) == []
