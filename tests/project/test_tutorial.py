"""docs/tutorial.md: its commands, one after the other, from the wheels in an environment of its own."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from examples.demo.inputs import find_model
from tests.project.tutorials import MOST, QUERIES, changed, commands
from tests.project.wheels import run_from_wheels

pytestmark = pytest.mark.slow
PAGE = "tutorial.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the queries that the page supposes and a model: MiniLM's first layer, as the others take as long."""
    shutil.copytree(find_model(), tmp_path / "my-encoder")
    config = tmp_path / "my-encoder" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 1}))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES * 40))
    return tmp_path


def shorter(lines: list[str]) -> list[str]:
    """The same for one instruction set, short texts and a free port. Of the two that measure, the last one does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changes = {
        "--target cpu-x86-64 ": "--target cpu-x86-64-v3 ",
        "--max-length 256": "--max-length 32",
        "--profile server": "--profile server --quick",
        "8000": str(port),
    }
    return changed("\n".join(lines), changes).splitlines()


def test_it_has_few_commands() -> None:
    assert 5 < len(commands(PAGE)) <= MOST


def test_its_commands_work(folder: Path, dist: Path) -> None:
    assert '"embedding"' in run_from_wheels(shorter(commands(PAGE)), folder, dist)
