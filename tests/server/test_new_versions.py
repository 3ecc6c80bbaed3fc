"""Another version of a bundle in the place of the served one: taken over, or refused if it is bad."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.generative import replace_files
from tests.runtime.golden_files import write_case
from tests.server.processes import Load, serving


def expect_other_answers(bundle: Path) -> None:
    """Changes what one golden vector expects: all hashes are right, and the model's answers aren't its."""
    document = json.loads((bundle / "manifest.json").read_bytes())
    name = document["golden"][-1]["file"]
    with np.load(bundle / name) as case:
        inputs = {key[3:]: case[key] for key in case.files if key.startswith("in.")}
        outputs = {key[4:]: case[key] + 1 for key in case.files if key.startswith("out.")}
    assert inputs and outputs
    replace_files(bundle, document, {name: write_case(inputs, outputs)})


def test_it_is_never_ready_where_golden_vectors_fail(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "served.ecb"
    shutil.copytree(tiny_bundle, bundle)
    expect_other_answers(bundle)
    command = [sys.executable, "-m", "edgecompile.server", "--port", "0", "--json", str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert re.search(r"error: .*: 1 of [1-9]\d* golden vectors failed", done.stderr)
    assert "serving on" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ["signal", "watch"])
def test_a_new_version_takes_over_without_a_loss(
    tiny_bundle: Path, tmp_path: Path, way: str
) -> None:
    bundle = tmp_path / "served.ecb"
    shutil.copytree(tiny_bundle, bundle)
    with serving(bundle, "--watch", "0.2" if way == "watch" else "0") as server:
        with Load(server.port, tiny_bundle) as load:
            for turn in range(4):
                load.wait(30)
                (worker,) = server.workers()
                old = server.ask("GET", "/v2/models/tiny")[1]["versions"]
                other = tmp_path / f"other-{turn}.ecb"
                shutil.copytree(tiny_bundle, other)
                document = json.loads((other / "manifest.json").read_text())
                document["expected"]["turn"] = turn
                (other / "manifest.json").unlink()
                (other / "manifest.json").write_text(json.dumps(document, indent=1))
                bundle.rename(tmp_path / f"gone-{turn}")
                other.rename(bundle)
                if way == "signal":
                    server.process.send_signal(signal.SIGHUP)
                while server.ask("GET", "/v2/models/tiny")[1]["versions"] == old:
                    time.sleep(0.02)
                while worker in server.workers():
                    time.sleep(0.02)
            load.wait(30)
        assert not load.lost and not load.wrong and set(load.statuses) == {200}
        assert server.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["absent", "golden"])
def test_a_bad_new_version_changes_nothing(tiny_bundle: Path, tmp_path: Path, way: str) -> None:
    bundle = tmp_path / "served.ecb"
    shutil.copytree(tiny_bundle, bundle)
    with serving(bundle) as server, Load(server.port, tiny_bundle) as load:
        (worker,) = server.workers()
        load.wait(20)
        old = server.ask("GET", "/v2/models/tiny")[1]["versions"]
        bundle.rename(tmp_path / "gone")
        if way == "golden":
            shutil.copytree(tiny_bundle, bundle)
            expect_other_answers(bundle)
        server.process.send_signal(signal.SIGHUP)
        load.wait(20)
        while len(server.workers()) < 2:
            time.sleep(0.01)
        while len(server.workers()) > 1:
            time.sleep(0.01)
        load.wait(20)
        assert server.workers() == [worker]
        assert server.ask("GET", "/v2/models/tiny")[1]["versions"] == old
        load.stop()
        assert not load.lost and not load.wrong and set(load.statuses) == {200}
        assert server.end() == 0 and "the old one goes on" in server.err, server.err
        if way == "golden":
            assert re.search(r"golden vectors failed.*ended with 3: the old", server.err, re.S)
