"""The decoder that tests of generation share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecompile.runtime import Model, open_bundle
from tests.conftest import family_once


@pytest.fixture(scope="module")
def model(decoder_bundle: Path) -> Iterator[Model]:
    with open_bundle(decoder_bundle, threads=1) as opened:
        yield opened


# Families with states of a fixed size. Tests of turns, of lookup and of several texts share their builds.


@pytest.fixture(scope="session")
def mamba2_together(shared_folder: Path) -> Path:
    """A family with states alone, with a program for up to four texts."""
    return family_once(shared_folder, "mamba2-together", "mamba2", texts=4)


@pytest.fixture(scope="session")
def falcon_together(shared_folder: Path) -> Path:
    """A family with states beside attention, whose caches are int8, with lookup and such a program."""
    load = {"cache_precision": "int8", "lookup": 4}
    return family_once(shared_folder, "falcon-together", "falcon_h1", load, texts=4)


@pytest.fixture(scope="session")
def qwen_together(shared_folder: Path) -> Path:
    """A family with the delta rule in int4, whose caches are bfloat16, with lookup and such a program."""
    load = {"calm": True, "cache_precision": "bf16", "lookup": 4}
    return family_once(shared_folder, "qwen-together", "qwen3_5", load, precision="int4", texts=4)
