"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import COSTS, LENGTHS


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with lengths and costs."""
    (tmp_path / "lengths.txt").write_text(LENGTHS)
    (tmp_path / "costs.csv").write_text(COSTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes to a file without a width, whatever the terminal's is that the tests were started from."""
    monkeypatch.delenv("COLUMNS", raising=False)
