"""Bundles from archives and images: what is installed, and what is refused before it is on the disk."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.store import staging, unpack
from edgecompile.runtime.store.archive import Names, read_members
from edgecompile.runtime.store.removal import collect
from edgecompile.runtime.store.unpack import unpacked
from tests.image.layouts import write
from tests.runtime.bundles import DummyBundle
from tests.runtime.signed import make_key
from tests.runtime.store.device import Device, pack

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
WEIGHTS = "weights.fp32"


# --- What is installed
FORMS: dict[str, Callable[[Path, Path], str]] = {
    "tar": lambda bundle, to: str(pack(bundle, to / "x.tar", format=tarfile.GNU_FORMAT)),
    "tar of a folder": lambda bundle, to: str(pack(bundle, to / "x", "w:gz", "a-folder.ecb")),
    "tar with long names": lambda b, to: str(pack(b, to / "x", top="n" * 180, format=tarfile.PAX_FORMAT)),
    "tar with GNU's long names": lambda b, to: str(pack(b, to / "x", top="n" * 180, format=tarfile.GNU_FORMAT)),
    "image": lambda bundle, to: f"oci:{write(bundle, '--only-bundle', '-o', to / 'x.oci')['path']}",
}  # fmt: skip


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A device with release 1 installed, and release 2 as a bundle."""
    device = Device(tmp_path_factory.mktemp("device"))
    device.run(device.release(1))
    device.release(2)
    return device


@pytest.mark.parametrize("form", FORMS)
def test_it_is_installed(signed: Device, tmp_path: Path, form: str) -> None:
    root = signed.root
    signed.root = tmp_path / "store"
    shutil.copytree(root, signed.root, symlinks=True)
    try:
        report = signed.install(FORMS[form](signed.place / "2.ecb", tmp_path))  # type: ignore[arg-type]
        assert signed.number(report["path"]) == 2
        assert report["copied"] == len(b'{"of": 2}')  # all else is linked
        assert not Path(signed.root, ".unpacked").exists()
    finally:
        signed.root = root


def test_files_are_written_once(signed: Device, tmp_path: Path) -> None:
    """A first installation takes the unpacked files, which have one name again when it ends."""
    root, signed.root = signed.root, tmp_path / "store"
    try:
        archive = pack(signed.place / "2.ecb", tmp_path / "x.tar")
        report = signed.install(archive)
        weights = Path(report["path"], WEIGHTS).stat()
        assert report["copied"] > weights.st_size and weights.st_nlink == 1
        leftover = Path(signed.root, ".unpacked", "x")
        leftover.mkdir(parents=True)
        collect(signed.store)
        assert not leftover.parent.exists()
    finally:
        signed.root = root


def test_installations_of_archives_do_not_wait_for_each_other(
    signed: Device, tmp_path: Path
) -> None:
    """Nor does gc, which removes what a killed one left, and nothing that is in use."""
    archive, said = str(pack(signed.place / "2.ecb", tmp_path / "x.tar")), []
    with unpacked(archive, str(signed.root), said.append) as first:
        killed = Path(signed.root, ".unpacked", "killed")
        killed.mkdir()
        killed.joinpath("lock").touch()
        assert collect(signed.store, said.append)["removed"] == []
        assert not killed.exists()
        with unpacked(archive, str(signed.root), said.append) as second:
            assert first.path != second.path
            second.open().close()
        first.open().close()
    assert said == [f"reading {archive}"] * 2  # nobody waited
    assert not Path(signed.root, ".unpacked").exists()


def test_what_is_not_signed_is_not_written(
    signed: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "2.ecb"
    shutil.copytree(signed.place / "2.ecb", path)
    signed.signed.path = path
    (path / "signatures/ci.sig").unlink()
    signed.signed.sign("other", key=make_key())
    monkeypatch.setattr(unpack, "_write_listed", lambda *all: pytest.fail("files are written"))
    with pytest.raises(EdgecompileError) as caught:
        signed.install(pack(path, tmp_path / "x.tar"))
    assert caught.value.exit_code == 76


@pytest.mark.parametrize("threshold", [1, 2])
def test_a_part_is_read_for_the_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: int
) -> None:
    """All of it, if the signatures of that part don't suffice."""
    device = Device(tmp_path)
    path = device.release(1)
    device.signed.sign("release")
    device.signed.policy["models"]["tiny*"]["threshold"] = threshold
    device.signed.write_policy()
    write_signed, parts = unpack._write_signed, []

    def note(paths: list[str], source: str, target: str, whole: bool) -> tuple[str, bool]:
        parts.append(not whole)
        return write_signed(paths, source, target, whole)

    monkeypatch.setattr(unpack, "_write_signed", note)
    monkeypatch.setattr(unpack, "_LARGE", 1)  # also the second signature is a large file
    report = device.install(pack(path, tmp_path / "x.tgz", "w:gz"))
    assert parts == [True, False][:threshold]
    assert sorted(os.listdir(Path(report["path"], "signatures"))) == ["ci.sig", "release.sig"]


# --- What is refused
@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(DummyBundle(tmp_path_factory.mktemp("bundle") / "m.ecb").write())


def open_all(source: str, root: Path) -> list[str]:
    with unpacked(source, str(root), lambda text: None) as parcel:
        folder = parcel.open()
        folder.close()
        parcel.complete(folder.manifest.files)
        path = Path(parcel.path)
        return sorted(str(item.relative_to(path)) for item in path.rglob("*"))


def refused(source: str, root: Path) -> EdgecompileError:
    with pytest.raises(EdgecompileError) as caught:
        open_all(source, root)
    assert not (root / ".unpacked").exists()
    return caught.value


def header(name: str, data: bytes = b"", **more: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def pax(**records: str) -> bytes:
    text = b"".join(tarfile.TarInfo._create_pax_generic_header({key: value}, b"x", "utf-8")[512:]  # type: ignore[attr-defined]
                    .rstrip(b"\0") for key, value in records.items())  # fmt: skip
    return header("x", text, type=b"x")


def with_sum(block: bytes) -> bytes:
    total = sum(block[:148]) + 8 * 32 + sum(block[156:512])
    return block[:148] + b"%06o\0 " % total + block[156:]


LINKS = {name: header("a", type=kind, linkname="/etc/passwd") for name, kind in (
    ("a link", tarfile.SYMTYPE), ("a hard link", tarfile.LNKTYPE))}  # fmt: skip
DEVICES = {f"of type {kind!r}": header("a", type=kind) for kind in
           (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"K", b"D", b"V")}  # fmt: skip
#: What lies in an archive before a bundle: (rule, exit code, bytes)
ARCHIVES: dict[str, tuple[str, int, bytes]] = {
    **{name: ("archive-kind", 20, data) for name, data in {**LINKS, **DEVICES}.items()},
    "a sparse file by pax": ("archive-kind", 20, pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}) + header("a")),
    "a whiteout": ("archive-kind", 20, header("code/.wh.x")),
    "above": ("archive-name", 20, header("../a", b"x")),
    "above within": ("archive-name", 20, header("code/../../a", b"x")),
    "absolute": ("archive-name", 20, header("/a", b"x")),
    "a folder above": ("archive-name", 20, header("..", type=b"5")),
    "absolute by pax": ("archive-name", 20, pax(path="/a") + header("b")),
    "no name": ("archive-name", 20, header("")),
    "a control character": ("archive-name", 20, header("a\nb")),
    "the manifest twice": ("archive-twice", 20, header("manifest.json", b"{}")),
    "a file as a folder": ("archive-twice", 20, header("code", b"x")),
    "many entries": ("archive-count", 20, header("code", type=b"5") * ((1 << 17) + 1)),
    "many headers": ("archive-count", 20, header("a", type=b"x") * ((1 << 17) + 1)),
    "many records": ("archive-count", 20, header("x", b"5 a=\n" * 13_000, type=b"x") * 11),
    "many folders": ("archive-count", 20, b"".join(pax(path=f"{i}" + "/a" * 490) + header("a") for i in range(80))),
    "not an archive": ("archive-form", 20, b"x" * 512),
    "ends in a file": ("archive-form", 20, header("a", size=1 << 20)),
    "a negative size": ("archive-form", 20, with_sum(header("a")[:124] + b"-0000000001\0" + header("a")[136:])),
    "a negative size by GNU": ("archive-form", 20, with_sum(header("a")[:124] + b"\xff" * 12 + header("a")[136:])),
    "a negative size by pax": ("archive-form", 20, pax(size="-1") + header("a")),
    "a long size by pax": ("archive-form", 20, pax(size="9" * 60000) + header("a")),
    "a pax header that is no list": ("archive-form", 20, header("x", b"0 a=b\n", type=b"x") + header("a")),
    "a pax header without an end": ("archive-form", 20, header("x", b"99 a=b", type=b"x") + header("a")),
    "a large pax header": ("archive-form", 20, header("x", type=b"x", size=1 << 33)),
    "a large name": ("archive-form", 20, header("x", type=b"L", size=1 << 33)),
    "a folder with content": ("archive-form", 20, header("a", b"x", type=b"5")),
    "many manifests": ("archive-form", 20, b"".join(header(f"{i}/manifest.json") for i in range(65))),
    "large signatures": ("archive-form", 20, header("release.json", bytes(49 << 20))),
    "unlisted": ("file-unlisted", 22, header("sitecustomize.py")),
    "unlisted byte code": ("file-unlisted", 22, header("__pycache__/a.pyc")),
    "a size that isn't the manifest's": ("file-size-differs", 22, header(WEIGHTS, b"x")),
    "more than the disk holds": ("", 63, header("a", size=1 << 50)),
}  # fmt: skip


def lay_before(bundle: Path, place: Path, data: bytes, whole: bool = True) -> Path:
    """A compressed archive of ``data`` before a bundle, which is ``whole`` or has no weights."""
    kept = place / "bundle"
    shutil.copytree(bundle, kept)
    if not whole:
        (kept / WEIGHTS).unlink()
    archive = pack(kept, place / "x.tar")
    archive.write_bytes(gzip.compress(data + archive.read_bytes(), 1))
    return archive


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_is_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    rule, code, data = ARCHIVES[name]
    archive = lay_before(bundle, tmp_path, data, whole=rule != "file-size-differs")
    error = refused(str(archive), tmp_path / "store")
    assert (error.exit_code, f"[{rule}]" in error.message) == (code, bool(rule)), error


def test_a_bomb_is_refused_by_its_header(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed file that is larger than its manifest says isn't written."""
    archive = lay_before(bundle, tmp_path, header(WEIGHTS, bytes(64 << 20)), whole=False)
    assert archive.stat().st_size < 500_000
    written: list[str] = []
    write = unpack.write_file

    def note(path: str, parts: Iterable[bytes]) -> None:
        written.append(Path(path).name)
        write(path, parts)

    monkeypatch.setattr(unpack, "write_file", note)
    error = refused(str(archive), tmp_path / "store")
    assert (error.exit_code, "[file-size-differs]" in error.message) == (22, True), error
    assert written and WEIGHTS not in written


@pytest.fixture
def no_threads() -> Iterator[None]:
    """No thread can be started: each would take more memory than there are addresses."""
    usual = threading.stack_size(1 << 62)
    yield
    threading.stack_size(usual)


@pytest.mark.parametrize(
    ("chunk", "fixtures"),
    [(1, ()), (1, ("no_threads",)), (1 << 20, ())],
    ids=["by a thread", "without a thread", "at once"],
)
def test_another_content_is_refused(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    chunk: int,
    fixtures: tuple[str, ...],
) -> None:
    for fixture in fixtures:
        request.getfixturevalue(fixture)
    monkeypatch.setattr(staging, "_CHUNK", chunk)
    shutil.copytree(bundle, tmp_path / "m.ecb")
    weights = tmp_path / "m.ecb" / WEIGHTS
    archive = tmp_path / "x.tar"
    data = weights.read_bytes()
    assert WEIGHTS in open_all(str(pack(weights.parent, archive)), tmp_path / "store")
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    error = refused(str(pack(weights.parent, archive)), tmp_path / "store")
    assert (error.exit_code, "[file-hash]" in error.message) == (22, True), error


#: Installs a bundle where no file may be larger than 2 MiB, and lets the error end the process.
INSTALL = """
import resource, sys, threading
from edgecompile.runtime.store.install import install
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
try:
    install(*sys.argv[1:])
except OSError as error:
    print(error.errno, threading.active_count())
    raise
"""


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_a_write_that_fails_ends_the_process(tmp_path: Path, form: str) -> None:
    """The traceback keeps the generator that hashes, yet its thread is gone."""
    made = DummyBundle(tmp_path / "m.ecb")
    made.files["reports/plan.json"] = bytes(3 << 20)
    source = Path(made.write())
    if form == "tar":
        source = pack(source, tmp_path / "x.tar")
    command = [sys.executable, "-c", INSTALL, source, tmp_path / "store"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout.split() == [str(errno.EFBIG), "1"], ended.stderr
    assert ended.returncode == 1 and "write_file" in ended.stderr


def test_extended_headers_are_not_kept() -> None:
    data = b"".join(pax(**{f"k{number}": "x" * 60_000}) for number in range(200)) + header("a")
    file = io.BytesIO(data + bytes(512))
    tracemalloc.start()
    try:
        assert [item.name for item in read_members(file, "x", Names("x"))] == ["a"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", gzip.compress(b"x" * 600)[:-9], b"PK\3\4" + b"x" * 600],
    ids=["empty", "cut-off", "short", "zip"],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert "[archive-form]" in refused(str(tmp_path / "x"), tmp_path / "store").message


def test_a_file_that_keeps_byte_code_out_is_left_out(bundle: Path, tmp_path: Path) -> None:
    data = pack(bundle, tmp_path / "x.tar").read_bytes()
    for content, accepted in ((b"", True), (b"x", False)):
        (tmp_path / "x.tar").write_bytes(header("runtime/__pycache__", content) + data)
        if accepted:
            assert "runtime/__pycache__" not in open_all(
                str(tmp_path / "x.tar"), tmp_path / "store"
            )
        else:
            assert refused(str(tmp_path / "x.tar"), tmp_path / "store").exit_code == 22


@pytest.mark.parametrize("eighths", range(8))
def test_an_archive_that_was_cut_off_is_refused(bundle: Path, tmp_path: Path, eighths: int) -> None:
    archive = pack(bundle, tmp_path / "x.tgz", "w:gz")
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) * eighths // 8])
    assert refused(str(archive), tmp_path / "store").exit_code == 20


# --- Images
class Image:
    """An image layout of a bundle, in which a test changes something."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.folder = folder
        write(bundle, "--only-bundle", "-o", folder)
        self.index = json.loads((folder / "index.json").read_text())
        self.manifest = json.loads(self.path(self.index["manifests"][0]).read_text())

    def path(self, blob: dict[str, Any]) -> Path:
        return self.folder / "blobs" / blob["digest"].replace(":", "/")

    def add(self, data: bytes, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), **more}

    def layer(self, data: bytes) -> dict[str, Any]:
        return self.add(data, mediaType="application/vnd.oci.image.layer.v1.tar")

    def save(self) -> str:
        entry = self.index["manifests"][0]
        if entry["mediaType"] == MANIFEST:
            entry |= self.add(json.dumps(self.manifest).encode())
        (self.folder / "index.json").write_text(json.dumps(self.index))
        return f"oci:{self.folder}"


MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
Change = Callable[[Image], object]


def flip(blob: Callable[[Image], dict[str, Any]]) -> Change:
    def change(image: Image) -> None:
        image.save()
        path = image.path(blob(image))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    return change


def put(blob: Callable[[Image], dict[str, Any]], **more: Any) -> Change:
    return lambda image: blob(image).update(more)


def first(image: Image) -> dict[str, Any]:
    layer: dict[str, Any] = image.manifest["layers"][0]
    return layer


def more_layers(*data: bytes) -> Change:
    return lambda image: image.manifest["layers"].extend(image.layer(item) for item in data)


IMAGES: dict[str, tuple[str, int, Change]] = {
    "a changed layer": ("image-digest", 22, flip(first)),
    "a changed manifest": ("image-digest", 22, flip(lambda image: image.index["manifests"][0])),
    "a size that lies": ("image-digest", 22, put(first, size=7)),
    "a blob that is missing": ("archive-form", 20, lambda i: i.path(first(i)).unlink()),
    "a blob that is a FIFO": ("archive-form", 20, lambda i: (i.path(first(i)).unlink(), os.mkfifo(i.path(first(i))))),
    "a digest that is a path": ("image-digest", 20, put(first, digest="sha256:../../../etc/passwd")),
    "another hash": ("image-digest", 20, put(first, digest="sha512:" + "0" * 128)),
    "a foreign layer": ("image-kind", 20, put(first, urls=["https://a.example/x"])),
    "a layer of another kind": ("image-kind", 20, put(first, mediaType="application/vnd.oci.image.layer.v1.tar+zstd")),
    "a foreign kind": ("image-kind", 20, put(first, mediaType="application/vnd.oci.image.layer.nondistributable.v1.tar")),
    "many layers": ("list-size", 20, lambda i: i.manifest["layers"].extend([first(i)] * 2000)),
    "no layers": ("list-size", 20, lambda image: image.manifest["layers"].clear()),
    "a layer twice": ("archive-twice", 20, lambda i: i.manifest["layers"].append(first(i))),
    "a whiteout": ("archive-kind", 20, more_layers(header("models/.wh.manifest.json"))),
    "an opaque whiteout": ("archive-kind", 20, more_layers(header("models/code/.wh..wh..opq"))),
    "a link to a folder": ("archive-kind", 20, more_layers(header("models", type=b"2", linkname="/"))),
    "another folder": ("archive-form", 20, more_layers(header("etc/passwd", b"x") + bytes(512))),
    "no image of this device": ("image-choice", 20, lambda i: i.index["manifests"][0]["platform"].update(architecture="s390x")),
    "two images": ("image-choice", 20, lambda i: i.index["manifests"].append(i.index["manifests"][0])),
    "an index in an index": ("key-missing", 20, lambda i: nest(i, nest(i, i.index["manifests"][0]))),
    "no index": ("archive-form", 20, lambda image: image.folder.joinpath("index.json").unlink() or image.manifest.clear()),
}  # fmt: skip


def nest(image: Image, entry: dict[str, Any]) -> dict[str, Any]:
    """Puts an entry of the index into an index of its own."""
    data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [dict(entry)]}).encode()
    entry.update(image.add(data, mediaType=INDEX))
    return entry


@pytest.fixture(scope="module")
def layout(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    if not ARCH:
        pytest.skip("the bundle is for x86-64")
    return Image(bundle, tmp_path_factory.mktemp("image") / "m.oci")


def copied(layout: Image, folder: Path) -> Image:
    shutil.copytree(layout.folder, folder)
    image = Image.__new__(Image)
    image.folder = folder
    image.index, image.manifest = json.loads(json.dumps([layout.index, layout.manifest]))
    return image


@pytest.mark.parametrize("name", IMAGES)
def test_a_hostile_image_is_refused(layout: Image, tmp_path: Path, name: str) -> None:
    rule, code, change = IMAGES[name]
    image = copied(layout, tmp_path / "m.oci")
    change(image)
    source = f"oci:{image.folder}"
    if not name.startswith("a changed") and image.manifest:
        image.save()
    error = refused(source, tmp_path / "store")
    assert (error.exit_code, f"[{rule}]" in error.message) == (code, True), error


@pytest.mark.parametrize("tag", ["4", "localhost:5000/m:4"])
@pytest.mark.parametrize("folder", ["m.oci", "m:4"])
def test_an_image_is_named_by_its_tag(layout: Image, tmp_path: Path, folder: str, tag: str) -> None:
    image = copied(layout, tmp_path / folder)
    entry = nest(image, image.index["manifests"][0])
    entry["annotations"] = {"org.opencontainers.image.ref.name": "3"}
    image.index["manifests"].append(
        {**entry, "annotations": {"org.opencontainers.image.ref.name": tag}}
    )
    source = image.save()
    assert "manifest.json" in open_all(f"{source}:{tag}", tmp_path / "store")
    for other in ("", ":5", f":{tag}:4"):
        assert "[image-choice]" in refused(source + other, tmp_path / "store").message
