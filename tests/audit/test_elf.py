"""Reading ELF files: real ones made by the compiler, and damaged ones."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgecompile.audit.elf import read_elf, version_key
from edgecompile.errors import ElfError
from tests.draws import examples

SOURCE = """
#include <math.h>
#include <pthread.h>
int exported_data = 3;
static int hidden(int x) { return x + 1; }
extern void provided_by_nobody(void);
extern void perhaps(void) __attribute__((weak));
__attribute__((visibility("hidden"))) int kept_inside(int x) { return hidden(x); }
double exported(double x) {
  pthread_t thread;
  pthread_create(&thread, 0, 0, 0);
  provided_by_nobody();
  if (perhaps) perhaps();
  return cos(x) + kept_inside(exported_data);
}
"""

Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles C text to a file of the given name with the given flags."""

    def compile_text(source: str, name: str, *flags: str, language: str = "c") -> Path:
        folder = tmp_path_factory.mktemp("elf")
        text, compiler = ("source.c", "gcc") if language == "c" else ("source.cpp", "g++")
        (folder / text).write_text(source)
        command = [compiler, "-fPIC", "-O1", str(folder / text), *flags, "-o", str(folder / name)]
        subprocess.run(command, check=True)
        return folder / name

    return compile_text


@pytest.fixture(scope="module")
def library(compile_c: Compile) -> Path:
    return compile_c(SOURCE, "libsample.so", "-shared", "-Wl,-soname,libsample.so.7", "-lm")


def test_shared_library(library: Path) -> None:
    info = read_elf(library)
    assert (info.name, info.kind, info.machine) == ("libsample.so", "shared", "x86-64")
    assert info.soname == "libsample.so.7"
    assert info.needed == ("libm.so.6", "libc.so.6")
    assert info.rpath == ()
    assert not info.executable_stack
    assert not info.text_relocations
    assert info.exported == ("exported", "exported_data")


def test_undefined_symbols_know_who_is_to_provide_them(library: Path) -> None:
    undefined = {symbol.name: symbol for symbol in read_elf(library).undefined}
    assert (undefined["cos"].library, undefined["cos"].version) == ("libm.so.6", "GLIBC_2.2.5")
    assert undefined["pthread_create"].library == "libc.so.6"
    assert not undefined["pthread_create"].weak
    nobody = undefined["provided_by_nobody"]
    assert (nobody.weak, nobody.version, nobody.library) == (False, "", "")
    assert undefined["perhaps"].weak


def test_versions_agree_with_readelf(library: Path) -> None:
    info = read_elf(library)
    text = subprocess.run(
        ["readelf", "--wide", "--version-info", str(library)],
        check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"},
    ).stdout  # fmt: skip
    assert {need.version for need in info.version_needs} == set(re.findall(r"Name: (\S+)", text))
    highest = max(re.findall(r"Name: GLIBC_([0-9.]+)", text), key=version_key)
    assert info.highest_version("GLIBC") == highest
    assert info.highest_version("GLIBCXX") is None
    symbols = {name for need in info.version_needs for name in need.symbols}
    assert {"cos", "pthread_create"} <= symbols


def test_object_file(compile_c: Compile) -> None:
    info = read_elf(compile_c(SOURCE, "sample.o", "-c"))
    assert info.kind == "object"
    names = {symbol.name for symbol in info.undefined}
    assert {"cos", "pthread_create", "provided_by_nobody", "perhaps"} <= names
    assert info.exported == ("exported", "exported_data")
    assert not info.executable_stack


def test_cplusplus_library(compile_c: Compile) -> None:
    source = "#include <string>\nstd::string f(int i) { return std::to_string(i) + std::string(i, 'a'); }"
    info = read_elf(compile_c(source, "libcpp.so", "-shared", language="c++"))
    assert "libstdc++.so.6" in info.needed
    highest = info.highest_version("GLIBCXX")
    assert highest is not None and version_key(highest) >= (3, 4)


def test_bad_habits_are_seen(compile_c: Compile) -> None:
    flags = (
        "-shared",
        "-Wl,-z,execstack",
        "-Wl,-rpath,/opt/a:$ORIGIN/b",
        "-Wl,--no-warn-execstack",
    )
    info = read_elf(compile_c("int f(void) { return 1; }", "libbad.so", *flags))
    assert info.executable_stack
    assert info.rpath == ("/opt/a:$ORIGIN/b",)
    writes_code = '__asm__(".text\\n.globl f\\nf: .quad puts\\n");'
    info = read_elf(compile_c(writes_code, "librel.so", "-shared", "-Wl,-z,notext"))
    assert info.text_relocations


def test_assembly_without_a_stack_note(tmp_path: Path) -> None:
    for flags, executable in (("", True), ('.section .note.GNU-stack,"",@progbits\n', False)):
        (tmp_path / "a.s").write_text(f".globl f\nf: ret\n{flags}")
        subprocess.run(["gcc", "-c", "a.s", "-o", "a.o"], cwd=tmp_path, check=True)
        assert read_elf(tmp_path / "a.o").executable_stack is executable


def test_another_machine(library: Path, tmp_path: Path) -> None:
    data = bytearray(library.read_bytes())
    for code, name in ((183, "aarch64"), (243, "EM_RISCV")):
        data[18:20] = code.to_bytes(2, "little")
        (tmp_path / "other.so").write_bytes(data)
        assert read_elf(tmp_path / "other.so").machine == name


@pytest.mark.parametrize(
    ("versions", "highest"),
    [(["2.9", "2.34", "2.4"], "2.34"), (["2.2.5", "2.2"], "2.2.5"), (["3", "2.99"], "3")],
)
def test_versions_sort_by_number(versions: list[str], highest: str) -> None:
    assert max(versions, key=version_key) == highest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes.* is not an ELF file"),
        (b"#!/bin/sh\n", "is not an ELF file"),
        (b"\x7fELF", "damaged ELF file"),
        (b"\x7fELF\x02\x01\x01" + bytes(9), "damaged ELF file"),
        (b"\x7fELF\x02\x01\x01" + bytes(57), "neither object file nor library"),
        (b"\x7fELF\x01\x01\x01" + bytes(57), "32-bit little-endian"),
        (b"\x7fELF\x02\x02\x01" + bytes(57), "64-bit big-endian"),
    ],
)
def test_not_elf(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.so"
    path.write_bytes(content)
    with pytest.raises(ElfError, match=message) as caught:
        read_elf(path)
    assert "file.so" in caught.value.message


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.so", tmp_path):
        with pytest.raises(ElfError, match="can't read"):
            read_elf(path)


def test_static_program_has_no_dynamic_symbols(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("void _start(void) { for (;;) {} }")
    subprocess.run(["gcc", "-static", "-nostdlib", "a.c", "-o", "a"], cwd=tmp_path, check=True)
    with pytest.raises(ElfError, match="no dynamic symbol table"):
        read_elf(tmp_path / "a")


def test_truncation_is_an_error(library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    path = tmp_path / "short.so"
    for size in range(5, len(data) - 1, max(1, len(data) // 60)):
        path.write_bytes(data[:size])
        with pytest.raises(ElfError):
            read_elf(path)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damage_gives_facts_or_an_error_but_no_other_end(
    library: Path, data: st.DataObject
) -> None:
    content = bytearray(library.read_bytes())
    # Headers, symbols and versions lie at both ends; code lies between them.
    size = len(content)
    edges = st.one_of(st.integers(0, min(4096, size - 1)), st.integers(size - 4096, size - 1))
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.one_of(edges, st.integers(0, size - 1)))
        content[position] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 255])))
    path = library.with_name(f"damaged-{os.getpid()}.so")
    path.write_bytes(content)
    start = time.process_time()
    try:
        read_elf(path)
    except ElfError as error:
        assert path.name in error.message
    assert time.process_time() - start < 20, "reading must be bounded"
