"""A server that tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecompile.server.http import connections
from tests.server.sockets import Served


@pytest.fixture(scope="module", params=["httptools", "h11"])
def served(request: pytest.FixtureRequest, tiny_bundle: Path) -> Iterator[Served]:
    if request.param == "httptools":
        pytest.importorskip("httptools")
    patch = pytest.MonkeyPatch()
    patch.setattr(connections, "_SWEEP", 0.05)
    server = Served(tiny_bundle, request.param)
    yield server
    server.close()
    patch.undo()
