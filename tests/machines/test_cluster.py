"""What is said where Ray isn't installed; tests/backends/test_remote.py has a cluster."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from edgecompile.errors import MissingDependencyError
from edgecompile.machines.cluster import need_ray, open_cluster
from tests.cli.command import run


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )


@pytest.mark.usefixtures("without_ray")
def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(MissingDependencyError, match=r"edgecompile\[ray\]"):
        need_ray()
    with pytest.raises(MissingDependencyError), open_cluster():
        pass


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("arguments", [("build", "model"), ("compile", "-w", "work")])
def test_commands_say_so_before_they_read_anything(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, "--on", "ray")
    assert result.exit_code == MissingDependencyError.exit_code
    assert "pip install 'edgecompile[ray]'" in result.stderr
