"""docs/tutorial-board.md: its commands, one after the other, with an emulated Python in place of the board."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.needs import need, need_aarch64_compiler
from tests.project.tutorials import MOST, QUERIES, blocks, changed, commands, run_commands

pytestmark = [pytest.mark.slow, pytest.mark.emulated]
REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = "tutorial-board.md"
BOARD = "pi@raspberrypi.local:"


def test_it_has_few_commands() -> None:
    assert 5 < len(commands(PAGE)) <= MOST


def test_its_commands_work(tiny_model: Path, arm64_python: str, tmp_path: Path) -> None:
    need_aarch64_compiler()
    need("qemu-aarch64", "qemu-user")
    board = tmp_path / "board"
    board.mkdir()
    (tmp_path / "my-encoder").symlink_to(tiny_model)
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES * 40))
    (program,) = blocks(PAGE, "python")
    (tmp_path / "embed.py").write_text(changed(program, {"101, 7592, 2088, 102": "1, 4, 5, 2"}))
    changes = {
        # A tiny model for one instruction set, and little time for measurements.
        "--target cpu-aarch64": "--target raspberry-pi-5",
        "--max-length 256": "--max-length 32",
        "report --output": "report --seconds 1 --output",
        "bench --calibrate": "bench --seconds 1 --calibrate",
        # The board.
        "scp -r ": "cp -r ",
        "scp ": "cp ",
        BOARD: "board/",
        "edgecompile ": f"{sys.executable} -m edgecompile ",
    }
    python = f"env -C board -u PYTHONPATH QEMU_CPU=cortex-a76 {arm64_python}"
    lines = []
    for line in changed("\n".join(commands(PAGE)), changes).splitlines():
        if not line.startswith(("sudo ", "pip ")):
            lines.append(line.replace("python3 ", f"{python} ", 1))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    printed = run_commands(lines, tmp_path, environment)
    assert "variant aarch64-dotprod" in printed
    assert "last_hidden_state (1, 4, 16)" in printed
    assert json.loads((board / "report.json").read_text())["selftest"]["ok"]
    # The last command's plan is one of the board's own times.
    assert (tmp_path / "calibration.json").is_file() and "Baselines" in printed
