"""Verification runs a bundle as a device would, and tells what that says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgecompile.bundle.verify import device_environment, run_selftest, verify_bundle
from edgecompile.errors import VerificationError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from tests.runtime.signed import SignedBundle

REPOSITORY = Path(__file__).resolve().parents[2]


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


def test_the_builder_s_word_on_signatures_holds_in_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = SignedBundle(tmp_path)
    (signed.path / "runtime").mkdir()
    (signed.path / "runtime" / "edgecompile").symlink_to(REPOSITORY / "edgecompile")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGECOMPILE_TRUST", "trust")
    with pytest.raises(VerificationError, match=r"isn't signed, and .*/trust wants signatures"):
        run_selftest(signed.path, signed.path, "generic")
    monkeypatch.setenv("EDGECOMPILE_TRUST", "off")
    assert device_environment(signed.path)["EDGECOMPILE_TRUST"] == "off"
    with pytest.raises(VerificationError, match=r"\[file-unlisted\]"):  # the link
        run_selftest(signed.path, signed.path, "generic")
