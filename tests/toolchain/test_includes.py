"""Headers that a source includes, and the objects that they are part of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.includes import Includes
from edgecompile.toolchain.native import (
    c_runtime_sources,
    compile_native,
    native_sources,
    runtime_sources,
)

SOURCE = b'#include "a.h"\n#include <vector>\n'


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders; a.h of the first includes inner/b.h, which includes c.h beside it, and that the second's d.h."""
    texts = {
        "one/a.h": '  #  include "inner/b.h"\n',
        "one/inner/b.h": '#include "c.h"\n#if 0\n#include "e.h"\n#endif\n',
        "one/inner/c.h": "#include <d.h>\n",
        "one/c.h": "",
        "two/d.h": "",
        "two/e.h": "",
        "two/a.h": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "one", tmp_path / "two"


def test_headers_are_found_in_the_compilers_order(folders: tuple[Path, Path]) -> None:
    one, two = folders
    both = [one / "a.h", one / "inner" / "b.h", one / "inner" / "c.h", two / "d.h", two / "e.h"]
    assert Includes(folders).find(SOURCE) == both
    assert Includes((two, one)).find(SOURCE) == [two / "a.h"]
    (two / "a.h").write_text('#include_next "a.h"\n#include "a.h"')
    assert Includes((two, one)).find(SOURCE) == [two / "a.h", *both]


@pytest.mark.parametrize(
    "source",
    [
        "#include NAMED\n",
        '%:include "c.h"\n',
        '??=include "c.h"\n',
        '#\\\ninclude "c.h"\n',
        "#if __has_include(<f.h>)\n#endif\n",
        "#ifdef __has_include\n#endif\n",
    ],
)
def test_some_sources_may_include_any_header(folders: tuple[Path, Path], source: str) -> None:
    every = {path for folder in folders for path in folder.rglob("*.h")}
    assert set(Includes(folders).find(source.encode())) == every


@pytest.mark.parametrize(
    "source",
    [
        '/* a comment */ #include "c.h"\n',
        '/* a comment\n   of two lines */ #include "c.h"\n',
        '# /* a */ include /* b */ "c.h"\n',
        '#import "c.h"\n',
    ],
)
def test_comments_hide_no_directive(folders: tuple[Path, Path], source: str) -> None:
    assert Includes(folders).find(source.encode()) == [folders[0] / "c.h"]


def test_headers_may_include_each_other_through_the_folder_above(
    folders: tuple[Path, Path],
) -> None:
    one, two = folders
    (one / "inner" / "c.h").write_text('#include "../c.h"\n#include "../../two/d.h"\n')
    (one / "c.h").write_text('#include "inner/c.h"\n')
    found = Includes((one,)).find(b'#include "c.h"\n')
    assert found == [one / "c.h", one / "inner" / "c.h", two / "d.h"]
    assert Includes((one,)).identify(b'#include "c.h"\n')


@pytest.mark.parametrize("name", ["one/a.h", "one/inner/c.h", "two/d.h", "two/e.h"])
def test_what_is_included_is_in_the_id(
    folders: tuple[Path, Path], name: str, tmp_path: Path
) -> None:
    known = Includes(folders).identify(SOURCE)
    (tmp_path / "one" / "c.h").write_text("// beside the one that is included")
    (tmp_path / "two" / "a.h").write_text("// behind the one that is included")
    assert Includes(folders).identify(SOURCE) == known
    with (tmp_path / name).open("a") as file:
        file.write("// another\n")
    assert Includes(folders).identify(SOURCE) != known


def test_a_new_header_takes_the_place_of_a_later_one(folders: tuple[Path, Path]) -> None:
    known = Includes(folders).identify(SOURCE)
    (folders[0] / "d.h").write_text((folders[1] / "d.h").read_text())
    assert Includes(folders).identify(SOURCE) != known


def test_the_place_of_the_folders_does_not_count(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    known = Includes(folders).identify(SOURCE)
    moved = [folder.rename(tmp_path / f"moved {folder.name}") for folder in folders]
    assert Includes(moved).identify(SOURCE) == known


def test_the_compiler_includes_no_others() -> None:
    """Of the native runtime and of what is built apart from it, whose objects are kept by these headers."""
    root = native_sources()
    apart = [path for kind in ("*.c", "*.cpp") for path in root.rglob(kind)]
    sources = sorted({*runtime_sources().values(), *apart})
    folders = (root, root / "probe", c_runtime_sources(), c_runtime_sources() / "include")
    places = [word for folder in folders for word in ("-I", str(folder))]
    command = [find_toolchain().cxx, "-std=c++20", "-MM", *places, *map(str, sources)]
    includes, compared = Includes(folders), 0
    rules = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    for rule in rules.replace("\\\n", " ").splitlines():
        source, *headers = (Path(os.path.normpath(name)) for name in rule.partition(":")[2].split())
        assert {*headers} <= {*includes.find(source.read_bytes())}, source
        compared += len(headers)
    assert compared > 100


def test_objects_without_a_changed_header_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("changed", "kept"):
        (tmp_path / f"{name}.h").write_text("#define VALUE 1\n")
        text = f'#include "{name}.h"\nint {name}() {{ return VALUE; }}\n'
        (tmp_path / f"{name}.cpp").write_text(text)
    sources = [tmp_path / "changed.cpp", tmp_path / "kept.cpp"]
    before = compile_native(find_toolchain(), sources, [], [tmp_path])
    (tmp_path / "changed.h").write_text("#define VALUE 2\n")
    after = compile_native(find_toolchain(), sources, [], [tmp_path])
    assert after[0].path != before[0].path and after[0].path.read_bytes()
    assert after[1].path == before[1].path and after[1].seconds == 0
