"""A module's ``bundle``, opened by either runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecompile.runtime.model.model import Model
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.native.c_runtime.c_library import CLibrary, CModel


@pytest.fixture(scope="module")
def python_model(bundle: Path) -> Iterator[Model]:
    with open_bundle(bundle) as model:
        yield model


@pytest.fixture(scope="module")
def host_model(library: CLibrary, bundle: Path) -> Iterator[CModel]:
    with library.open(str(bundle)) as model:
        yield model
