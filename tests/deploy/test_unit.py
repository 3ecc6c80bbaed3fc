"""The unit for systemd: its form, and that its numbers are the server's. No systemd runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgecompile.runtime.__main__ import make_parser as device_parser
from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.store.state import STORE_FOLDER
from edgecompile.server.__main__ import make_parser
from edgecompile.server.process.worker import UNUSABLE
from tests.needs import need

UNIT = Path(__file__).resolve().parents[2] / "docker" / "systemd" / "edgecompile.service"
STORE = UNIT.with_name("store.conf")
CONTAINER = UNIT.parents[1] / "podman" / "minilm.container"
PYTHON = "/opt/edgecompile/bin/python"


def setting(name: str) -> list[str]:
    """The words of a setting."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.M)
    return str(value).split()


def write_unit(folder: Path, drop_in: bool) -> Path:
    """A copy of the unit that names this Python, with or without the drop-in for a store."""
    unit = folder / UNIT.name
    unit.write_text(UNIT.read_text().replace(PYTHON, sys.executable))
    if drop_in:
        more = folder / f"{UNIT.name}.d" / STORE.name
        more.parent.mkdir()
        more.write_text(STORE.read_text().replace(PYTHON, sys.executable))
    return unit


@pytest.mark.parametrize("drop_in", [False, True])
def test_systemd_takes_it(tmp_path: Path, drop_in: bool) -> None:
    analyze = need("systemd-analyze", "systemd")
    unit = write_unit(tmp_path, drop_in)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_numbers_are_the_server_s() -> None:
    python, flag, module, *words = setting("ExecStart")
    assert (python, flag, module) == (PYTHON, "-m", "edgecompile.server")
    asked = make_parser().parse_args(words)
    # The supervisor kills its workers 5 seconds after their time.
    assert int(*setting("TimeoutStopSec")) > asked.drain_delay + asked.drain_timeout + 5
    wrong = {2, UNUSABLE, InputError.exit_code}
    assert {int(code) for code in setting("RestartPreventExitStatus")} == wrong


def test_a_store_s_commands_are_those_of_the_runtime() -> None:
    text = STORE.read_text()
    commands = re.findall(rf"^(\w+)=\+{PYTHON} -m edgecompile.runtime (.+)$", text, re.M)
    assert commands == [("ExecStartPre", "start minilm"), ("ExecStartPost", "confirm minilm")]
    for _, words in commands:
        assert device_parser().parse_args(words.split()).store == STORE_FOLDER
    served = re.search(rf"^ExecStart={PYTHON} -m edgecompile.server (.+)$", text, re.M)
    assert served and make_parser().parse_args(served[1].split()).bundles == [
        f"{STORE_FOLDER}/minilm/current"
    ]
    # The health check comes before the confirmation, and its failure is one of the service.
    assert text.index("ExecStartPost=/usr/bin/curl") < text.index("ExecStartPost=+")
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.+)$", text, re.M)
    assert UNUSABLE not in {int(code) for code in codes.split()}


def test_podman_waits_until_the_container_is_healthy(tmp_path: Path) -> None:
    """No podman that knows such units is in Debian 12: systemd reads what is its own, and Python the health check."""
    text = CONTAINER.read_text()
    for line in ("Notify=healthy", "AutoUpdate=registry", "ReadOnly=true"):
        assert f"\n{line}\n" in text
    (check,) = re.findall(r"^HealthCmd=(.+)$", text, re.M)
    program, flag, code = json.loads(check)
    assert (program, flag) == ("python3", "-c")
    done = subprocess.run([sys.executable, flag, code.replace("8000", "1")], capture_output=True)
    assert done.returncode == 1 and b"URLError" in done.stderr
    unit = tmp_path / "minilm.service"
    unit.write_text(
        re.sub(r"\[Container\].*?\n\n", "", text, flags=re.S).replace(
            "[Service]", "[Service]\nExecStart=/bin/true"
        )
    )
    analyze = need("systemd-analyze", "systemd")
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
