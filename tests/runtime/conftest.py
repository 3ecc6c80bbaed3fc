"""Fixtures of the runtime's tests. They run with pytest and numpy alone, also under Python 3.8."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Manifest
from tests.runtime.bundles import DummyBundle


@pytest.fixture
def bundle(tmp_path: Path) -> DummyBundle:
    """A valid bundle with dummy libraries; nothing is written before ``bundle.write()``."""
    return DummyBundle(tmp_path / "tiny.ecb")


@pytest.fixture
def manifest(bundle: DummyBundle) -> Manifest:
    """The manifest of that bundle."""
    return parse_manifest(json.dumps(bundle.listed()).encode())


@pytest.fixture
def compile_c(tmp_path: Path) -> Callable[[str], bytes]:
    """compile_c(source) -> bytes of a shared library made of C text, for hostile libraries."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def build(source: str) -> bytes:
        path = tmp_path / "library.so"
        command = [compiler, "-shared", "-fPIC", "-o", str(path), "-x", "c", "-"]
        subprocess.run(command, input=source.encode(), check=True)
        return path.read_bytes()

    return build


@pytest.fixture(scope="session")
def native_bundle(request: pytest.FixtureRequest) -> str:
    """A real bundle: EDGECOMPILE_TEST_BUNDLE, or the one that tests/conftest.py builds.

    Where torch isn't installed there is no builder, so only the variable helps there.
    """
    path = os.environ.get("EDGECOMPILE_TEST_BUNDLE")
    if path:
        return path
    try:
        return str(request.getfixturevalue("tiny_bundle"))
    except pytest.FixtureLookupError:
        pytest.skip("needs a bundle: set EDGECOMPILE_TEST_BUNDLE")


@pytest.fixture
def native_copy(native_bundle: str, tmp_path: Path) -> Path:
    """A copy of the real bundle that may be changed: replace files, never write into them."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    folder = tmp_path / "copy.ecb"
    shutil.copytree(native_bundle, folder, copy_function=link)
    return folder
