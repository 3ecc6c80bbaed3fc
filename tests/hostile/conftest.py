"""A bundle of toy libraries, fresh for each test, so that loaders can be tried to the end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from edgecompile.runtime.cpu.host import VARIANT_VARIABLE
from tests.hostile.toy import (
    ToyLibraries,
    build_libraries,
    find_compiler,
    make_toy_bundle,
)
from tests.runtime.bundles import DummyBundle

_serial = count()


class Toy(NamedTuple):
    """``trace`` exists once an intruder was loaded."""

    bundle: DummyBundle
    libraries: ToyLibraries
    trace: Path


@pytest.fixture(scope="session")
def libraries() -> ToyLibraries:
    if find_compiler() is None:
        pytest.skip("needs a C compiler")
    return build_libraries()


@pytest.fixture
def toy(libraries: ToyLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """A valid bundle whose libraries no test before has loaded: they differ in bytes that nobody
    reads, and a process loads each content once."""
    monkeypatch.delenv(VARIANT_VARIABLE, raising=False)
    trace = tmp_path / "trace"
    monkeypatch.setenv("EDGECOMPILE_INTRUDER_TRACE", str(trace))
    mark = f"test {next(_serial)}".encode()
    fresh = ToyLibraries(*(data + mark for data in libraries))
    yield Toy(make_toy_bundle(tmp_path / "toy.ecb", fresh), fresh, trace)
