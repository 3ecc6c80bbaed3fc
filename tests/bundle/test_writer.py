"""Writing bundles: their names, and that a half-written one never has its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgecompile.bundle import writer as bundle
from edgecompile.bundle.names import bundle_path, manifest_name
from edgecompile.bundle.staging import Staging
from edgecompile.bundle.writer import BundleWriter
from edgecompile.errors import BundleWriteError, DiskFullError
from edgecompile.runtime.format.document import Field, Problems


def test_the_suffix_is_added_once() -> None:
    assert bundle_path(Path("a/b")) == Path("a/b.ecb")
    assert bundle_path(Path("a/b.ecb")) == Path("a/b.ecb")
    assert bundle_path(Path("a/b.v2")) == Path("a/b.v2.ecb")


@pytest.mark.parametrize("path", [".", "/", "..", "a/.."])
def test_a_path_without_a_name(path: str) -> None:
    with pytest.raises(BundleWriteError, match="ends in no name"):
        bundle_path(Path(path))


@pytest.mark.parametrize(
    "text", ["minilm", "my model", ".hidden", "-x", "größe", "模型", "a" * 300]
)
def test_any_file_name_makes_a_manifest_name(text: str) -> None:
    name = manifest_name(text)
    problems = Problems("test")
    assert Field(problems, name).check_name(name), problems.items
    assert manifest_name(name) == name


def written(output: Path, text: bytes, *, force: bool = False) -> Path:
    with Staging(output, force=force) as claim:
        writer = BundleWriter(claim)
        writer.add_bytes(text, "manifest.json")
        return writer.commit()


def test_a_bundle_is_replaced_as_a_whole(tmp_path: Path) -> None:
    output = tmp_path / "x.ecb"
    written(output, b"old")
    with pytest.raises(BundleWriteError, match="already there"):
        written(output, b"new")
    written(output, b"new", force=True)
    assert (output / "manifest.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x.ecb"]


def test_no_bundle_is_written_into_another(tmp_path: Path) -> None:
    written(tmp_path / "x.ecb", b"outer")
    with pytest.raises(BundleWriteError, match=r"inside the bundle .*x\.ecb"):
        written(tmp_path / "x.ecb" / "new" / "y.ecb", b"inner", force=True)
    assert os.listdir(tmp_path / "x.ecb") == ["manifest.json"]


def test_the_old_bundle_stays_if_the_new_one_cant_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "x.ecb"
    written(output, b"old")
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if str(source).endswith(".partial"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(bundle.os, "replace", refuse)
    with pytest.raises(DiskFullError):
        written(output, b"new", force=True)
    assert (output / "manifest.json").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.ecb"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_was_not_committed_is_removed(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), Staging(tmp_path / "x.ecb") as claim:
        BundleWriter(claim).add_bytes(b"1", "a/b")
        raise error
    assert os.listdir(tmp_path) == []
