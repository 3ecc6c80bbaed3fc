"""Verdicts about real libraries, each with one thing wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecompile.audit.judge import AuditVerdict, Finding, baseline, judge, require
from edgecompile.errors import AuditError, ElfError
from edgecompile.targets.profile import load_target, load_variant

V3 = load_variant("x86-64-v3")
V4 = load_variant("x86-64-v4")
AMX = load_variant("x86-64-amx")
NEON = load_variant("aarch64-neon")
DOTPROD = load_variant("aarch64-dotprod")
PROFILE = load_target("cpu-x86-64")
KERNEL = """
void scale(float* restrict a, const float* restrict b, int n) {
  for (int i = 0; i < n; i++) a[i] = a[i] * b[i] + b[i];
}
"""
GOOD = ("-O3", "-march=x86-64-v3", "-Wl,-z,noexecstack")

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Compiles and links C (or C++) text into a shared library."""

    def build_library(
        source: str,
        *flags: str,
        name: str = "libmodel.so",
        language: str = "c",
        prefix: str = "",
    ) -> Path:
        compiler, text = ("gcc", "source.c") if language == "c" else ("g++", "source.cpp")
        (tmp_path / text).write_text(source)
        command = [prefix + compiler, "-shared", "-fPIC", text, *flags, "-o", name]
        subprocess.run(command, cwd=tmp_path, check=True)
        return tmp_path / name

    return build_library


def errors(verdict: AuditVerdict) -> list[str]:
    assert verdict.ok == (not any(f.severity == "error" for f in verdict.findings))
    return [finding.rule for finding in verdict.findings if finding.severity == "error"]


def only(verdict: AuditVerdict, rule: str) -> Finding:
    """The single error of a verdict."""
    assert errors(verdict) == [rule], verdict.findings
    return next(finding for finding in verdict.findings if finding.severity == "error")


def test_a_good_library_passes(build: Build) -> None:
    verdict = judge(build(KERNEL, *GOOD), V3, PROFILE, vector_isa="AVX2")
    assert verdict.ok and verdict.findings == ()
    assert (verdict.library, verdict.variant, verdict.target) == (
        *("libmodel.so", "x86-64-v3"),
        "cpu-x86-64",
    )
    assert verdict.instructions is not None
    assert verdict.instructions.packed_operations(256) > 0
    data = json.loads(json.dumps(verdict.to_json()))
    assert data["ok"] is True and data["findings"] == []
    require([verdict])


needs_aarch64 = pytest.mark.usefixtures("aarch64_compiler")
ARM = "aarch64-linux-gnu-"


@needs_aarch64
def test_an_aarch64_library_is_judged_alike(build: Build) -> None:
    verdict = judge(build(KERNEL, "-O3", prefix=ARM), NEON, PROFILE, vector_isa="ASIMD")
    assert verdict.ok and verdict.findings == () and verdict.machine == "aarch64"
    assert verdict.instructions is not None
    assert verdict.instructions.packed_operations(128) > 0
    scalar = build(KERNEL, "-O3", "-fno-tree-vectorize", prefix=ARM)
    assert "on 128-bit registers" in only(judge(scalar, NEON, PROFILE), "scalar").what
    only(judge(build(KERNEL, "-O3", prefix=ARM), NEON, PROFILE, vector_isa="AVX2"), "scalar")


@needs_aarch64
@pytest.mark.parametrize("feature", ["sve", "atomics"])
def test_instructions_that_an_older_arm_lacks(build: Build, feature: str) -> None:
    march = {"sve": "armv8.2-a+sve", "atomics": "armv8.2-a"}[feature]
    source = KERNEL + "int g(int* a) { return __atomic_fetch_add(a, 1, 5); }"
    path = build(source, "-O3", f"-march={march}", prefix=ARM)
    verdict = judge(path, NEON, PROFILE, vectorised=False)
    found = [f.what for f in verdict.findings if f.rule == "instructions"]
    assert any(f"need {feature}, first in " in what for what in found)
    assert judge(path, DOTPROD, PROFILE, vectorised=False).ok == (feature == "atomics")


@needs_aarch64
def test_pages_of_arm_systems(build: Build) -> None:
    """A library for 4 KiB pages can't be mapped on a Raspberry Pi 5, whose kernel has 16 KiB."""
    path = build(KERNEL, "-O3", "-Wl,-z,max-page-size=4096", prefix=ARM)
    finding = only(judge(path, NEON, PROFILE), "pages")
    assert "more than 4096 bytes" in finding.what and "max-page-size=65536" in finding.cure


@pytest.mark.parametrize(
    ("source", "feature"),
    [
        ("int f(unsigned a) { return __builtin_popcount(a); }", "popcnt"),
        ("#include <immintrin.h>\n__m128i f(__m128i a) { return _mm_abs_epi8(a); }", "ssse3"),
    ],
)
def test_the_probe_must_run_on_every_cpu(build: Build, source: str, feature: str) -> None:
    lowest = baseline("x86-64")
    assert (lowest.name, lowest.requires) == ("x86-64", ())
    assert judge(build(KERNEL), lowest, PROFILE, vectorised=False).ok
    path = build(source, "-O2", "-march=x86-64-v2")
    finding = only(judge(path, lowest, PROFILE, vectorised=False), "instructions")
    assert f"need {feature}" in finding.what and "-march=x86-64," in finding.cure


def test_thread_local_variables_that_a_process_has_no_room_for(build: Build) -> None:
    source = KERNEL + "_Thread_local int t; int* g(void) { return &t; }"
    assert judge(build(source, *GOOD), V3, PROFILE).ok
    only(judge(build(source, *GOOD, "-ftls-model=initial-exec"), V3, PROFILE), "tls")


def test_wrong_machine(build: Build) -> None:
    path = build(KERNEL, *GOOD)
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    path.write_bytes(data)
    finding = only(judge(path, V3, PROFILE), "machine")
    assert finding.what == "it is built for aarch64, the variant is for x86-64"


def test_object_file_is_no_library(build: Build, tmp_path: Path) -> None:
    build(KERNEL, *GOOD)
    subprocess.run(["gcc", *GOOD[:2], "-c", "source.c", "-o", "a.o"], cwd=tmp_path, check=True)
    finding = only(judge(tmp_path / "a.o", V3, PROFILE), "kind")
    assert "an ELF object file" in finding.what


def test_glibc_floor_names_the_symbols(build: Build) -> None:
    source = KERNEL + "#include <pthread.h>\nint g(pthread_t t) { return pthread_join(t, 0); }"
    path = build(source, *GOOD)
    assert judge(path, V3, PROFILE).glibc == "2.34"
    assert judge(path, V3, PROFILE).ok
    jetpack5 = dataclasses.replace(PROFILE, name="jetpack-5", glibc="2.31")
    finding = only(judge(path, V3, jetpack5), "glibc")
    assert finding.what == "pthread_join needs glibc 2.34; jetpack-5 promises 2.31 only"
    assert finding.cure


def test_private_glibc_symbols(build: Build) -> None:
    source = KERNEL + "extern int __libc_enable_secure; int g() { return __libc_enable_secure; }"
    verdict = judge(build(source, *GOOD, "-l:ld-linux-x86-64.so.2"), V3, PROFILE)
    assert "private symbols" in only(verdict, "glibc").what


def test_libstdcplusplus(build: Build) -> None:
    source = "#include <string>\nstd::string f(int i) { return std::to_string(i) + 'a'; }"
    verdict = judge(build(source, *GOOD, language="c++"), V3, PROFILE, vectorised=False)
    assert {"needed", "libstdc++"} <= set(errors(verdict))
    assert verdict.glibcxx is not None and verdict.glibcxx.startswith("3.4")
    assert verdict.to_json()["glibcxx"] == verdict.glibcxx
    needed = next(finding for finding in verdict.findings if finding.rule == "needed")
    assert "libstdc++.so.6" in needed.what
    flags = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL")
    newest = dataclasses.replace(PROFILE, glibc="99.0")
    assert judge(build(source, *GOOD, *flags, language="c++"), V3, newest, vectorised=False).ok


def test_unexpected_and_allowed_libraries(build: Build, tmp_path: Path) -> None:
    soname = "-Wl,-soname,libeckernels-0123.so"
    build("int ec_add(int a) { return a + 1; }", soname, *GOOD, name="libeckernels-0123.so")
    source = KERNEL + "int ec_add(int); int g(int x) { return ec_add(x); }"
    path = build(source, *GOOD, str(tmp_path / "libeckernels-0123.so"))
    assert set(errors(judge(path, V3, PROFILE))) == {"needed", "undefined"}
    allowed = {"allowed_needed": ("libeckernels-0123.so",), "runtime_exports": ("ec_add",)}
    assert judge(path, V3, PROFILE, **allowed).ok
    without = judge(path, V3, PROFILE, allowed_needed=("libeckernels-0123.so",))
    assert "ec_add" in only(without, "undefined").what


def test_undefined_symbols_are_all_named(build: Build) -> None:
    names = [f"aoti_torch_cpu_kernel_{i}" for i in range(3)]
    calls = "".join(f"void {name}(void); void c{name}(void) {{ {name}(); }}\n" for name in names)
    weak = "void w(void) __attribute__((weak)); void x(void) { if (w) w(); }\n"
    finding = only(judge(build(KERNEL + calls + weak, *GOOD), V3, PROFILE), "undefined")
    assert finding.what.startswith("3 undefined symbols")
    assert all(name in finding.what for name in names)


def test_linking_habits(build: Build) -> None:
    path = build(KERNEL, *GOOD[:2], "-Wl,-z,execstack", "-Wl,-rpath,$ORIGIN/../lib")
    assert set(errors(judge(path, V3, PROFILE))) == {"execstack", "rpath"}
    text = '__asm__(".text\\n.globl t\\nt: .quad puts\\n");'
    path = build(KERNEL + text, *GOOD, "-Wl,-z,notext")
    assert "textrel" in errors(judge(path, V3, PROFILE))


def test_too_new_instructions(build: Build) -> None:
    path = build(KERNEL, "-O3", "-march=x86-64-v4", "-mprefer-vector-width=512")
    assert judge(path, V4, PROFILE).ok
    finding = only(judge(path, V3, PROFILE), "instructions")
    assert "need avx512f, first in scale: " in finding.what
    assert "-march=x86-64-v3" in finding.cure


def test_instructions_that_are_used_where_the_cpu_has_them(build: Build) -> None:
    path = build(KERNEL, "-O3", "-march=x86-64-v4", "-mprefer-vector-width=512")
    lacking = [finding.what.split()[3].strip(",") for finding in judge(path, V3, PROFILE).findings]
    assert lacking and judge(path, V3, PROFILE, dispatched=lacking).ok
    assert not judge(path, V3, PROFILE, dispatched=("sha_ni",)).ok


def test_tiles_are_for_the_variant_that_requires_them(build: Build) -> None:
    text = """#include <immintrin.h>
    void multiply(void* to) { _tile_dpbf16ps(0, 1, 2); _tile_stored(0, to, 64); }"""
    wide = (f"-march={AMX.march}", *AMX.extra_flags, "-O3", "-mprefer-vector-width=512")
    path = build(text + KERNEL, *wide)
    assert judge(path, AMX, PROFILE).ok
    verdict = judge(path, V4, PROFILE)
    assert errors(verdict) == ["instructions"] * 2
    found = [finding.what.split(", first in multiply: ")[0] for finding in verdict.findings]
    assert found == ["2 instructions need amx_tile", "1 instructions need amx_bf16"]


def test_scalar_code_is_caught_though_it_would_run(build: Build) -> None:
    path = build(KERNEL, "-O3", "-march=x86-64-v3", "-fno-tree-vectorize")
    finding = only(judge(path, V3, PROFILE), "scalar")
    assert "packed floating-point arithmetic on 256-bit registers" in finding.what
    assert judge(path, V3, PROFILE, vectorised=False).ok


def test_narrow_code_in_a_wide_variant(build: Build) -> None:
    assert errors(judge(build(KERNEL, *GOOD), V4, PROFILE)) == ["scalar"]


def test_an_instruction_set_without_vector_code_is_said_not_blamed(build: Build) -> None:
    """Inductor writes nothing for SSE: a note, whatever the compiler made of the scalar loops."""
    path = build(KERNEL, "-O1", "-march=x86-64-v2", "-Wl,-z,noexecstack")
    v2 = load_variant("x86-64-v2")
    verdict = judge(path, v2, PROFILE, vector_isa="", vectorised=False)
    assert verdict.ok
    (note,) = verdict.findings
    assert (note.severity, note.rule) == ("note", "scalar")
    assert "no vector code for x86-64-v2" in note.what
    assert errors(judge(path, v2, PROFILE)) == ["scalar"]  # the runtime library must have some


@pytest.mark.parametrize("claimed", ["", "INVALID_VEC_ISA", "AVX512", "ASIMD", "AVX"])
def test_kernels_generated_for_another_isa(build: Build, claimed: str) -> None:
    finding = only(judge(build(KERNEL, *GOOD), V3, PROFILE, vector_isa=claimed), "scalar")
    assert "not for AVX2" in finding.what


def test_generated_for_an_extension_of_the_isa(build: Build) -> None:
    path = build(KERNEL, "-O3", "-march=x86-64-v4", "-mprefer-vector-width=512")
    assert judge(path, V4, PROFILE, vector_isa="AVX512 AVX512_VNNI").ok


def test_without_objdump_it_says_what_it_could_not_see(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(KERNEL, "-O3", "-march=x86-64-v4")
    monkeypatch.setenv("PATH", "/nowhere")
    verdict = judge(path, V3, PROFILE)
    assert verdict.ok and verdict.instructions is None
    assert [finding.severity for finding in verdict.findings] == ["note"]
    assert "no objdump" in verdict.findings[0].what


def test_not_elf(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_text("nothing")
    with pytest.raises(ElfError, match="not an ELF file"):
        judge(tmp_path / "a.so", V3, PROFILE)


def test_require_names_every_error_of_every_library(build: Build) -> None:
    good = judge(build(KERNEL, *GOOD), V3, PROFILE)
    first = judge(
        build(KERNEL, *GOOD[:2], "-Wl,-z,execstack", "-Wl,-rpath,/x", name="a.so"), V3, PROFILE
    )
    second = judge(build(KERNEL, "-O1", name="b.so"), V3, PROFILE)
    with pytest.raises(AuditError) as caught:
        require([good, first, second])
    message = caught.value.message
    assert message.startswith("2 libraries aren't fit")
    assert "libmodel.so" not in message
    for part in ("a.so (x86-64-v3)", "execstack", "rpath", "b.so (x86-64-v3)", "scalar"):
        assert part in message
    with pytest.raises(AuditError, match="1 library isn't fit"):
        require([second])
    require([])
