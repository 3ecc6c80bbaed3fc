"""The wheels, made once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import one_at_a_time
from tests.needs import need
from tests.project.wheels import build_wheels


@pytest.fixture(scope="session")
def dist(shared_folder: Path) -> Path:
    """The folder with the wheels of the builder, the runtime and the server."""
    need("g++", "g++")
    folder = shared_folder / "wheels"
    with one_at_a_time(shared_folder / "wheels.lock"):
        if not (folder / "whole").exists():
            build_wheels(folder)
            (folder / "whole").touch()
    return folder / "dist"
