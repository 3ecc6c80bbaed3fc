"""What tests of profiles share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Writes the PROFILE of a module of tests, with replacements, as mine.toml."""

    def write_profile(*replacements: tuple[str, str]) -> Path:
        text: str = request.module.PROFILE
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_profile
