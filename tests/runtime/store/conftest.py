"""Fixtures of the tests of models that follow their versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.store.device import Device
from tests.runtime.store.following import NEW, OLD, Followed


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A device with release 1, whose answers are 1, and release 2 with the answers 2."""
    device = Device(tmp_path_factory.mktemp("followed"))
    for number in (OLD, NEW):
        device.release(number, answer=number)
    return device


@pytest.fixture
def followed(made: Device, tmp_path: Path) -> Iterator[Followed]:
    followed = Followed(made, tmp_path)
    yield followed
    followed.model.close()
