"""The unit for systemd: its form, and that its numbers are the server's. No systemd runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from edgecompile.runtime.base.errors import InputError
from edgecompile.server.__main__ import make_parser
from edgecompile.server.process.worker import UNUSABLE
from tests.needs import need

UNIT = Path(__file__).resolve().parents[2] / "docker" / "systemd" / "edgecompile.service"
PYTHON = "/opt/edgecompile/bin/python"


def setting(name: str) -> list[str]:
    """The words of a setting."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.M)
    return str(value).split()


def test_systemd_takes_it(tmp_path: Path) -> None:
    analyze = need("systemd-analyze", "systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PYTHON, sys.executable))
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
