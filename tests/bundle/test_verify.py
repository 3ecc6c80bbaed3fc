"""Verification runs a bundle as a device would, and tells what that says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgecompile.bundle.verify import verify_bundle
from edgecompile.errors import VerificationError
from edgecompile.runtime.format.manifest import parse_manifest


def test_an_error_of_the_device_is_told_in_its_own_words(rows_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(rows_bundle, tmp_path / "damaged.ecb"))
    manifest = parse_manifest((bundle / "manifest.json").read_bytes(), str(bundle))
    weights = bundle / next(iter(manifest.weights.values()))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)
    names = [variant.name for variant in manifest.variants]
    with pytest.raises(VerificationError) as caught:
        verify_bundle(bundle, [], names, manifest.tolerance)
    assert f"runtime failed with variant {names[0]}: " in caught.value.message
    assert weights.name in caught.value.message
    assert caught.value.hint
