"""output: paths refused before the work, files written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.format.output import check_output, write_output


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    (tmp_path / "x.ecb" / "reports").mkdir(parents=True)
    return str(tmp_path / "x.ecb")


def test_the_path_is_absolute_and_final(
    tmp_path: Path, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    real = os.path.realpath(tmp_path)
    assert check_output("a.json", "it", bundle) == os.path.join(real, "a.json")
    wanted = os.path.join(real, f"a-{os.getpid()}-{os.getpid()}.json")
    assert check_output(Path("a-{pid}-{pid}.json"), "it", bundle) == wanted
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/target.json")
    assert check_output("link", "it", bundle) == os.path.join(real, "folder", "target.json")
    (tmp_path / "a.json").write_text("old")
    assert check_output("a.json", "it", bundle).endswith("a.json"), "a file may be replaced"
    assert check_output(bundle + "2", "it", bundle), "a name that begins alike lies elsewhere"


@pytest.mark.parametrize("path", [None, 3, b"bytes", "", [], Path])
def test_what_is_no_path(bundle: str, path: Any) -> None:
    with pytest.raises(InputError, match=r"it is .* must be the path of a file"):
        check_output(path, "it", bundle)


def test_paths_that_cannot_be_written(tmp_path: Path, bundle: str) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "lost").symlink_to("nowhere/x")
    (tmp_path / "loop").symlink_to("loop")
    refused = {
        "nowhere/x.json": "the folder .*/nowhere doesn't exist",
        "file/x.json": "the folder .*/file doesn't exist",
        "lost": "the folder .*/nowhere doesn't exist",
        "x.ecb": "is a folder",
        "../" + tmp_path.name: "is a folder",
        "pipe": "isn't a regular file",
        "loop": "isn't a regular file",
        "x.ecb/stats.json": "is in the bundle",
        "x.ecb/reports/stats.json": "is in the bundle",
        "n" * 300: "File name too long",
        "a\0b": "null",
    }
    for name, text in refused.items():
        with pytest.raises(InputError, match=text) as caught:
            check_output(str(tmp_path / name), "the file", bundle)
        assert caught.value.message.startswith("the file ")
        assert "\0" not in caught.value.message
    with pytest.raises(InputError, match="isn't a regular file"):
        check_output("/dev/null", "it", bundle)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else(tmp_path: Path, bundle: str) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(InputError, match="can't write in"):
        check_output(tmp_path / "closed" / "x", "it", bundle)


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    place = tmp_path / "x"
    write_output(str(place), b"old")
    with place.open("rb") as reader:
        write_output(str(place), b"new")
        assert reader.read() == b"old"
    assert place.read_bytes() == b"new"
    before = os.umask(0o027)
    try:
        write_output(str(tmp_path / "y"), b"")
    finally:
        os.umask(before)
    assert (tmp_path / "y").stat().st_mode & 0o777 == 0o640


def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "x"
    place.write_bytes(b"old")

    def fail(source: str, target: str) -> None:
        assert Path(source).read_bytes() == b"new" and target == str(place)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_output(str(place), b"new")
    assert place.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["x"]
    with pytest.raises(FileNotFoundError):
        write_output(str(tmp_path / "nowhere" / "x"), b"")
