"""Evidence that is kept from process to process, of a library as large as those that are kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecompile.audit import evidence
from edgecompile.audit.evidence import find_evidence

SOURCE = """
char large[600000] = {1};
void scale(float* restrict a, int n) { for (int i = 0; i < n; i++) a[i] = a[i] * a[i]; }
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "source.c").write_text(SOURCE)
    path = tmp_path / "library.so"
    command = ["gcc", "-shared", "-fPIC", "-O3", "-mavx2", "-o", str(path), "source.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return path


@pytest.fixture
def objdump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An objdump that writes down its calls, and an empty cache."""
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "objdump"
    log = tmp_path / "calls"
    path.write_text(f'#!/bin/sh\necho "$1" >> {log}\nexec {shutil.which("objdump")} "$@"\n')
    path.chmod(0o700)
    return path


@pytest.fixture
def scans(tmp_path: Path) -> Callable[[], int]:
    return lambda: (tmp_path / "calls").read_text().splitlines().count("-d")


def forget() -> None:
    """What another process doesn't know."""
    evidence._seen.clear()
    evidence._version.cache_clear()


def test_a_library_is_read_once(library: Path, objdump: Path, scans: Callable[[], int]) -> None:
    first = find_evidence(library, "x86-64", str(objdump))
    assert first.total and first.packed_operations(256)
    assert {use.feature for use in first.uses} >= {"avx"}
    forget()
    copy = Path(shutil.copy(library, library.with_name("another.so")))
    assert find_evidence(copy, "x86-64", str(objdump)) == first
    assert scans() == 1


def test_another_library_is_read(library: Path, objdump: Path, scans: Callable[[], int]) -> None:
    find_evidence(library, "x86-64", str(objdump))
    forget()
    with library.open("ab") as file:
        file.write(b"x")
    find_evidence(library, "x86-64", str(objdump))
    assert scans() == 2


def test_another_version_reads_again(
    library: Path, objdump: Path, scans: Callable[[], int]
) -> None:
    find_evidence(library, "x86-64", str(objdump))
    forget()
    text = objdump.read_text()
    objdump.write_text(text.replace("exec", '[ "$1" != --version ] || echo 99\nexec'))
    find_evidence(library, "x86-64", str(objdump))
    assert scans() == 2


@pytest.mark.parametrize("damage", ["", "{}", "null", '{"key": 1}', '"uses"'])
def test_a_damaged_file_counts_as_none(
    library: Path, objdump: Path, scans: Callable[[], int], tmp_path: Path, damage: str
) -> None:
    first = find_evidence(library, "x86-64", str(objdump))
    (kept,) = (tmp_path / "cache" / "instructions").iterdir()
    whole = kept.read_text()
    kept.write_text(damage)
    forget()
    assert find_evidence(library, "x86-64", str(objdump)) == first
    assert (scans(), kept.read_text()) == (2, whole)


def test_the_evidence_of_another_key_counts_as_none(
    library: Path, objdump: Path, scans: Callable[[], int], tmp_path: Path
) -> None:
    first = find_evidence(library, "x86-64", str(objdump))
    (kept,) = (tmp_path / "cache" / "instructions").iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "key": "0" * 64, "uses": []}))
    forget()
    assert find_evidence(library, "x86-64", str(objdump)) == first
    assert scans() == 2


@pytest.mark.parametrize("odd", ["group", "others", "link", "owner"])
def test_a_folder_that_others_may_fill_counts_as_none(
    library: Path,
    objdump: Path,
    scans: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    odd: str,
) -> None:
    before = os.umask(0)
    try:
        first = find_evidence(library, "x86-64", str(objdump))
    finally:
        os.umask(before)
    forget()
    assert find_evidence(library, "x86-64", str(objdump)) == first and scans() == 1
    folder = tmp_path / "cache" / "instructions"
    (kept,) = folder.iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "uses": []}))
    if odd == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif odd == "owner":
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    else:
        folder.chmod(0o770 if odd == "group" else 0o702)
    forget()
    assert find_evidence(library, "x86-64", str(objdump)) == first
    assert scans() == 2


def test_a_cache_that_cannot_be_written(library: Path, objdump: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert find_evidence(library, "x86-64", str(objdump)).total
