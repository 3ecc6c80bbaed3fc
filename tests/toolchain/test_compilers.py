"""The toolchain: finding tools, caching objects, errors that say what to do."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgecompile.audit.elf import read_elf, read_functions
from edgecompile.errors import CompileError, DiskFullError, ToolchainError
from edgecompile.toolchain import compilers as toolchain

needs_aarch64 = pytest.mark.usefixtures("aarch64_compiler")

SOURCE = b'extern "C" __attribute__((visibility("default"))) int f() { return OFFSET + 1; }\n'


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    toolchain.find_toolchain.cache_clear()
    yield tmp_path / "cache"
    toolchain.find_toolchain.cache_clear()


def compile_f(offset: int = 1, source: bytes = SOURCE) -> toolchain.BuiltObject:
    return toolchain.compile_object(
        toolchain.find_toolchain(),
        source,
        name="f.cpp",
        flags=("-O1", f"-DOFFSET={offset}"),
    )


def test_an_object_is_compiled_once(private_cache: Path) -> None:
    first, second = compile_f(), compile_f()
    assert first.path == second.path
    assert first.seconds > 0
    assert second.seconds == 0
    assert [p.name for p in private_cache.rglob("*.*") if p.stat().st_size] == [first.path.name]


def test_whatever_shapes_the_result_is_in_the_key() -> None:
    base = compile_f()
    assert compile_f(offset=2).path != base.path
    assert compile_f(source=SOURCE + b"\n").path != base.path


def test_concurrent_builds_agree() -> None:
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: compile_f(7), range(4)))
    assert len({item.path for item in built}) == 1
    assert len([item for item in built if item.seconds > 0]) == 1  # the others wait for it


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
@pytest.mark.parametrize("precompiled", ["", "#include <cstdlib>\n"])
def test_a_cache_without_locks_serves(
    monkeypatch: pytest.MonkeyPatch, reason: int, precompiled: str
) -> None:
    """Some network file systems lock no files; any other error is one."""

    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    def build(_: int) -> toolchain.BuiltObject:
        return toolchain.compile_object(
            toolchain.find_toolchain(),
            precompiled.encode() + SOURCE,
            name="f.cpp",
            flags=("-DOFFSET=1",),
            precompiled=precompiled,
        )

    monkeypatch.setenv("EDGECOMPILE_PRECOMPILED", "1")
    monkeypatch.setattr("fcntl.flock", refuse)
    if reason == errno.EIO:
        with pytest.raises(ToolchainError, match="the cache directory can't be written"):
            build(0)
        return
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(build, range(4)))
    assert len({item.path for item in built}) == 1 and built[0].path.is_file()


#: Compiles with the compiler that is named, and prints the object's path.
COMPILE = """
import sys
from dataclasses import replace
from edgecompile.toolchain.compilers import compile_object, find_toolchain
tools = replace(find_toolchain(), cxx=sys.argv[1])
print(compile_object(tools, b"int f() { return 1; }", name="f.cpp", flags=()).path)
"""


def test_what_one_process_compiles_another_waits_for(private_cache: Path, tmp_path: Path) -> None:
    begun, go, slow = (tmp_path / name for name in ("begun", "go", "slow-g++"))
    begun.touch()
    real = toolchain.find_toolchain().cxx
    slow.write_text(
        f'#!/bin/sh\necho >>{begun}\nuntil [ -e {go} ]; do sleep 0.01; done\nexec {real} "$@"\n'
    )
    slow.chmod(0o755)

    def waiting() -> int:
        inodes = [path.stat().st_ino for path in private_cache.rglob("*.lock")]
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return sum(int(line[6].rpartition(":")[2]) in inodes for line in lines if line[1] == "->")

    command = [sys.executable, "-c", COMPILE, str(slow)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    while len(begun.read_text()) + waiting() < 2:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    go.touch()
    built = {process.communicate()[0] for process in processes}
    assert len(built) == 1 and b".o" in built.pop()
    assert begun.read_text() == "\n"


def test_objects_do_not_depend_on_where_they_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = compile_f().path.read_bytes()
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", str(tmp_path / "a much longer folder name"))
    assert compile_f().path.read_bytes() == one


def test_header_folders_do_not_reach_the_object(tmp_path: Path) -> None:
    (tmp_path / "where.h").write_text("inline const char* where() { return __FILE__; }\n")
    built = toolchain.compile_object(
        toolchain.find_toolchain(),
        b'#include "where.h"\nconst char* w() { return where(); }\n',
        name="w.cpp",
        flags=("-O1",),
        include_dirs=(tmp_path,),
    )
    assert str(tmp_path).encode() not in built.path.read_bytes()


def test_headers_of_a_new_glibc_name_no_new_functions() -> None:
    source = (
        b"#include <cstdlib>\n"
        b"#if !defined(__GLIBC_USE_C2X_STRTOL) || __GLIBC_USE_C2X_STRTOL || __GLIBC_USE_C23_STRTOL\n"
        b"#error strtol may be __isoc23_strtol\n#endif\n"
        b"long f(const char* text) { return std::strtol(text, nullptr, 10); }\n"
    )
    assert compile_f(source=source).path.is_file()


def test_a_library_exports_only_what_it_should(tmp_path: Path) -> None:
    tools = toolchain.find_toolchain()
    extra = b'extern "C" __attribute__((visibility("default"))) int g() { return 3; }\n'
    objects = [compile_f().path, compile_f(source=extra).path]
    library = tmp_path / "libf.so"
    toolchain.link_shared(tools, objects, library, exports=["f"], soname="libf.so")
    assert toolchain.dynamic_symbols(library, defined=True) == {"f"}
    assert ctypes.CDLL(str(library)).f() == 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["libf.so"]


def test_one_library_may_be_linked_several_times_at_once(tmp_path: Path) -> None:
    tools, objects = toolchain.find_toolchain(), [compile_f().path]
    library = tmp_path / "libf.so"

    def link(_: int) -> None:
        toolchain.link_shared(tools, objects, library, exports=["f"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(link, range(12)))
    assert ctypes.CDLL(str(library)).f() == 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["libf.so"]


def test_symbols_can_be_renamed(tmp_path: Path) -> None:
    tools = toolchain.find_toolchain()
    source = b'extern "C" int GOMP_f(); extern "C" int h() { return GOMP_f(); }\n'
    built = compile_f(source=source)
    assert toolchain.undefined_symbols(tools, built.path) == {"GOMP_f"}
    renamed = tmp_path / "renamed.o"
    toolchain.rename_symbols(tools, built.path, renamed, {"GOMP_f": "ec_GOMP_f"})
    assert toolchain.undefined_symbols(tools, renamed) == {"ec_GOMP_f"}


def test_a_compiler_error_is_short_and_leaves_nothing(private_cache: Path) -> None:
    with pytest.raises(CompileError, match="error: ") as caught:
        compile_f(source=b"int x = ;\n" * 50)
    assert len(str(caught.value).splitlines()) < 20
    assert not [p for p in private_cache.rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_an_undefined_symbol_is_a_link_error(tmp_path: Path) -> None:
    source = (
        b'extern "C" int nowhere();\n'
        b'__attribute__((visibility("default"))) int k() { return nowhere(); }\n'
    )
    built = compile_f(source=source)
    with pytest.raises(CompileError, match="nowhere"):
        toolchain.link_shared(
            toolchain.find_toolchain(), [built.path], tmp_path / "x.so", exports=["*"]
        )
    assert not list(tmp_path.glob("x.so*"))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"g\+\+") as caught:
        toolchain.find_toolchain()
    assert "apt-get install" in str(caught.value)
    assert caught.value.exit_code == 35


def test_no_cross_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "g++").symlink_to(str(shutil.which("g++")))  # the host's own is no help
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    with pytest.raises(ToolchainError, match=r"no g\+\+, objcopy, nm for aarch64") as caught:
        toolchain.find_toolchain("aarch64")
    assert "apt-get install g++-aarch64-linux-gnu" in str(caught.value)


@needs_aarch64
def test_a_library_for_another_machine(tmp_path: Path) -> None:
    """Stripped but for the names by which an audit knows functions that ask the CPU first."""
    tools = toolchain.find_toolchain("aarch64")
    source = (
        b"static long n; __attribute__((noinline)) static long add() "
        b"{ return __atomic_add_fetch(&n, 1, __ATOMIC_SEQ_CST); }\n"
        b'extern "C" __attribute__((visibility("default"))) long f() { return add(); }\n'
    )
    flags = ("-O1", "-march=armv8-a")
    built = toolchain.compile_object(tools, source, name="f.cpp", flags=flags)
    library = tmp_path / "libf.so"
    toolchain.link_shared(tools, [built.path], library, exports=["f"], soname="libf.so")
    assert read_elf(library).machine == "aarch64"
    assert toolchain.dynamic_symbols(library, defined=True) == {"f"}
    names = {name for _, _, name in read_functions(library)}
    assert "__aarch64_ldadd8_acq_rel" in names
    assert all(name.startswith(("__aarch64_", "f")) for name in names)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["libf.so"]


def test_an_old_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "old-g++"  # a fake that only answers for its version
    fake.write_text("#!/bin/sh\necho 9.4.0\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EDGECOMPILE_CXX", str(fake))
    with pytest.raises(ToolchainError, match="version 9; 10 or newer"):
        toolchain.find_toolchain()


def test_a_full_disk_is_told_from_other_failures(tmp_path: Path) -> None:
    fake = tmp_path / "full"  # a fake compiler that fails as a real one does on a full disk
    fake.write_text("#!/bin/sh\necho 'fatal error: No space left on device' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(DiskFullError) as caught:
        toolchain.run_tool([str(fake)], "compiling x")
    assert caught.value.exit_code == 41


def test_a_killed_compiler_hints_at_memory(tmp_path: Path) -> None:
    fake = tmp_path / "killed"
    fake.write_text("#!/bin/sh\nkill -9 $$\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(CompileError, match="signal 9") as caught:
        toolchain.run_tool([str(fake)], "compiling x")
    assert "memory" in str(caught.value)


def test_unknown_architecture() -> None:
    with pytest.raises(ToolchainError, match="riscv"):
        toolchain.find_toolchain("riscv64")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGECOMPILE_CACHE_DIR", "/proc/nowhere")
    with pytest.raises(ToolchainError, match="EDGECOMPILE_CACHE_DIR"):
        compile_f()
