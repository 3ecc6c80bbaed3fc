"""The CPU probe beside what the kernel and emulated CPUs say."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

from edgecompile.targets.profile import load_target
from tests.native.programs.aoti import NATIVE, probe_path
from tests.needs import need

#: Our names of what /proc/cpuinfo calls otherwise.
CPUINFO_NAMES = {"lahf": "lahf_lm", "lzcnt": "abm", "sse3": "pni"}
FLAGS = ("-std=c11", "-O1", "-static", "-Wall", "-Wextra", "-Werror")
SOURCE = NATIVE / "probe" / "cpu_probe.c"
MAIN = """
#include <stdint.h>
#include <stdio.h>
int32_t ec_probe(char*, int32_t);
int main(void) {
  char text[8192];
  if (ec_probe(text, sizeof text) < 0) return 1;
  puts(text);
  return 0;
}
"""
V2 = {"cx16", "lahf", "popcnt", "sse3", "ssse3", "sse4_1", "sse4_2"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}

x86_only = pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs an x86-64 host")


def probe(capacity: int = 8192) -> tuple[int, str]:
    library = ctypes.CDLL(str(probe_path()))
    buffer = ctypes.create_string_buffer(capacity)
    return library.ec_probe(buffer, capacity), buffer.value.decode("ascii")


@x86_only
def test_names_are_those_of_the_kernel():
    """/proc/cpuinfo may lack a feature that the host of a virtual machine hides from the kernel's
    list, but on ordinary machines both agree on everything that the probe names."""
    length, text = probe()
    names = text.split(" ")
    assert length == len(text)
    assert len(set(names)) == len(names)
    assert {"sse2", "cx16"} <= set(names)
    line = next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if x[:5] == "flags")
    kernel = set(line.split(":")[1].split())
    assert {n for n in names if CPUINFO_NAMES.get(n, n) not in kernel} == set()
    known = re.findall(r'"(\w+)"', SOURCE.read_text())
    hidden = {n for n in known if CPUINFO_NAMES.get(n, n) in kernel and n not in names}
    assert hidden == set(), "the kernel knows of features that the probe should have found"


@x86_only
def test_a_buffer_that_is_too_small():
    length, _ = probe()
    assert probe(8)[0] == -(length + 1)
    assert probe(length)[0] == -(length + 1)
    assert probe(length + 1)[0] == length
    library = ctypes.CDLL(str(probe_path()))
    assert library.ec_probe(None, 0) == -(length + 1)


@x86_only
def test_it_needs_no_other_library():
    done = subprocess.run(
        ["readelf", "-d", str(probe_path())], check=True, capture_output=True, text=True
    )
    needed = re.findall(r"NEEDED.*\[(.*)\]", done.stdout)
    assert set(needed) <= {"libc.so.6"}


def test_every_feature_that_a_profile_requires_has_its_name_in_the_probe():
    known = set(re.findall(r'"(\w+)"', SOURCE.read_text()))
    for variant in load_target("cpu-x86-64").variants:
        assert set(variant.requires) <= known


def emulate(tmp_path: Path, compiler: str, emulator: str, cpu: str) -> set[str]:
    need(compiler, "g++" if compiler == "gcc" else "g++-aarch64-linux-gnu")
    need(emulator, "qemu-user")
    main, program = tmp_path / "main.c", tmp_path / "probe"
    main.write_text(MAIN)
    subprocess.run(
        [compiler, *FLAGS, str(SOURCE), str(main), "-o", str(program)],
        check=True,
    )
    done = subprocess.run(
        [emulator, "-cpu", cpu, str(program)], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("cpu", "has", "lacks"),
    [
        ("qemu64", {"sse2", "sse3"}, {"avx", "avx2", "sse4_1"}),
        ("Nehalem", V2, {"avx", "xsave", "fma"}),
        # The emulated CPU can do AVX, but the emulated system does not save its registers.
        ("Haswell,-xsave", V2, {"avx", "avx2", "fma", "f16c", "xsave"}),
        ("Haswell", V3, {"avx512f"}),
        ("Haswell,-bmi2", V3 - {"bmi2"}, {"bmi2"}),
    ],
)
@x86_only
def test_emulated_x86(tmp_path: Path, cpu: str, has: set[str], lacks: set[str]):
    names = emulate(tmp_path, "gcc", "qemu-x86_64", cpu)
    assert has <= names
    assert names & lacks == set()


@pytest.mark.parametrize(
    ("cpu", "has", "lacks"),
    [
        ("cortex-a53", {"asimd", "fp"}, {"asimddp", "asimdhp", "sve", "i8mm", "bf16"}),
        ("cortex-a76", {"asimd", "asimddp", "fphp", "asimdhp"}, {"sve", "i8mm", "bf16"}),
        ("max", {"asimd", "asimddp", "sve", "sve2", "i8mm", "bf16"}, set()),
    ],
)
def test_emulated_aarch64(tmp_path: Path, cpu: str, has: set[str], lacks: set[str]):
    names = emulate(tmp_path, "aarch64-linux-gnu-gcc", "qemu-aarch64", cpu)
    assert has <= names
    assert names & lacks == set()
