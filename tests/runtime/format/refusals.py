"""That reading a bundle breaks a rule of FORMAT.md, and says so."""

from __future__ import annotations

import os

import pytest

from edgecompile.runtime.base.errors import (
    BundleError,
)
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import map_weights
from edgecompile.runtime.format.golden.cases import read_case
from edgecompile.runtime.format.recipe.parse import read_recipe
from edgecompile.runtime.generation.golden import FILE as GENERATIONS
from edgecompile.runtime.generation.golden import parse_generation_cases
from tests.runtime.bundles import DummyBundle


def read_everything(path: str) -> None:
    """Reads all that opening and testing a bundle reads, short of loading native code."""
    folder = BundleFolder(path)
    try:
        folder.check_sizes()
        for name in folder.manifest.weights.values():
            map_weights(folder, name, check_hash=False)
        for variant in folder.manifest.variants:
            if variant.recipe:
                read_recipe(folder, variant)
        for item in folder.manifest.golden:
            fd = folder.open(item.file)
            try:
                read_case(fd, item.file, folder.manifest)
            finally:
                os.close(fd)
        if GENERATIONS in folder.manifest.files and folder.manifest.generation is not None:
            with os.fdopen(folder.open(GENERATIONS), "rb") as stream:
                parse_generation_cases(stream.read(), GENERATIONS, folder.manifest)
        folder.check_hashes()
    finally:
        folder.close()


def refused(bundle: DummyBundle, rule: str, text: str) -> BundleError:
    """The error that reading it raises, which names the rule and says the text."""
    with pytest.raises(BundleError) as caught:
        read_everything(bundle.write())
    assert f"[{rule}]" in caught.value.message
    assert text in caught.value.message
    return caught.value
