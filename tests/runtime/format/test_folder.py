"""files: opening and hashing. The rules one by one: test_format.py."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import DamagedBundleError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.hashes import hash_descriptor
from tests.runtime.bundles import DummyBundle


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_whole_bundle(bundle: DummyBundle) -> None:
    before = open_descriptors()
    folder = BundleFolder(bundle.write())
    seen: list[str] = []
    folder.check_sizes()
    folder.check_hashes(seen.append)
    assert seen == sorted(bundle.files)
    data = (bundle.folder / "manifest.json").read_bytes()
    assert folder.manifest_sha256 == hashlib.sha256(data).hexdigest()
    folder.close()
    folder.close()
    assert open_descriptors() == before


def test_all_damage_is_reported_at_once_and_nothing_stays_open(bundle: DummyBundle) -> None:
    path = bundle.write()
    (bundle.folder / "weights.fp32").write_bytes(b"")
    (bundle.folder / "golden/0-hint.npz").unlink()
    (bundle.folder / "reports/plan.json").write_bytes(b"[]")
    folder = BundleFolder(path)
    before = open_descriptors()
    with pytest.raises(DamagedBundleError) as caught:
        folder.check_hashes()
    message = caught.value.message
    assert "weights.fp32: has 0 bytes" in message
    assert "golden/0-hint.npz: is missing" in message
    assert "reports/plan.json: has SHA-256" in message
    assert caught.value.hint is not None
    assert open_descriptors() == before
    folder.close()


def test_files_that_are_not_listed_are_named(bundle: DummyBundle) -> None:
    path = bundle.write()
    (bundle.folder / "runtime" / "__pycache__").mkdir(parents=True)
    (bundle.folder / "runtime" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (bundle.folder / "code" / "x86-64-v3" / "link.so").symlink_to("bucket-0.so")
    (bundle.folder / "na\nme\udc80").write_bytes(b"x")
    folder = BundleFolder(path)
    folder.check_sizes()
    before = open_descriptors()
    with pytest.raises(DamagedBundleError) as caught:
        folder.check_hashes()
    assert open_descriptors() == before
    folder.close()
    # A folder without a listed file is named and not walked.
    for name in ("runtime", "code/x86-64-v3/link.so", "na?me?"):
        assert f"  {name}: isn't listed in the manifest [file-unlisted]" in caught.value.message
    assert "x.pyc" not in caught.value.message and "3 problems" in caught.value.message
    assert caught.value.hint is not None and "__pycache__" in caught.value.hint


def test_an_empty_file_may_keep_byte_code_out(bundle: DummyBundle) -> None:
    folder = BundleFolder(bundle.write())
    place = bundle.folder / "code" / "__pycache__"
    place.touch()
    folder.check_hashes()
    for change in (
        lambda: place.write_bytes(b"x"),
        lambda: (place.unlink(), place.mkdir()),
        lambda: (place.rmdir(), place.symlink_to("/dev/null")),
    ):
        change()
        with pytest.raises(DamagedBundleError, match="code/__pycache__: isn't listed"):
            folder.check_hashes()
    folder.close()


def test_looking_for_files_that_are_not_listed_ends(
    bundle: DummyBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecompile.runtime.format.document._TOO_MANY", 50)
    path = bundle.write()
    for index in range(60):
        (bundle.folder / f"{index}").mkdir()
    folder = BundleFolder(path)
    with pytest.raises(DamagedBundleError, match="50 or more problems"):
        folder.check_hashes()
    folder.close()


def test_the_bundle_itself_may_be_a_link(bundle: DummyBundle, tmp_path: Path) -> None:
    bundle.write()
    (tmp_path / "current.ecb").symlink_to(bundle.folder)
    folder = BundleFolder(str(tmp_path / "current.ecb"))
    folder.check_hashes()
    folder.close()


def test_a_renamed_folder_stays_open(bundle: DummyBundle) -> None:
    folder = BundleFolder(bundle.write())
    bundle.folder.rename(bundle.folder.with_name("other.ecb"))
    folder.check_hashes()
    folder.close()


def test_hash_of_more_than_one_chunk(tmp_path: Path) -> None:
    data = random.Random(1).randbytes((1 << 21) + 17)
    (tmp_path / "x").write_bytes(data)
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        assert hash_descriptor(fd, len(data)) == (hashlib.sha256(data).hexdigest(), len(data))
    finally:
        os.close(fd)


def test_an_unreadable_file_is_damage(bundle: DummyBundle) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    path = bundle.write()
    (bundle.folder / "weights.fp32").chmod(0)
    folder = BundleFolder(path)
    with pytest.raises(DamagedBundleError, match="file-kind"):
        folder.check_sizes()
    folder.close()
