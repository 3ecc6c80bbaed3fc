"""The decoder that tests of generation share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecompile.runtime import Model, open_bundle


@pytest.fixture(scope="module")
def model(decoder_bundle: Path) -> Iterator[Model]:
    with open_bundle(decoder_bundle, threads=1) as opened:
        yield opened
