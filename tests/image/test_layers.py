"""Layers of images: the same bytes whatever the files' times, owners and order; their digests."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from edgecompile.image.layers import Blobs, Entry, archive_entries, folder_entries


def make_tree(folder: Path, *, mtime: int, umask: int) -> Path:
    old = os.umask(umask)
    try:
        for name in ("b/two", "b/c/three", "one", "b.txt"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            os.utime(path, (mtime, mtime))
        (folder / "one").chmod(0o755)
        (folder / "link").symlink_to("b/two")
    finally:
        os.umask(old)
    return folder


@pytest.mark.parametrize("compress", [False, True])
def test_times_and_masks_do_not_count(tmp_path: Path, compress: bool) -> None:
    layers = []
    for index, umask in enumerate((0o022, 0o077)):
        tree = make_tree(tmp_path / str(index), mtime=1_000_000 * index, umask=umask)
        entries = [*folder_entries(tree, "opt/x/")]
        blobs = Blobs(tmp_path / f"blobs{index}")
        layers.append(blobs.write_layer("x", entries[:: 1 - 2 * index], compress=compress))
    assert layers[0] == layers[1]


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_in_it(tmp_path: Path, compress: bool) -> None:
    tree = make_tree(tmp_path / "tree", mtime=5, umask=0o077)
    blobs = Blobs(tmp_path / "blobs")
    kept = folder_entries(tree, "opt/x/", lambda name: name != "b/two")
    layer = blobs.write_layer("x", kept, compress=compress)
    stored = blobs.path(layer.digest).read_bytes()
    plain = gzip.decompress(stored) if compress else stored
    assert layer.digest == f"sha256:{hashlib.sha256(stored).hexdigest()}"
    assert layer.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert layer.size == len(stored)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        found = {info.name: (info.mode, info.uid, info.mtime) for info in tar}
        assert tar.extractfile("opt/x/b/c/three").read() == b"b/c/three"
        assert tar.getmember("opt/x/link").linkname == "b/two"
    assert found == {
        "opt": (0o755, 0, 0), "opt/x": (0o755, 0, 0), "opt/x/b": (0o755, 0, 0),
        "opt/x/b/c": (0o755, 0, 0), "opt/x/b/c/three": (0o644, 0, 0), "opt/x/b.txt": (0o644, 0, 0),
        "opt/x/link": (0o644, 0, 0), "opt/x/one": (0o755, 0, 0),
    }  # fmt: skip


def test_an_archive_comes_through_without_its_devices(tmp_path: Path) -> None:
    source = tmp_path / "a.tar"
    with tarfile.open(source, "w") as tar:
        for name, kind, link in (
            ("./bin", tarfile.SYMTYPE, "usr/bin"),
            ("./dev/null", tarfile.CHRTYPE, ""),
            ("./usr/bin/b", tarfile.LNKTYPE, "./usr/bin/z"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            tar.addfile(info)
        info = tarfile.TarInfo("./usr/bin/z")
        info.size, info.mode = 3, 0o4755
        tar.addfile(info, io.BytesIO(b"abc"))
    blobs = Blobs(tmp_path / "blobs")
    empty = Entry("tmp", "", kind=tarfile.DIRTYPE)
    with tarfile.open(source) as tar:
        layer = blobs.write_layer("root", [empty, *archive_entries(tar)], compress=False)
    with tarfile.open(blobs.path(layer.digest)) as tar:
        modes = {info.name: info.mode for info in tar}
        # The link comes after what it names, so that it can be unpacked; no setuid bit is left.
        assert [*modes] == ["bin", "tmp", "usr", "usr/bin", "usr/bin/z", "usr/bin/b"]
        assert modes["usr/bin/z"] == 0o755 and modes["tmp"] == 0o1777
        tar.extractall(tmp_path / "out", filter="tar")
    assert (tmp_path / "out/bin/b").read_bytes() == b"abc"


def test_a_blob_that_is_taken_is_checked(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    (tmp_path / "file").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="isn't sha256:00"):
        blobs.take(tmp_path / "file", "sha256:00")
    assert [*blobs.folder.iterdir()] == []
