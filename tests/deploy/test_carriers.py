"""What RAUC and Ansible run on a device: the hook and the play of docker/, with a store."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgecompile.runtime.__main__ import make_parser
from tests.runtime.store.device import Device, pack

REPOSITORY = Path(__file__).resolve().parents[2]
HOOK = REPOSITORY / "docker" / "rauc" / "hook.sh"
PLAY = REPOSITORY / "docker" / "ansible" / "minilm.yaml"
PYTHON = "/opt/edgecompile/bin/python"


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "device")


@pytest.mark.parametrize("damaged", [False, True])
def test_rauc_installs_the_archive_or_hears_of_the_failure(
    device: Device, tmp_path: Path, damaged: bool
) -> None:
    release = device.release(1)
    if damaged:
        (release / "sitecustomize.py").touch()
    archive = pack(release, tmp_path / "minilm.tar")
    hook = tmp_path / HOOK.name
    text = HOOK.read_text()
    assert f"exec {PYTHON} -m" in text and text.endswith(" --user edge\n")
    more = f"--store {shlex.quote(str(device.root))}"
    hook.write_text(text.replace(PYTHON, sys.executable).replace("--user edge", more))
    variables = {"PYTHONPATH": str(REPOSITORY), "EDGECOMPILE_TRUST": str(device.signed.trust)}
    environment = {**os.environ, **variables, "RAUC_IMAGE_NAME": str(archive)}

    def run(what: str) -> int:
        return subprocess.run(["sh", hook, what], env=environment, capture_output=True).returncode

    assert run("slot-pre-install") == 1
    assert run("slot-install") == (22 if damaged else 0)
    assert len([*device.root.glob("*/versions/*")]) == (0 if damaged else 1)


def test_the_play_stops_at_the_first_device_that_fails() -> None:
    (play,) = yaml.safe_load(PLAY.read_text())
    assert (play["serial"], play["max_fail_percentage"]) == ("5%", 0)
    tasks: list[dict[str, Any]] = play["tasks"]
    archive = tasks[0]["ansible.builtin.copy"]["dest"]
    python, module, name, *words = shlex.split(tasks[1]["ansible.builtin.command"])
    assert (python, module, name) == (PYTHON, "-m", "edgecompile.runtime")
    options = make_parser().parse_args(words)
    assert (options.name, options.bundle, options.user) == ("install", archive, "edge")
