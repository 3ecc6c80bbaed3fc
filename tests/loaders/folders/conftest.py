"""The folder that tests of folders share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.factories.folders import write_model

    return write_model(tmp_path_factory.mktemp("bert"))
