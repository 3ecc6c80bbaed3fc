"""Disassembly of code that was compiled for a known instruction set."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from edgecompile.audit import instructions
from edgecompile.audit.instructions import InstructionEvidence, find_objdump, scan_instructions
from edgecompile.errors import ElfError
from edgecompile.targets.schema import FEATURES
from edgecompile.toolchain.native import native_sources

KERNELS = """
#include <math.h>
void f(float* restrict a, const float* restrict b, int n) {
  for (int i = 0; i < n; i++) a[i] = floorf(a[i] * b[i] + sqrtf(b[i]));
}
void g(long* restrict a, const long* restrict b, int n) {
  for (int i = 0; i < n; i++) a[i] = a[i] > b[i] ? a[i] * 3 : b[i] >> 2;
}
void k(double* restrict a, const unsigned* restrict b, int n) {
  for (int i = 0; i < n; i++) a[i] = b[i] ^ (b[i] << 3);
}
"""
X86_64_V2 = {"sse3", "ssse3", "sse4_1", "sse4_2", "popcnt"}
X86_64_V3 = X86_64_V2 | {"avx", "avx2", "f16c", "fma", "bmi1", "bmi2", "lzcnt", "movbe"}


def compile_c(folder: Path, source: str, *flags: str, arch: str = "x86-64") -> None:
    """Compiles it into source.o."""
    (folder / "source.c").write_text(source)
    gcc = "gcc" if arch == "x86-64" else "aarch64-linux-gnu-gcc"
    command = [gcc, "-O3", "-ffast-math", "-fPIC", *flags, "-c", "source.c", "-o", "source.o"]
    subprocess.run(command, cwd=folder, check=True)


def scan(folder: Path, source: str, *flags: str, arch: str = "x86-64") -> InstructionEvidence:
    compile_c(folder, source, *flags, arch=arch)
    objdump = find_objdump(arch)
    assert objdump is not None
    return scan_instructions(folder / "source.o", arch, objdump)


def features(evidence: InstructionEvidence) -> set[str]:
    return {use.feature for use in evidence.uses}


#: Features that a variant may require without a pattern of their own: the one whose pattern sees their instructions.
#: None: every CPU of the architecture has it (asimd), or compilers don't emit it (xsave).
SEEN_AS: dict[str, dict[str, str | None]] = {
    "x86-64": {
        "xsave": None,
        **dict.fromkeys(("avx512bw", "avx512cd", "avx512dq", "avx512vl"), "avx512f"),
    },
    "aarch64": {"asimd": None, **dict.fromkeys(("sve2", "svebf16", "svei8mm"), "sve")},
}
#: Features whose instructions no variant may use, under the kernel's names: the probe doesn't ask for them.
UNASKED = {"jscvt", "paca"}


@pytest.mark.parametrize("arch", FEATURES)
def test_names_are_those_of_profiles_and_of_the_probe(arch: str) -> None:
    """A misspelt name would refuse every library that uses the feature, or none."""
    patterns, seen = instructions._PATTERNS[arch], SEEN_AS[arch]
    assert set(FEATURES[arch]) - set(patterns) == set(seen)
    assert {name for name in seen.values() if name} <= set(patterns)
    probe = (native_sources() / "probe" / "cpu_probe.c").read_text()
    asked = set(re.findall(r'"(\w+)"', probe))
    assert set(patterns) - asked - UNASKED == set()
    assert UNASKED.isdisjoint(asked)


@pytest.mark.parametrize(
    ("march", "width", "least", "most"),
    [
        ("x86-64", 128, set(), set()),
        ("x86-64-v2", 128, {"sse4_1"}, X86_64_V2),
        ("x86-64-v3", 256, {"avx", "avx2", "fma"}, X86_64_V3),
        ("x86-64-v4", 512, {"avx512f"}, X86_64_V3 | {"avx512f"}),
    ],
)
def test_levels(tmp_path: Path, march: str, width: int, least: set[str], most: set[str]) -> None:
    width_flag = ["-mprefer-vector-width=512"] if width == 512 else []
    evidence = scan(tmp_path, KERNELS, f"-march={march}", *width_flag)
    assert least <= features(evidence) <= most
    assert evidence.packed_operations(width) > 0
    assert evidence.packed_operations(width * 2) == 0
    assert evidence.total > 50
    json.dumps(evidence.to_json())


def test_avx512_on_narrow_registers_is_seen(tmp_path: Path) -> None:
    flags = ("-march=x86-64-v4", "-mprefer-vector-width=256")
    evidence = scan(tmp_path, KERNELS, *flags)
    assert evidence.packed_operations(512) == 0
    assert "avx512f" in features(evidence)


def test_scalar_code_has_no_packed_arithmetic(tmp_path: Path) -> None:
    flags = ("-march=x86-64-v3", "-fno-tree-vectorize")
    assert scan(tmp_path, KERNELS, *flags).packed_operations(128) == 0


#: (target, result of a function of x, feature).
NEWER = [
    ("avxvnni", "_mm256_dpbusd_avx_epi32(x, x, x)", "avx_vnni"),
    ("avx512vnni,avx512vl", "_mm256_dpbusd_epi32(x, x, x)", "avx512_vnni"),
    ("aes", "_mm256_set_m128i(_mm_aesenc_si128(low(x), low(x)), low(x))", "aes"),
    ("pclmul", "_mm256_set_m128i(_mm_clmulepi64_si128(low(x), low(x), 1), low(x))", "pclmulqdq"),
    ("gfni", "_mm256_gf2p8mul_epi8(x, x)", "gfni"),
    ("f16c", "(__m256i)_mm256_cvtph_ps(_mm256_castsi256_si128(x))", "f16c"),
    ("avx512bf16,avx512vl", "(__m256i)_mm256_dpbf16_ps((__m256)x, (__m256bh)x, (__m256bh)x)",
     "avx512_bf16"),
    ("avx512bf16,avx512vl", "(__m256i)_mm256_cvtne2ps_pbh((__m256)x, (__m256)x)",
     "avx512_bf16"),
    ("amx-bf16,amx-tile", "({ _tile_dpbf16ps(0, 1, 2); x; })", "amx_bf16"),
    ("amx-int8,amx-tile", "({ _tile_dpbssd(0, 1, 2); x; })", "amx_int8"),
    ("amx-tile", "({ _tile_stored(3, &x, 32); x; })", "amx_tile"),
]  # fmt: skip
#: (target, a function called f, feature).
LACKED = [
    ("sse3", "__m128d f(__m128d a) { return _mm_hadd_pd(a, a); }", "sse3"),
    ("ssse3", "__m128i f(__m128i a) { return _mm_shuffle_epi8(a, a); }", "ssse3"),
    ("sse4.1", "__m128i f(__m128i a) { return _mm_mullo_epi32(a, a); }", "sse4_1"),
    ("sse4.2", "unsigned f(unsigned a) { return _mm_crc32_u32(a, 1); }", "sse4_2"),
    ("popcnt", "int f(unsigned a) { return __builtin_popcount(a); }", "popcnt"),
    ("adx", "int f(unsigned long long* p) { return _addcarryx_u64(1, *p, 2, p); }", None),
    ("avx", "__m128 f(__m128 a) { return _mm_sqrt_ps(a); }", "avx"),
    ("sha", "__m128i f(__m128i a) { return _mm_sha256msg1_epu32(a, a); }", "sha_ni"),
]


class Functions(NamedTuple):
    """Functions compiled by one call, each for a target of its own; most of its time goes to the headers."""

    compiled: Path
    arch: str

    @classmethod
    def compile(
        cls, folder: Path, arch: str, headers: str, bodies: Iterable[tuple[str, str]]
    ) -> Functions:
        """Compiles (target, a function called f) for each; they are called f0, f1 and so on."""
        parts = [
            f'#pragma GCC push_options\n#pragma GCC target("{target}")\n#define f f{number}\n'
            f"{body}\n#undef f\n#pragma GCC pop_options\n"
            for number, (target, body) in enumerate(bodies)
        ]
        compile_c(folder, headers + "".join(parts), "-ffunction-sections", arch=arch)
        return cls(folder / "source.o", arch)

    def scan(self, number: int) -> InstructionEvidence:
        """What the function of this number is made of."""
        objdump = find_objdump(self.arch)
        assert objdump is not None
        command = [objdump, f"--section=.text.f{number}"]
        evidence = scan_instructions(self.compiled, self.arch, command)
        assert evidence.total > 0
        return evidence


@pytest.fixture(scope="module")
def x86_64_functions(tmp_path_factory: pytest.TempPathFactory) -> Functions:
    headers = "#include <immintrin.h>\n#define low(x) _mm256_castsi256_si128(x)\n"
    newer = [
        (f"avx2,{target}", f"__m256i f(__m256i x) {{ return {result}; }}")
        for target, result, _ in NEWER
    ]
    lacked = [(target, body) for target, body, _ in LACKED]
    folder = tmp_path_factory.mktemp("x86-64")
    return Functions.compile(folder, "x86-64", headers, [*newer, *lacked])


@pytest.mark.parametrize(
    "number", range(len(NEWER)), ids=[f"{case[2]}-{case[0]}" for case in NEWER]
)
def test_newer_instructions(x86_64_functions: Functions, number: int) -> None:
    feature = NEWER[number][2]
    uses = {use.feature: use for use in x86_64_functions.scan(number).uses}
    assert feature in uses
    assert uses[feature].example.startswith(f"f{number}: ")
    assert uses[feature].count == 1
    other = {"avx_vnni", "avx512_vnni"} - {feature}
    assert not other & set(uses)


@pytest.mark.parametrize("number", range(len(LACKED)), ids=[case[0] for case in LACKED])
def test_what_the_first_64_bit_cpus_lacked(x86_64_functions: Functions, number: int) -> None:
    feature = LACKED[number][2]
    seen = features(x86_64_functions.scan(len(NEWER) + number))
    assert seen == ({feature} if feature else set())


needs_aarch64 = pytest.mark.usefixtures("aarch64_compiler")


@needs_aarch64
def test_aarch64_baseline(tmp_path: Path) -> None:
    evidence = scan(tmp_path, KERNELS, "-march=armv8-a", arch="aarch64")
    assert features(evidence) == set()
    assert evidence.packed_operations(128) > 0


#: (architecture, a function called f, feature).
EXTENSIONS = [
    ("armv8.2-a+fp16", "float16x8_t f(float16x8_t x) { return vmulq_f16(x, x); }", "asimdhp"),
    ("armv8.2-a+dotprod", "int32x4_t f(int32x4_t a, int8x16_t x) { return vdotq_s32(a, x, x); }",
     "asimddp"),
    ("armv8.2-a+i8mm", "int32x4_t f(int32x4_t a, int8x16_t x) { return vmmlaq_s32(a, x, x); }",
     "i8mm"),
    ("armv8.2-a+bf16",
     "float32x4_t f(float32x4_t a, bfloat16x8_t x) { return vbfdotq_f32(a, x, x); }", "bf16"),
    ("armv8.2-a+sve", "void f(float* a, int n) { for (int i = 0; i < n; i++) a[i] *= 2; }", "sve"),
    ("armv8.1-a", "long f(long* a) { return __atomic_fetch_add(a, 1, 5); }", "atomics"),
    ("armv8.1-a", "void f(long* a) { __atomic_fetch_or(a, 1, 0); }", "atomics"),
    ("armv8.1-a", "int16x4_t f(int16x4_t x) { return vqrdmlah_s16(x, x, x); }", "asimdrdm"),
    ("armv8.2-a+fp16", "__fp16 f(float16_t a) { return vaddh_f16(a, a); }", "fphp"),
    ("armv8.2-a+fp16fml",
     "float32x4_t f(float32x4_t a, float16x4_t x) { return vfmlalq_low_f16(a, vcombine_f16(x, x),"
     " vcombine_f16(x, x)); }", "asimdfhm"),
    ("armv8.3-a",
     "long f(long* a) { long r; __asm__(\"ldapr %0, [%1]\" : \"=r\"(r) : \"r\"(a)); return r; }", "lrcpc"),
    ("armv8-a+crc", "int f(int a) { return __crc32w(a, 1); }", "crc32"),
    ("armv8-a+crypto", "uint8x16_t f(uint8x16_t x) { return vaeseq_u8(x, x); }", "aes"),
    ("armv8-a+crypto", "uint32x4_t f(uint32x4_t x) { return vsha256su0q_u32(x, x); }", "sha2"),
    ("armv8.3-a", "__attribute__((target(\"branch-protection=standard\"))) int g(void);"
     "__attribute__((target(\"branch-protection=standard\"))) int f(void) { return g() + 1; }",
     "paca"),
]  # fmt: skip


@pytest.fixture(scope="module")
def aarch64_functions(aarch64_compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Functions:
    headers = "#include <arm_neon.h>\n#include <arm_acle.h>\n"
    bodies = [(f"arch={march}", body) for march, body, _ in EXTENSIONS]
    return Functions.compile(tmp_path_factory.mktemp("aarch64"), "aarch64", headers, bodies)


@pytest.mark.parametrize(
    "number", range(len(EXTENSIONS)), ids=[f"{case[2]}-{case[0]}" for case in EXTENSIONS]
)
def test_aarch64_extensions(aarch64_functions: Functions, number: int) -> None:
    assert features(aarch64_functions.scan(number)) == {EXTENSIONS[number][2]}


@needs_aarch64
def test_aarch64_functions_that_ask_the_cpu_first_are_passed_over(tmp_path: Path) -> None:
    source = '__asm__(".arch armv8.1-a\\n.text\\n.globl __aarch64_ldadd8_acq_rel\\n'
    source += '__aarch64_ldadd8_acq_rel: ldaddal x0, x0, [x1]\\n ret\\n");'
    assert features(scan(tmp_path, source, arch="aarch64")) == set()


@needs_aarch64
def test_only_the_guarded_functions_themselves_are_passed_over(tmp_path: Path) -> None:
    """A stripped library has few names: what lies after a guarded function isn't part of it."""
    source = """
__asm__(".arch armv8.1-a\\n.text\\n.globl __aarch64_ldadd8_acq_rel\\n"
        ".type __aarch64_ldadd8_acq_rel, %function\\n"
        "__aarch64_ldadd8_acq_rel: ldaddal x0, x0, [x1]\\n ret\\n"
        ".size __aarch64_ldadd8_acq_rel, .-__aarch64_ldadd8_acq_rel\\n"
        "unguarded: swpal x0, x0, [x1]\\n ret\\n");
"""
    (tmp_path / "source.c").write_text(source)
    command = ["aarch64-linux-gnu-gcc", "-shared", "-nostdlib", "-s", "source.c", "-o", "x.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    objdump = find_objdump("aarch64")
    assert objdump is not None
    (use,) = scan_instructions(tmp_path / "x.so", "aarch64", objdump).uses
    assert (use.feature, use.count) == ("atomics", 1)
    assert use.example.startswith("0x")
    assert "swpal" in use.example


def test_objdump_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="can't run /nowhere/objdump"):
        scan_instructions(tmp_path, "x86-64", "/nowhere/objdump")
    text = tmp_path / "text.so"
    text.write_text("no library")
    objdump = find_objdump("x86-64")
    assert objdump is not None
    with pytest.raises(ElfError, match=r"can't read .*text\.so"):
        scan_instructions(text, "x86-64", objdump)


def test_no_objdump_for_a_machine_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_objdump("x86-64") is None
