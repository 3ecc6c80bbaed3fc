"""Files that commands write."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from edgecompile.files import write_document, write_text
from tests.cli.command import run


def test_writing_replaces_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_document(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def refuse(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError) as caught:
        write_text(path, "new")
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text()) == {"a": 1}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_output_in_no_folder_is_named(files: Path) -> None:
    result = run("lengths", "lengths.txt", "-o", "absent/out.json")
    assert result.exit_code == 74
    assert result.stderr.startswith("error: absent/out.json: No such file")
