"""Fixtures of the runtime's tests. They run with pytest and numpy alone, also under Python 3.8."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecompile.runtime.manifest import Manifest, parse_manifest
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
