"""Precompiled headers: asked for, made once, and nothing of them in the objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgecompile.toolchain.compilers import compile_object, find_toolchain
from edgecompile.toolchain.native import compile_native, runtime_sources
from edgecompile.toolchain.precompiled import VARIABLE, precompile

pytestmark = pytest.mark.slow

HEADER = """#pragma once
#include <stdexcept>
#include <string>
inline void refuse(int line) {
  throw std::runtime_error(std::string(__FILE__) + std::to_string(line));
}
"""
INCLUDE = "#include <mine/refuse.h>\n"
SOURCE = INCLUDE + "void check(int x) { if (x < 0) refuse(__LINE__); }\n"


def build(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, wanted: str) -> bytes:
    """The object from an empty cache of its own."""
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(folder / name))
    monkeypatch.setenv(VARIABLE, wanted)
    built = compile_object(
        find_toolchain(),
        SOURCE.encode(),
        name="check.cpp",
        flags=("-std=c++20", "-O1"),
        include_dirs=(folder / "include",),
        headers_id="1",
        precompiled=INCLUDE,
    )
    return built.path.read_bytes()


def test_objects_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "include" / "mine" / "refuse.h"
    header.parent.mkdir(parents=True)
    header.write_text(HEADER)
    plain = build(tmp_path, monkeypatch, "plain", "0")
    assert not (tmp_path / "plain" / "headers").exists()
    assert build(tmp_path, monkeypatch, "precompiled", "1") == plain
    (made,) = (tmp_path / "precompiled" / "headers").glob("*/all.h.gch")
    assert str(tmp_path).encode() not in plain
    # It is what the compiler takes: an unreadable text beside it doesn't matter any more.
    made.with_name("all.h").write_text("#error this isn't read\n")
    for item in (tmp_path / "precompiled" / "objects").rglob("*.o"):
        item.unlink()
    assert build(tmp_path, monkeypatch, "precompiled", "1") == plain


def test_old_headers_are_removed_when_another_is_made(tmp_path: Path) -> None:
    def make(text: str) -> Path:
        return precompile(tmp_path, [find_toolchain().cxx], text, "1")

    old, kept = make("#include <new>\n"), make("#include <limits>\n")
    for header in (old, kept):
        os.utime(header, (0, 0))
    assert make("#include <limits>\n") == kept
    new = make("#include <utility>\n")
    assert not old.parent.exists()
    assert all(header.with_name("all.h.gch").is_file() for header in (kept, new))


@pytest.mark.exhaustive  # test_reproducible.py compares whole bundles that were made with and without
def test_objects_of_the_native_runtime_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++'s own headers stand before the sources then; few sources aren't worth it."""
    sources = sorted(runtime_sources().values(), key=lambda path: path.stat().st_size)[:10]

    def build_all(name: str, wanted: str) -> list[bytes]:
        monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / name))
        monkeypatch.setenv(VARIABLE, wanted)
        built = compile_native(find_toolchain(), sources, ["-march=x86-64-v3"])
        return [item.path.read_bytes() for item in built]

    plain = build_all("plain", "0")
    assert build_all("precompiled", "1") == plain
    assert len([*(tmp_path / "precompiled" / "headers").glob("*/all.h.gch")]) == 1
    del sources[-1]
    build_all("few", "1")
    assert not (tmp_path / "few" / "headers").exists()
